"""How kopf is told to behave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kopf._cogs.aiokits.aioenums import AsyncFlagWaiter, FlagSetter
from yarl import URL

from etcdmaint.handlers import defrag, following, framework
from etcdmaint.kube.inventory import RunInventory
from etcdmaint.kube.resources import ETCD_CLUSTERS, ETCD_CONNECTIONS, Resource
from etcdmaint.kube.surroundings import StopSignal
from tests.unit.kube.fakes import Crowd


def test_patience_with_the_api_server_has_no_end_and_begins_anew_each_time() -> None:
    """A LIST that fails longer than the back-offs last would end the operator."""
    patience = framework.EverMorePatience()
    first = list(itertools.islice(patience, 1000))
    assert max(first) <= 37.5
    assert min(first[10:]) >= 22.0
    assert next(iter(patience)) < 1.0


def test_nothing_of_kopfs_own_is_kept_on_objects_but_the_finalizer() -> None:
    settings = framework.make_settings(instance="pod-0", namespaces=[])
    assert settings.persistence.finalizer == "etcdmaint.io/operator"
    assert settings.peering.standalone is True
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is False


def test_with_namespaces_neither_kinds_nor_namespaces_are_listed() -> None:
    """Roles give no right to it."""
    assert framework.make_settings(instance="x", namespaces=["a"]).scanning.disabled is True


@pytest.mark.parametrize(
    ("status", "unfinished"),
    [
        ({}, True),
        ({"phase": "Pending"}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Dreaming"}, True),
        ({"phase": "Complete"}, False),
        ({"phase": "Failed"}, False),
    ],
)
def test_the_daemons_filter_asks_for_the_phase_and_nothing_else(
    status: dict[str, Any], unfinished: bool
) -> None:
    """D1, D7: a deletion must not let the object go while a member is in flight."""
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert defrag.is_unfinished(status=status, meta=meta) is unfinished


class Access:
    server = "https://10.0.0.1"
    configuration = SimpleNamespace(ssl_ca_cert=None, cert_file=None, key_file=None, proxy=None)
    insecure = False
    namespace = "ns"

    def __init__(self, header: str) -> None:
        self.header = header

    async def authorization(self) -> str:
        return self.header


async def logged_in(header: str = "") -> kopf.AiohttpSession:
    registry = kopf.OperatorRegistry()
    framework.register_login(registry, Access(header))  # type: ignore[arg-type]
    (handler,) = registry._activities.get_all_handlers()
    info = await handler.fn()  # type: ignore[call-arg, misc]
    assert isinstance(info, kopf.AiohttpSession)
    return info


@pytest.mark.parametrize(
    ("header", "sent"),
    [("bearer abc", "Bearer abc"), ("Bearer abc", "Bearer abc"), ("", None)],
)
async def test_kopf_logs_in_as_we_do_and_again_after_ten_minutes(
    header: str, sent: str | None
) -> None:
    info = await logged_in(header)
    async with info.aiohttp_session as session:
        assert session.headers.get("Authorization") == sent
    assert info.expiration is not None
    left = info.expiration - datetime.now(UTC)
    assert 500 < left.total_seconds() <= 600
    assert "abc" not in repr(info)


@pytest.fixture
async def half_an_answer() -> AsyncIterator[str]:
    """A server that begins each answer; it breaks off, but a watch it keeps open."""

    async def answer(request: web.Request) -> web.StreamResponse:
        begun = web.StreamResponse(headers={"Content-Type": "application/json"})
        begun.content_length = 1000
        await begun.prepare(request)
        await begun.write(b'{"kind": ')
        assert request.transport is not None
        if request.query.get("watch") == "true":
            await asyncio.Event().wait()
        request.transport.abort()
        return begun

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>log in</html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/apis", answer)
    app.router.add_get("/apis/page", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/apis"
    await runner.cleanup()


async def test_an_answer_that_is_cut_short_fails_where_kopf_asks_again(half_an_answer: str) -> None:
    """D38: read later, as kopf does, it would end the operator."""
    async with (await logged_in()).aiohttp_session as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.request(method="get", url=half_an_answer)


@pytest.mark.parametrize("query", ["", "?watch=true"])
async def test_a_gateways_page_fails_where_kopf_asks_again(half_an_answer: str, query: str) -> None:
    """D38: it is no list and no event."""
    async with (await logged_in()).aiohttp_session as session:
        with pytest.raises(aiohttp.ClientConnectionError, match="text/html"):
            await session.request(method="get", url=f"{half_an_answer}/page{query}")


async def test_a_watch_is_begun_without_waiting_for_its_end(half_an_answer: str) -> None:
    async with (await logged_in()).aiohttp_session as session, asyncio.timeout(60):
        response = await session.request(method="get", url=f"{half_an_answer}?watch=true")
        assert await response.content.readany() == b'{"kind": '
        response.close()


async def test_kopf_opens_few_connections_for_many_objects_and_reads_past_its_writes() -> None:
    """A thousand new objects get a finalizer each; writes that hang in a webhook hold no list up."""
    crowd = Crowd()
    async with crowd.serving(), (await logged_in()).aiohttp_session as session:

        async def ask(method: str, query: str = "") -> None:
            async with session.request(method, f"{crowd.url}/apis{query}") as response:
                await response.read()

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(ask("PATCH"))
            await crowd.until(16)
            await ask("GET", "?watch=true")
            group.create_task(ask("GET"))
            await crowd.until(17)
            crowd.let_in.set()
    assert crowd.most == 17


async def test_a_request_that_waits_while_kopf_logs_in_anew_fails_where_kopf_asks_again() -> None:
    """D38: each log-in closes the session before, and any other error would end the operator."""
    crowd = Crowd()
    async with crowd.serving(), (await logged_in()).aiohttp_session as session, asyncio.timeout(60):
        asked = [asyncio.create_task(session.get(f"{crowd.url}/apis")) for _ in range(20)]
        await crowd.until(16)
        await session.close()
        failed = await asyncio.gather(*asked, return_exceptions=True)
    assert [it for it in failed if not isinstance(it, aiohttp.ClientConnectionError)] == []


async def test_a_requests_patience_begins_when_it_has_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D38: behind a thousand that are slow it is late, and no failure."""
    settings = framework.make_settings(instance="pod-0", namespaces=[])
    assert settings.networking.request_timeout is None
    monkeypatch.setattr(framework, "_PATIENCE", 0.01)
    answer: Any = object()

    async def hang(_: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        await asyncio.Event().wait()
        return answer  # type: ignore[no-any-return]  # a stand-in

    async def say(_: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        return answer  # type: ignore[no-any-return]  # a stand-in

    request: Any = SimpleNamespace(method="PATCH", url=URL("https://10.0.0.1/apis"))
    async with aiohttp.TCPConnector() as connector, asyncio.timeout(60):
        turnstile = framework.Turnstile(connector, at_once=1)
        slow = [asyncio.create_task(turnstile(request, hang)) for _ in range(3)]
        late = asyncio.create_task(turnstile(request, say))
        failed = await asyncio.gather(*slow, return_exceptions=True)
        assert [type(it) for it in failed] == [TimeoutError] * 3
        assert await late is answer


class Runs:
    def __init__(self) -> None:
        self.ran: list[str] = []
        self.settles = True

    async def run(self, ref: Any, stop: Any) -> None:
        self.ran.append(str(ref))

    async def settle(self, ref: Any) -> bool:
        self.ran.append(f"settle {ref}")
        return self.settles


def handlers_of(registry: kopf.OperatorRegistry, kind: str) -> dict[str, Any]:
    return {str(h.id): h for h in getattr(registry, kind).get_all_handlers()}


async def test_the_daemon_of_a_run_has_no_timeouts_that_would_cut_a_member_off() -> None:
    """D7, D33: kopf would cancel it after the one, and let the object go after the other."""
    registry, runs = kopf.OperatorRegistry(), Runs()
    defrag.register(registry, runs, RunInventory())
    daemon = handlers_of(registry, "_spawning")["defrag"]
    assert daemon.cancellation_backoff is None
    assert daemon.cancellation_timeout is None
    await daemon.fn(name="now", namespace="ns", uid="u", stopped=None)
    assert runs.ran == ["ns/now"]


@pytest.mark.parametrize(
    ("phase", "outcome", "reason", "at_stake"),
    [
        ("Running", "Pending", "InFlight", True),
        ("Running", "Failed", "RPCTimeout", True),
        ("Running", "Pending", "", False),
        ("Running", "Defragmented", "All", False),
        ("Failed", "Failed", "RPCTimeout", False),
    ],
)
async def test_a_deleted_run_stays_only_while_a_member_of_it_is_at_stake(
    phase: str, outcome: str, reason: str, at_stake: bool
) -> None:
    """D7: and while this process is not the one to let it go."""
    registry, runs = kopf.OperatorRegistry(), Runs()
    defrag.register(registry, runs, RunInventory())
    handler = handlers_of(registry, "_changing")["settle"]
    row = {"name": "m1", "outcome": outcome, "reason": reason}
    status = {"phase": phase, "members": [row]}
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert handler.when(body=kopf.Body({"metadata": deleted, "status": status})) is at_stake
    assert not handler.when(body=kopf.Body({"metadata": {}, "status": status}))
    await handler.fn(name="now", namespace="ns", uid="u")
    assert runs.ran == ["settle ns/now"]
    runs.settles = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handler.fn(name="now", namespace="ns", uid="u"), 0.02)


def test_no_progress_and_no_copy_of_a_spec_is_kept_on_an_object() -> None:
    """Of all that kopf would keep there is only the finalizer."""
    settings = framework.make_settings(instance="pod-0", namespaces=[])
    body, patch = kopf.Body({"spec": {"rule": {}}}), kopf.Patch()
    persistence = settings.persistence
    persistence.diffbase_storage.store(body=body, patch=patch, essence=body)  # type: ignore[arg-type]  # a stand-in of its shape
    persistence.progress_storage.store(key="settle", record={}, body=body, patch=patch)  # type: ignore[arg-type, typeddict-item]  # what kopf would hand over
    assert dict(patch) == {}


async def test_what_happens_to_a_run_is_noted() -> None:
    registry, inventory = kopf.OperatorRegistry(), RunInventory()
    defrag.register(registry, Runs(), inventory)
    note = handlers_of(registry, "_watching")["inventory"].fn
    body = {"metadata": {"name": "now", "namespace": "ns", "uid": "u"}}
    await note(type="ADDED", body=body, uid="u")
    assert len(inventory.runs()) == 1
    await note(type="DELETED", body=body, uid="u")
    assert len(inventory.runs()) == 0


async def test_connections_are_only_watched() -> None:
    """No daemon and no timer: either would put a finalizer on them."""

    class Known:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def seen(self, resource: Resource, obj: dict[str, Any]) -> None:
            self.told.append((resource.kind, dict(obj)))

        def gone(self, uid: str) -> None:
            self.told.append(uid)

        def connection_changed(self, namespace: str, name: str) -> None:
            self.told.append(f"{namespace}/{name}")

    registry, known, other = kopf.OperatorRegistry(), Known(), Known()
    followers: Any = {ETCD_CLUSTERS: (known,), ETCD_CONNECTIONS: (known,)}
    following.register(registry, followers, other)  # type: ignore[arg-type]
    assert handlers_of(registry, "_spawning") == {}
    assert handlers_of(registry, "_changing") == {}
    notes: Any = registry._watching.get_all_handlers()
    meta = {"uid": "u", "namespace": "ns", "name": "etcd"}
    for note in notes:
        await note.fn(type=None, body=kopf.Body({"metadata": meta}), uid="u")
        await note.fn(type="DELETED", body=kopf.Body({"metadata": meta}), uid="u")
    seen = [(kind, {"metadata": meta}) for kind in ("EtcdCluster", "EtcdConnection")]
    assert known.told == [seen[0], "u", seen[1], "u"]
    assert other.told == ["ns/etcd", "ns/etcd"]


async def test_kopfs_flag_serves_as_the_signal_to_stop() -> None:
    setter: FlagSetter[Any] = FlagSetter()
    stop: StopSignal = AsyncFlagWaiter(setter)
    await stop.wait(0.001)
    assert not stop.is_set()
    waiting = asyncio.ensure_future(stop.wait(600.0))
    await asyncio.sleep(0)
    setter.set()
    await asyncio.wait_for(waiting, 60.0)
    assert stop.is_set()
