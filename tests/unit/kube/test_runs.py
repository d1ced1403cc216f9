"""Runs as this process keeps them: what they are asked before they may act, and how they end."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from etcdmaint.api.defrag import parse_defrag
from etcdmaint.defrag.queue import RunQueue
from etcdmaint.defrag.run import Ending, NoInstrumentation, Phase, RunResult, Severity
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import ClusterNotReady, StopRequested
from etcdmaint.etcd.endpoint import AddressMap
from etcdmaint.kube import runs
from etcdmaint.kube.client import Forbidden
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.events import EventSink, shortened
from etcdmaint.kube.resources import (
    ETCD_CONNECTIONS,
    ETCD_DEFRAGS,
    EVENTS,
    LEASES,
    ObjectRef,
)
from etcdmaint.kube.runs import Runner
from etcdmaint.kube.schema import DefragSchema, missing_additions
from etcdmaint.kube.surroundings import DefragSurroundings, RunParts
from tests.unit.kube.fakes import FakeApi, FakeFence

REF = ObjectRef(ETCD_DEFRAGS, "ns", "now", "uid-now")


class Stop:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def is_set(self) -> bool:
        return self.event.is_set()

    async def wait(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.event.wait()
        except TimeoutError:
            return


class Api(FakeApi):
    """With a schema, and Events that are only counted."""

    def __init__(self) -> None:
        super().__init__()
        self.additions = True
        self.posted: list[dict[str, Any]] = []

    async def schema(self, resource: Any) -> dict[str, Any]:
        return document(self.additions)

    async def create(self, resource: Any, namespace: str, body: dict[str, Any], **_: Any) -> Any:
        assert resource is EVENTS
        self.posted.append(body)
        return body


def document(additions: bool) -> dict[str, Any]:
    leaf: dict[str, Any] = {}
    spec: dict[str, Any] = {"clusterRef": {"properties": {"name": leaf}}, "rule": leaf}
    row: dict[str, Any] = {"name": leaf}
    if additions:
        spec |= {"dryRun": leaf, "leaderTransfer": leaf}
        spec["clusterRef"]["properties"]["kind"] = leaf
        row["memberID"] = leaf
    schema = {
        "x-kubernetes-group-version-kind": [{"kind": "EtcdDefrag"}],
        "properties": {
            "spec": {"properties": spec},
            "status": {"properties": {"members": {"items": {"properties": row}}}},
        },
    }
    return {"components": {"schemas": {"other": {}, "defrag": schema}}}


def parts(api: Api, **changes: Any) -> RunParts:
    return RunParts(
        **{
            "api": api,
            "clusters": Clusters(api, AddressMap()),  # type: ignore[arg-type]
            "schema": DefragSchema(api, api.clock),  # type: ignore[arg-type]
            "events": EventSink(api, api.clock, instance="pod-0"),  # type: ignore[arg-type]
            "fence": FakeFence(),
            "clock": api.clock,
            "instrumentation": NoInstrumentation(),
            "observer": None,
            "queue": RunQueue(),
            "timing": Timing(),
            **changes,
        }
    )


def asked(kind: str = "EtcdConnection", **changes: Any) -> dict[str, Any]:
    metadata = {
        "name": "now",
        "namespace": "ns",
        "uid": "uid-now",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **changes.pop("metadata", {}),
    }
    spec = {"clusterRef": {"name": "etcd", "kind": kind}}
    return {"metadata": metadata, "spec": spec, **changes}


@pytest.fixture
def api() -> Api:
    api = Api()
    connection = {
        "metadata": {
            "name": "etcd",
            "namespace": "ns",
            "uid": "c",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"endpoints": ["http://10.0.0.1:2379"]},
    }
    api.put(ETCD_CONNECTIONS, connection)
    return api


def surroundings(api: Api, obj: dict[str, Any], **changes: Any) -> DefragSurroundings:
    api.put(ETCD_DEFRAGS, obj)
    return DefragSurroundings(
        parts(api, **changes), REF, parse_defrag(obj), Stop(), asyncio.Event()
    )


async def test_a_connection_is_looked_up_afresh_each_time(api: Api) -> None:
    around = surroundings(api, asked())
    assert [str(seed) for seed in (await around.look()).seeds] == ["http://10.0.0.1:2379"]
    stored = api.objects["etcdconnections", "ns", "etcd"]
    stored["spec"] = {"endpoints": ["10.0.0.2"]}
    assert [str(seed) for seed in (await around.look()).seeds] == ["http://10.0.0.2:2379"]
    stored["spec"] = {"endpoints": []}
    with pytest.raises(ClusterNotReady, match="endpoints"):
        await around.look()


async def test_an_api_server_that_is_away_is_waited_for_at_a_look(api: Api) -> None:
    """D38."""
    around = surroundings(api, asked())
    api.outages = 4
    assert (await around.look()).seeds
    assert len(api.clock.slept) == 4


@pytest.mark.parametrize("status", [401, 403])
async def test_a_right_that_is_missing_is_told_and_a_401_is_waited_out(
    api: Api, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """D4, D7: a wait for an administrator has its deadline, and takes no old way to etcd from us."""
    around = surroundings(api, asked())
    get, refusals = api.get, 2

    async def guarded(resource: Any, *where: Any, **how: Any) -> dict[str, Any]:
        nonlocal refusals
        if resource is ETCD_CONNECTIONS and refusals:
            refusals -= 1
            raise Forbidden("etcdconnections is forbidden", status=status)
        return await get(resource, *where, **how)

    monkeypatch.setattr(api, "get", guarded)
    if status == 403:
        with pytest.raises(ClusterNotReady, match="lacks a right: etcdconnections"):
            await around.look()
        refusals = 0
    assert (await around.look()).seeds


async def test_waiting_for_the_api_server_ends_when_the_run_is_to_stop(api: Api) -> None:
    around = surroundings(api, asked())
    around.draining.set()
    assert (await around.look()).seeds, "one look is granted: a member may be at stake"
    api.outages = 1000
    with pytest.raises(StopRequested):
        await around.look()


async def test_the_stop_button_on_the_run_itself_is_read_at_each_look(api: Api) -> None:
    """D9."""
    obj = asked()
    around = surroundings(api, obj)
    assert (await around.look()).paused is None
    obj["metadata"]["annotations"] = {"etcdmaint.io/paused": "true"}
    told = (await around.look()).paused
    assert told is not None
    assert "this EtcdDefrag" in told


async def test_a_run_that_waits_may_still_be_made_a_dry_run(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: until it has begun; then there is the stop button."""
    obj = api.put(ETCD_DEFRAGS, asked(status={"phase": "Pending"}))
    dry: list[bool] = []

    class Looking:
        def __init__(self, request: Any, *, surroundings: DefragSurroundings, **__: Any) -> None:
            dry.append(request.dry_run)
            self.surroundings = surroundings

        async def run(self, state: Any) -> RunResult:
            obj["metadata"]["annotations"] = {"etcdmaint.io/dry-run": "true"}
            try:
                await self.surroundings.look()
            except StopRequested:
                return RunResult(state, Ending.STOPPED)
            return RunResult(replace(state, phase=Phase.COMPLETE), Ending.DONE)

    monkeypatch.setattr(runs, "Sweep", Looking)
    await Runner(parts(api)).run(REF, Stop())
    assert dry == [False, True]
    obj["metadata"]["annotations"] = {}
    around = surroundings(api, asked(status={"phase": "Running"}))
    api.objects["etcddefrags", "ns", "now"]["metadata"]["annotations"] = {
        "etcdmaint.io/dry-run": "true"
    }
    assert (await around.look()).seeds


