"""Requests to a small HTTP server: what is sent, and what becomes of each kind of answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.config import incluster_config

from etcdmaint.errors import InvalidInput
from etcdmaint.kube import access
from etcdmaint.kube.access import load_access
from etcdmaint.kube.client import (
    Conflict,
    Forbidden,
    KubeApi,
    KubeError,
    NotFound,
    Rejected,
    Unavailable,
)
from etcdmaint.kube.resources import ETCD_DEFRAGS, EVENTS, SECRETS, ObjectRef
from tests.controlplane.certificates import CertificateAuthority
from tests.unit.kube.fakes import Crowd, FakeClock

REF = ObjectRef(ETCD_DEFRAGS, "ns", "now", "uid")
PATH = "/apis/etcd-operator.cozystack.io/v1alpha2/namespaces/ns/etcddefrags"


class ApiServer:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any, str]] = []
        self.status = 200
        self.bodies: list[Any] = []
        self.headers: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text) if text else None
        self.asked.append((request.method, request.path_qs, body, request.content_type))
        self.token = request.headers.get("Authorization", "")
        content = self.bodies.pop(0) if self.bodies else {}
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        return web.Response(status=self.status, body=raw, headers=self.headers)


def write_config(path: Path, url: str, user: dict[str, Any]) -> str:
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return str(path)


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def api(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    found = await load_access(write_config(tmp_path / "config", url, {"token": "secret"}))
    api = KubeApi(found, clock=FakeClock(), timeout=60.0)
    yield api
    await api.close()
    await runner.cleanup()


async def test_an_object_is_asked_for_with_the_token(server: ApiServer, api: KubeApi) -> None:
    server.bodies = [{"metadata": {"name": "now"}}]
    assert (await api.get(ETCD_DEFRAGS, "ns", "now"))["metadata"]["name"] == "now"
    assert server.asked[0][:2] == ("GET", f"{PATH}/now")
    assert server.token == "Bearer secret"
    assert api.reachable is True


async def test_a_core_resource_is_below_api_v1(server: ApiServer, api: KubeApi) -> None:
    await api.get(SECRETS, "ns", "s")
    await api.create(EVENTS, "ns", {"kind": "Event"})
    assert [asked[1] for asked in server.asked] == [
        "/api/v1/namespaces/ns/secrets/s",
        "/api/v1/namespaces/ns/events?fieldManager=etcdmaint",
    ]


async def test_a_list_is_read_to_its_last_page(server: ApiServer, api: KubeApi) -> None:
    server.bodies = [
        {"items": [{"n": 1}], "metadata": {"continue": "more"}},
        {"items": [{"n": 2}], "metadata": {}},
    ]
    assert [item["n"] for item in await api.list(ETCD_DEFRAGS)] == [1, 2]
    assert "continue=more" in server.asked[1][1]
    assert server.asked[0][1].startswith("/apis/etcd-operator.cozystack.io/v1alpha2/etcddefrags?")


async def test_a_status_is_merged_only_at_the_version_it_was_computed_from(
    server: ApiServer, api: KubeApi
) -> None:
    await api.patch_status(REF, {"phase": "Pending", "old": None}, "7")
    method, path, body, kind = server.asked[0]
    assert (method, kind) == ("PATCH", "application/merge-patch+json")
    assert path == f"{PATH}/now/status?fieldManager=etcdmaint"
    assert body == {
        "metadata": {"resourceVersion": "7"},
        "status": {"phase": "Pending", "old": None},
    }


async def test_exactly_one_object_is_deleted(server: ApiServer, api: KubeApi) -> None:
    await api.delete(REF, resource_version="7")
    assert server.asked[0][2] == {"preconditions": {"uid": "uid", "resourceVersion": "7"}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Rejected),
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Unavailable),
        (422, Rejected),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
@pytest.mark.parametrize("body", [{"message": "why"}, b"<html>not json</html>", [], {"details": 3}])
async def test_each_answer_has_its_class(
    server: ApiServer, api: KubeApi, status: int, kind: type[KubeError], body: Any
) -> None:
    server.status, server.bodies = status, [body]
    with pytest.raises(kind):
        await api.get(ETCD_DEFRAGS, "ns", "now")
    assert api.reachable is (status < 500)


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b'{"kind": ', [], b"[" * 100_000])
async def test_an_answer_that_says_yes_but_is_no_object_is_no_answer(
    server: ApiServer, api: KubeApi, body: Any
) -> None:
    """D38: a gateway's page, taken for an empty list, would say that every object is gone."""
    server.bodies = [body, body]
    with pytest.raises(Unavailable, match="HTTP 200, but no JSON object"):
        await api.list(ETCD_DEFRAGS, "ns")
    with pytest.raises(Unavailable):
        await api.get(ETCD_DEFRAGS, "ns", "now")
    assert api.reachable is False


