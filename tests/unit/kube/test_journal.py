"""The status writer: compare and swap, patience, and a terminal phase that is never left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etcdmaint.defrag.run import Phase, RecordRefused, RunGone, RunState
from etcdmaint.errors import LeadershipLost
from etcdmaint.kube.client import Forbidden, Unavailable
from etcdmaint.kube.journal import DefragJournal
from etcdmaint.kube.resources import ETCD_DEFRAGS, ObjectRef
from tests.unit.kube.fakes import FakeApi, FakeClock, FakeFence

REF = ObjectRef(ETCD_DEFRAGS, "ns", "now", "uid-now")
RUNNING = RunState(phase=Phase.RUNNING, reason="Running", message="m")


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.put(ETCD_DEFRAGS, {"metadata": {"name": "now"}})
    return api


def journal(api: FakeApi, fence: FakeFence | None = None) -> DefragJournal:
    return DefragJournal(api, REF, fence or FakeFence(), api.clock)  # type: ignore[arg-type]


def status(api: FakeApi) -> dict[str, Any]:
    found = api.objects["etcddefrags", "ns", "now"].get("status", {})
    assert isinstance(found, dict)
    return found


async def test_it_returns_when_the_status_is_written(api: FakeApi) -> None:
    await journal(api).record(RUNNING)
    assert status(api)["phase"] == "Running"


async def test_the_same_state_again_costs_no_write(api: FakeApi) -> None:
    writer = journal(api)
    await writer.record(RUNNING)
    await writer.record(RUNNING)
    assert len(api.writes) == 1


async def test_a_conflict_is_met_by_computing_the_status_anew(api: FakeApi) -> None:
    """What somebody else has written meanwhile into another field stays."""
    disturbances = 3

    def disturb() -> None:
        nonlocal disturbances
        if disturbances:
            disturbances -= 1
            obj = api.objects["etcddefrags", "ns", "now"]
            obj["metadata"]["annotations"] = {"n": str(disturbances)}
            api.put(ETCD_DEFRAGS, obj)

    api.disturb = disturb
    await journal(api).record(RUNNING)
    assert status(api)["phase"] == "Running"
    assert api.observer.conflicts == 3
    assert api.objects["etcddefrags", "ns", "now"]["metadata"]["annotations"] == {"n": "0"}


async def test_an_api_server_that_is_away_is_waited_for(api: FakeApi) -> None:
    """D38: with pauses that grow to five seconds."""
    api.outages = 8
    await journal(api).record(RUNNING)
    assert status(api)["phase"] == "Running"
    assert api.clock.slept[0] < 1.0
    assert api.clock.slept[-1] == max(api.clock.slept) == 5.0


async def test_waiting_ends_with_the_right_to_write(api: FakeApi) -> None:
    api.outages = 10**6
    fence = FakeFence(api.clock, until=30.0)
    with pytest.raises(LeadershipLost):
        await journal(api, fence).record(RUNNING)
    assert 30.0 <= api.clock.seconds <= 36.0


async def test_a_right_that_is_missing_is_waited_for_but_not_for_ever(api: FakeApi) -> None:
    """D4: the cluster's slot may be held meanwhile. Not counted: what an API server that is away took."""
    answers: list[Exception] = [Unavailable("away")] * 200 + [Forbidden("no")] * 3

    def refuse() -> None:
        if answers:
            raise answers.pop(0)

    api.disturb = refuse
    await journal(api).record(RUNNING)
    assert status(api)["phase"] == "Running"
    began = api.clock.seconds
    answers += [Forbidden("no")] * 1000
    with pytest.raises(RecordRefused):
        await journal(api).record(replace(RUNNING, message="another"))
    assert 600 <= api.clock.seconds - began <= 610


async def test_who_has_lost_the_lease_writes_nothing(api: FakeApi) -> None:
    """D62: a predecessor that wakes up must not overwrite what its successor has recorded."""
    with pytest.raises(LeadershipLost):
        await journal(api, FakeFence(FakeClock(), until=0.0)).record(RUNNING)
    assert api.writes == []


async def test_an_object_that_is_gone_or_another_one_ends_the_run(api: FakeApi) -> None:
    api.objects["etcddefrags", "ns", "now"]["metadata"]["uid"] = "other"
    with pytest.raises(RunGone):
        await journal(api).record(RUNNING)
    api.objects.clear()
    with pytest.raises(RunGone):
        await journal(api).record(RUNNING)


@pytest.mark.parametrize("over", ["Complete", "Failed"])
async def test_a_terminal_phase_is_never_left(api: FakeApi, over: str) -> None:
    """D1."""
    api.objects["etcddefrags", "ns", "now"]["status"] = {"phase": over}
    with pytest.raises(RunGone, match=over):
        await journal(api).record(RUNNING)
    assert status(api) == {"phase": over}