async def test_a_run_from_an_older_crd_stays_where_it_is_also_under_a_newer_one(api: Api) -> None:
    """A dryRun that was dropped does not come back."""
    obj = asked()
    around = surroundings(api, obj)
    api.additions = False
    with pytest.raises(ClusterNotReady) as refused:
        await around.look()
    assert refused.value.reason == "OlderCRD"
    assert "spec.dryRun" in str(refused.value)
    obj["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "Progressing", "status": "False", "reason": "OlderCRD"}],
    }
    api.additions = True
    api.clock.seconds += 3600
    with pytest.raises(ClusterNotReady, match="create it again"):
        await around.look()
    accepting = surroundings(api, obj, accept_older_crd=True)
    assert (await accepting.look()).seeds


async def test_a_schema_that_is_not_published_yet_is_not_taken_for_an_older_one(api: Api) -> None:
    """An API server that has just started publishes it a moment after it serves the objects."""
    around = surroundings(api, asked())
    documents = [{}, {"components": {"schemas": {"other": {}}}}, document(additions=True)]

    async def schema(resource: Any) -> dict[str, Any]:
        return documents.pop(0)

    api.schema = schema  # type: ignore[method-assign]
    assert (await around.look()).seeds
    assert documents == []
    assert missing_additions(document(additions=True)) == ()
    assert len(missing_additions(document(additions=False)) or ()) == 4