async def test_a_namespace_on_its_way_out_is_told_apart(server: ApiServer, api: KubeApi) -> None:
    server.status = 403
    server.bodies = [{"details": {"causes": [{"reason": "NamespaceTerminating"}]}}]
    with pytest.raises(Forbidden) as refused:
        await api.create(EVENTS, "ns", {})
    assert refused.value.cause == "NamespaceTerminating"


async def test_nobody_there_is_unavailable_and_counted(tmp_path: Path) -> None:
    told: list[tuple[str, str, int | None]] = []

    class Observer:
        def request(self, verb: str, resource: str, status: int | None, seconds: float) -> None:
            told.append((verb, resource, status))

        def status_conflict(self) -> None:
            raise AssertionError

    config = write_config(tmp_path / "config", "http://127.0.0.1:1", {"token": "t"})
    api = KubeApi(await load_access(config), observer=Observer(), clock=FakeClock())
    with pytest.raises(Unavailable):
        await api.get(ETCD_DEFRAGS, "ns", "now")
    assert told == [("get", "etcddefrags", None)]
    assert api.reachable is False
    await api.close()


@pytest.mark.parametrize(("ahead", "age"), [(0, 60), (3600, 3660), (-30, 30), (-300, 0)])
async def test_an_age_is_the_api_servers_time_less_the_creation(
    server: ApiServer, api: KubeApi, ahead: int, age: int
) -> None:
    """D4: clocks differ; ours says 2026, whatever the server's says is right."""
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=ahead)
    server.headers = {"Date": format_datetime(now, usegmt=True)}
    await api.get(ETCD_DEFRAGS, "ns", "now")
    created = {"metadata": {"creationTimestamp": "2025-12-31T23:59:00Z"}}
    assert abs(api.age(created) - age) <= 1.0
    assert api.age({}) == 0.0


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({"exec": {"command": "aws"}}, "exec"),
        ({"auth-provider": {"name": "azure"}}, "auth-provider"),
    ],
)
async def test_a_login_that_is_not_supported_is_said_so(
    tmp_path: Path, user: dict[str, Any], told: str
) -> None:
    config = write_config(tmp_path / "config", "https://127.0.0.1:1", user)
    with pytest.raises(InvalidInput, match=told):
        await load_access(config)


@pytest.mark.parametrize("text", ["{", "[]", "clusters: 3", "token: !!python/object:os.system"])
async def test_a_kubeconfig_that_is_none_is_refused_without_quoting_it(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text + "\n# hush")
    with pytest.raises(InvalidInput) as refused:
        await load_access(str(path))
    assert "hush" not in str(refused.value)


async def test_no_way_to_the_api_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="not there"):
        await load_access()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(InvalidInput, match="in-cluster"):
        await load_access()


async def test_a_pod_uses_its_service_account_and_reads_a_rotated_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projected token lives for an hour."""
    token = tmp_path / "token"
    token.write_text("first")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(CertificateAuthority("test").certificate)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setattr(access, "_NAMESPACE_FILE", tmp_path / "nowhere")
    monkeypatch.setenv("POD_NAMESPACE", "system")
    found = await load_access()
    assert found.server == "https://[fd00::1]:443"
    assert found.configuration.ssl_ca_cert == str(ca)
    assert found.namespace == "system"
    assert await found.authorization() == "bearer first"
    token.write_text("second")
    monkeypatch.setattr(incluster_config.datetime, "datetime", _Tomorrow)
    assert await found.authorization() == "bearer second"


class _Tomorrow(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(days=1)


async def test_many_requests_share_few_connections(tmp_path: Path) -> None:
    """A thousand EtcdDefrags that wait ask all the time, and each connection costs memory."""
    crowd = Crowd()
    async with crowd.serving():
        config = write_config(tmp_path / "config", crowd.url, {"token": "secret"})
        api = KubeApi(await load_access(config), timeout=60.0)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(api.get(ETCD_DEFRAGS, "ns", f"run-{number}"))
            await crowd.until(access.AT_ONCE)
            crowd.let_in.set()
        await api.close()
    assert crowd.most == access.AT_ONCE == 32