async def test_a_run_that_has_begun_goes_on_once_the_crd_is_ours_again(api: Api) -> None:
    """Its rows name the members of the cluster that it is for: another cluster has none of them."""
    obj = asked(
        status={
            "phase": "Running",
            "conditions": [{"type": "Progressing", "status": "True", "reason": "OlderCRD"}],
        }
    )
    assert (await surroundings(api, obj).look()).seeds


@pytest.mark.parametrize(
    ("manager", "subresource", "other"),
    [
        ("etcdmaint", "status", False),
        ("kopf", "", False),
        ("kubectl-client-side-apply", "", False),
        ("manager", "status", True),
    ],
)
async def test_another_writer_of_the_status_is_another_controller(
    api: Api, manager: str, subresource: str, other: bool
) -> None:
    """For EtcdClusters only: an EtcdConnection is nobody else's."""
    entry = {"manager": manager} | ({"subresource": subresource} if subresource else {})
    obj = asked("EtcdCluster", metadata={"managedFields": [entry]})
    around = surroundings(api, obj)
    with pytest.raises(Exception) as raised:  # there is no such EtcdCluster either
        await around.look()
    assert (getattr(raised.value, "reason", "") == "OtherController") is other
    mine = surroundings(api, asked(metadata={"managedFields": [entry]}))
    assert (await mine.look()).seeds


@pytest.mark.parametrize(
    ("age", "duration", "holder", "fresh"),
    [(0, 15, "x", True), (14, 15, "x", True), (16, 15, "x", False), (0, 15, "", False)],
)
async def test_a_fresh_lease_of_the_other_operator_is_another_controller(
    api: Api, age: int, duration: int, holder: str, fresh: bool
) -> None:
    """By the API server's clock."""
    api.clock.seconds = float(age)
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration,
        "renewTime": "2026-01-01T00:00:00.000000Z",
    }
    name = "aa20b3a9.etcd-operator.cozystack.io"
    api.put(LEASES, {"metadata": {"name": name, "namespace": "their"}, "spec": spec})
    told = await parts(api).clusters.other_controller(asked("EtcdCluster"))
    assert (told is not None) is fresh
    if told:
        assert "namespace their" in told


async def test_whether_another_run_is_still_to_be_finished_is_asked_of_its_object(api: Api) -> None:
    """D60: one that is over, gone, or replaced has left its mark for nothing."""
    around = surroundings(api, asked())
    other = {"metadata": {"name": "other"}, "status": {"phase": "Running"}}
    api.put(ETCD_DEFRAGS, other)
    assert await around.is_active("ns/other", "uid-other")
    assert not await around.is_active("ns/other", "uid-before")
    assert not await around.is_active("ns/gone", "uid")
    other["status"] = {"phase": "Failed"}
    assert not await around.is_active("ns/other", "uid-other")
    api.outages = 1
    assert await around.is_active("ns/other", "uid-other"), "not known: it may be"


async def test_a_spec_that_cannot_be_read_ends_the_run_and_names_the_field(api: Api) -> None:
    """D52."""
    api.put(ETCD_DEFRAGS, {**asked(), "spec": {"clusterRef": {"name": "etcd"}, "rule": 7}})
    runner = Runner(parts(api))
    await runner.run(REF, Stop())
    status = api.objects["etcddefrags", "ns", "now"]["status"]
    assert status["phase"] == "Failed"
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "InvalidSpec"
    assert "spec.rule" in failed["message"]
    assert runner.active == frozenset()


async def test_a_run_whose_record_may_not_be_written_goes_on_once_it_may(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """D4, D52: a right that is missing is said in a sentence, and is no fault of the program."""
    api.put(ETCD_DEFRAGS, {**asked(), "spec": {"clusterRef": {"name": "etcd"}, "rule": 7}})
    waits: list[float] = []

    class Patient(Stop):
        async def wait(self, timeout: float) -> None:
            waits.append(api.clock.seconds)
            if len(waits) == 2:
                api.disturb = lambda: None

    def refuse() -> None:
        raise Forbidden("patch etcddefrags/status: no")

    api.disturb = refuse
    await Runner(parts(api)).run(REF, Patient())
    assert api.objects["etcddefrags", "ns", "now"]["status"]["phase"] == "Failed"
    assert waits[0] >= 600
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert "lacks a right" in caplog.text


async def test_a_deleted_run_does_not_wait_for_the_right_to_write_its_record(api: Api) -> None:
    """D4, D7: its finalizer would stay for as long as the right is missing."""
    api.put(ETCD_DEFRAGS, asked())
    stop = Stop()

    def refuse() -> None:
        if api.clock.seconds > 60:
            stop.event.set()
        assert api.clock.seconds < 3600, "it waits for ever"
        raise Forbidden("patch etcddefrags/status: no")

    api.disturb = refuse
    await Runner(parts(api)).run(REF, stop)
    assert 600 <= api.clock.seconds < 3600


@pytest.mark.parametrize(
    "obj",
    [
        asked(status={"phase": "Complete"}),
        asked(status={"phase": "Failed"}),
        asked(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        asked(metadata={"uid": "another"}),
        None,
    ],
)
async def test_what_is_over_deleted_or_gone_is_not_touched(
    api: Api, obj: dict[str, Any] | None
) -> None:
    """D1, D7: a stale event of a watch may still call for it."""
    if obj is not None:
        api.put(ETCD_DEFRAGS, obj)
    await Runner(parts(api)).run(REF, Stop())
    assert api.writes == []


def in_flight(**metadata: Any) -> dict[str, Any]:
    row = {
        "name": "m1",
        "memberID": "0000000000000001",
        "outcome": "Pending",
        "reason": "InFlight",
        "dbSizeBefore": 100,
    }
    return asked(metadata=metadata, status={"phase": "Running", "members": [row]})


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("by", ["settle", "run"])
async def test_a_deleted_run_with_a_member_in_flight_is_carried_on_until_that_is_known(
    api: Api, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """D7: also by a process that begins after the deletion; and nothing else is begun for it."""
    obj = api.put(ETCD_DEFRAGS, in_flight(**DELETED))
    attempts = 0

    class Waiting:
        def __init__(self, _: Any, *, surroundings: DefragSurroundings, **__: Any) -> None:
            assert surroundings.stopping

        async def run(self, state: Any) -> RunResult:
            nonlocal attempts
            attempts += 1
            assert state.rows[0].in_flight
            if attempts == 3:
                row = obj["status"]["members"][0]
                row |= {"outcome": "Defragmented", "reason": "InferredFromSize"}
            return RunResult(state, Ending.STOPPED)

    monkeypatch.setattr(runs, "Sweep", Waiting)
    runner = Runner(parts(api))
    if by == "settle":
        assert await runner.settle(REF)
    else:
        await runner.run(REF, Stop())
    assert attempts == 3
    assert runner.active == frozenset()


async def test_before_a_deleted_run_is_let_go_its_own_process_is_waited_for(api: Api) -> None:
    """D7."""
    leave = asyncio.Event()

    class Busy(Runner):
        async def _once(self, ref: Any, stop: Any) -> bool:
            await leave.wait()
            return True

    runner = Busy(parts(api))
    running = asyncio.create_task(runner.run(REF, Stop()))
    await asyncio.sleep(0)
    settling = asyncio.create_task(runner.settle(REF))
    done, _ = await asyncio.wait([settling], timeout=0.02)
    assert not done
    leave.set()
    assert await settling
    await running


@pytest.mark.parametrize("why", ["no leader", "drained"])
async def test_who_may_not_act_any_more_does_not_let_a_deleted_run_go(api: Api, why: str) -> None:
    """D7: its successor does."""
    api.put(ETCD_DEFRAGS, in_flight(**DELETED))
    api.outages = 1000
    runner = Runner(parts(api, fence=FakeFence(api.clock, until=1.0)))
    if why == "drained":
        runner.draining.set()
    assert not await runner.settle(REF)
    assert api.writes == []


async def test_a_fault_of_ours_does_not_end_a_run_for_good(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon that dies is never started again by kopf."""
    monkeypatch.setattr(runs, "_AFTER_A_FAULT", 0.01)
    api.put(ETCD_DEFRAGS, asked())
    attempts = 0

    class Broken:
        def __init__(self, *_: Any, **__: Any) -> None:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                raise ZeroDivisionError
            api.objects.clear()

        async def run(self, state: Any) -> None:
            raise runs.RunGone("gone")

    monkeypatch.setattr(runs, "Sweep", Broken)
    await Runner(parts(api)).run(REF, Stop())
    assert attempts == 3
    assert "a fault" in caplog.text


async def test_draining_waits_for_the_runs_under_way_and_no_longer_than_it_may(api: Api) -> None:
    assert await Runner(parts(api)).drain(0.0)
    leave, entered = asyncio.Event(), asyncio.Event()

    class Busy(Runner):
        async def _once(self, ref: Any, stop: Any) -> bool:
            entered.set()
            await leave.wait()
            return True

    runner = Busy(parts(api))
    task = asyncio.create_task(runner.run(REF, Stop()))
    await entered.wait()
    assert runner.active == {"uid-now"}
    assert not await runner.drain(0.01)
    leave.set()
    assert await runner.drain(1.0)
    await task


async def test_events_are_posted_in_order_and_never_in_the_way(api: Api) -> None:
    sink = EventSink(api, api.clock, instance="pod-0")  # type: ignore[arg-type]  # a stand-in of its shape
    for number in range(300):
        sink.post(REF, Severity.WARNING, "DefragDeferred", f"message {number}")
    posting = asyncio.create_task(sink.run())
    await sink.flush(1.0)
    posting.cancel()
    assert [event["message"] for event in api.posted[:2]] == ["message 0", "message 1"]
    assert len(api.posted) == 256
    first = api.posted[0]
    assert first["type"] == "Warning"
    assert first["involvedObject"]["uid"] == "uid-now"
    assert len({event["metadata"]["name"] for event in api.posted}) == 256


async def test_an_event_on_an_object_with_a_long_name_has_a_name_that_the_api_takes(
    api: Api,
) -> None:
    sink = EventSink(api, api.clock, instance="pod-0")  # type: ignore[arg-type]  # a stand-in of its shape
    ref = ObjectRef(ETCD_DEFRAGS, "ns", f"{'a' * 198}-.{'b' * 20}", "uid")
    sink.post(ref, Severity.NORMAL, "Complete", "done")
    posting = asyncio.create_task(sink.run())
    await sink.flush(1.0)
    posting.cancel()
    (event,) = api.posted
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]+)", event["metadata"]["name"])


def test_a_long_message_is_cut_to_what_an_event_takes() -> None:
    assert len(shortened("ü" * 2000).encode()) <= 1024
    assert shortened("short") == "short"
