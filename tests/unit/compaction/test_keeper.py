"""Which objects are compacted, and what is told of it: one condition, one event at each turn.

The API server and the registry are stand-ins here; tests/cluster/test_compaction_operator.py has the
real ones.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etcdmaint.api.defrag import ClusterRef
from etcdmaint.compaction.election import Result
from etcdmaint.compaction.knowledge import View
from etcdmaint.compaction.line import Dial
from etcdmaint.compaction.registry import Registry
from etcdmaint.defrag.run import Severity, Target
from etcdmaint.errors import (
    EtcdmaintError,
    MemberUnreachable,
    NoLeader,
    PermissionDenied,
    SpaceExceeded,
)
from etcdmaint.etcd.access import Login
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.kube.client import Conflict, KubeApi, Unobserved
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.compactions import CompactionKeeper
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ETCD_CLUSTERS, ETCD_CONNECTIONS, ObjectRef

from .stepped import SteppedClock, settle

Json = dict[str, Any]
WELL = View(
    interval=60.0,
    revision=900,
    clock=12,
    last_result=Result.WON,
    last_won_at=datetime(2026, 1, 1, tzinfo=UTC),
    last_seen_at=datetime(2026, 1, 1, tzinfo=UTC),
    advanced_at=datetime(2026, 1, 1, tzinfo=UTC),
    won_last=True,
    stalled=False,
    nospace=False,
    error=None,
)


@dataclass
class Held:
    """A share, and the view that a test gives it."""

    interval: float
    dial: Dial
    registry: Holds
    astray: bool = False
    released: bool = False

    @property
    def compactor(self) -> Held:
        return self

    @property
    def used(self) -> Held:
        return self.registry.used or self

    def view(self) -> View:
        return replace(self.registry.view, interval=self.interval)

    def set_interval(self, interval: float) -> None:
        self.interval = interval

    async def release(self) -> None:
        self.released = True


@dataclass
class Holds:
    """Gives shares, or refuses."""

    made: list[Held] = field(default_factory=list)
    view: View = WELL
    used: Held | None = None
    failure: EtcdmaintError | None = None

    async def hold(self, dial: Dial, interval: float) -> Held:
        if self.failure is not None:
            raise self.failure
        self.made.append(Held(interval, dial, self))
        return self.made[-1]


@dataclass
class Api:
    """Keeps objects, and counts writes of their status."""

    objects: dict[str, Json] = field(default_factory=dict)
    patches: list[Json] = field(default_factory=list)
    conflicts: int = 0
    observer: Unobserved = field(default_factory=Unobserved)

    async def get(self, resource: object, namespace: str, name: str) -> Json:
        return copy.deepcopy(self.objects[name])

    async def patch_status(self, ref: ObjectRef, status: Json, version: str) -> Json:
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("changed")
        obj = self.objects[ref.name]
        kept = {**obj.get("status", {}), **status}
        obj["status"] = {key: value for key, value in kept.items() if value is not None}
        self.patches.append(status)
        return copy.deepcopy(obj)


@dataclass
class Told:
    """Events and refusals."""

    events: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def post(self, ref: ObjectRef, severity: Severity, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def refused(self, namespace: str, name: str, kind: str) -> None:
        self.refusals.append(("refused", name))

    def accepted(self, namespace: str, name: str, kind: str) -> None:
        self.refusals.append(("accepted", name))

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]


class Fence:
    """Always held."""

    holder = epoch = "test"

    def assert_held(self) -> None:
        """It is."""


@dataclass
class World:
    keeper: CompactionKeeper
    clock: SteppedClock
    api: Api
    holds: Holds
    told: Told

    def connection(self, name: str = "etcd", *, generation: int = 1, **changes: Any) -> Json:
        """An EtcdConnection that asks for compaction every minute, as it is now."""
        spec = {"endpoints": ["10.0.0.1:2379"], "compaction": {"interval": "1m"}}
        metadata = {
            "name": name,
            "namespace": "team-a",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": changes.pop("annotations", {}),
            **changes.pop("metadata", {}),
        }
        spec.update(changes)
        spec = {key: value for key, value in spec.items() if value is not None}
        status = self.api.objects.get(name, {}).get("status", {})
        obj = {"metadata": metadata, "spec": spec, "status": status}
        self.api.objects[name] = obj
        return copy.deepcopy(obj)

    def see(self, **changes: Any) -> None:
        self.keeper.seen(ETCD_CONNECTIONS, self.connection(**changes))

    def condition(self, name: str = "etcd") -> Json:
        found = self.api.objects[name]["status"].get("conditions", [])
        return next((c for c in found if c["type"] == "Compacting"), {})


class Found:
    """Finds a cluster whose way has a login of the object's name."""

    async def find(self, namespace: str, ref: ClusterRef) -> Target:
        access = SimpleNamespace(login=Login(ref.name, "secret"))
        found = SimpleNamespace(seeds=(), access=access, paused=None, metrics_port=None)
        return cast(Target, found)


@asynccontextmanager
async def keeping() -> AsyncIterator[World]:
    clock, api, holds, told = SteppedClock(), Api(), Holds(), Told()
    keeper = CompactionKeeper(
        Parts(
            api=cast(KubeApi, api),
            clusters=cast(Clusters, Found()),
            events=cast(EventSink, told),
            fence=Fence(),
            clock=clock,
            observer=None,
        ),
        cast(Registry, holds),
        told,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keeper.run())
        await settle()
        yield World(keeper, clock, api, holds, told)
        task.cancel()


def cluster(annotation: str | None) -> Json:
    annotations = {} if annotation is None else {"etcdmaint.io/compaction-interval": annotation}
    metadata = {"name": "etcd", "namespace": "team-a", "uid": "uid-c", "annotations": annotations}
    return {"metadata": metadata, "spec": {}}


async def test_an_object_is_compacted_from_when_it_asks_until_it_asks_no_more() -> None:
    """C34, C36: changes take effect without a restart; a change of the way is tried before the old goes."""
    async with keeping() as world:
        world.see()
        await settle()
        (first,) = world.holds.made
        assert first.interval == 60
        world.see(generation=2, compaction={"interval": "5m"})
        await settle()
        second = world.holds.made[-1]
        assert (first.released, second.released, second.interval) == (True, False, 300)
        world.see(generation=3, compaction={"interval": "0s"})
        await settle()
        assert second.released
        assert world.condition() == {}
        assert "compaction" not in world.api.objects["etcd"]["status"]
        world.see(generation=4)
        await settle()
        assert len(world.holds.made) == 3
        world.keeper.gone("uid-etcd")
        await settle()
        assert world.holds.made[-1].released


async def test_an_object_that_asks_for_nothing_costs_nothing() -> None:
    """C32: neither a share nor a write."""
    async with keeping() as world:
        world.see(compaction=None)
        world.keeper.seen(ETCD_CLUSTERS, cluster(None))
        await world.clock.advance(3600)
        assert (world.holds.made, world.api.patches) == ([], [])


async def test_what_a_resync_does_not_list_is_gone() -> None:
    async with keeping() as world:
        world.see()
        await settle()
        world.keeper.replace(ETCD_CLUSTERS, [])
        await settle()
        assert not world.holds.made[0].released
        world.keeper.replace(ETCD_CONNECTIONS, [])
        await settle()
        # It may have come while the list was read.
        assert not world.holds.made[0].released
        world.keeper.replace(ETCD_CONNECTIONS, [])
        await settle()
        assert world.holds.made[0].released
        world.keeper.replace(ETCD_CONNECTIONS, [world.connection()])
        await settle()
        assert len(world.holds.made) == 2


async def test_a_list_that_is_older_than_the_watch_turns_nothing_back() -> None:
    """An annotation has no generation: the resourceVersion tells."""
    async with keeping() as world:
        before, after = cluster("5m"), cluster("0s")
        before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"] = "9", "10"
        world.keeper.seen(ETCD_CLUSTERS, before)
        await settle()
        world.keeper.replace(ETCD_CLUSTERS, [before])
        held = cluster("10s")
        held["metadata"]["resourceVersion"] = "11"
        world.keeper.seen(ETCD_CLUSTERS, held)
        world.keeper.replace(ETCD_CLUSTERS, [after])
        await settle()
        assert [made.released for made in world.holds.made] == [False]
        assert world.holds.made[0].interval == 10


async def test_what_was_found_of_another_spec_is_not_written() -> None:
    """It has changed while it was looked at: it is looked at again at once, by the new one."""
    async with keeping() as world:
        old = world.connection()
        world.connection(generation=2, compaction={"interval": "5m"})
        world.keeper.seen(ETCD_CONNECTIONS, old)
        await settle()
        assert [held.interval for held in world.holds.made] == [60, 300]
        assert len(world.api.patches) == 1
        assert world.condition()["observedGeneration"] == 2


async def test_an_etcdcluster_asks_by_its_annotation() -> None:
    """A bad one is told by one event and a metric, and nothing is written to it."""
    async with keeping() as world:
        world.keeper.seen(ETCD_CLUSTERS, cluster("5m"))
        await settle()
        (held,) = world.holds.made
        assert held.interval == 300
        for bad in ("5 minutes", "9s", "25h", "-5m", "", "5"):
            world.keeper.seen(ETCD_CLUSTERS, cluster(bad))
            await world.clock.advance(120)
        assert held.released
        assert world.told.reasons == ["InvalidCompactionInterval"] * 6
        assert all("etcdmaint.io/compaction-interval" in text for _, text in world.told.events)
        assert world.told.refusals[-1] == ("refused", "etcd")
        world.keeper.seen(ETCD_CLUSTERS, cluster("10s"))
        await settle()
        assert world.told.refusals[-1] == ("accepted", "etcd")
        assert world.holds.made[-1].interval == 10
        assert world.api.patches == []


async def test_the_stop_button_stops_it_and_says_so() -> None:
    async with keeping() as world:
        world.see()
        await settle()
        world.see(annotations={"etcdmaint.io/paused": "true"})
        await settle()
        assert world.holds.made[0].released
        assert (world.condition()["status"], world.condition()["reason"]) == ("False", "Paused")
        world.see()
        await settle()
        assert world.condition()["reason"] == "WonLast"


async def test_the_status_is_written_when_the_condition_turns_or_every_ten_minutes() -> None:
    """It is written to an etcd that is to stay small."""
    async with keeping() as world:
        world.see()
        await settle()
        assert len(world.api.patches) == 1
        assert world.api.objects["etcd"]["status"]["compaction"]["revision"] == 900
        for revision in range(901, 911):
            world.holds.view = replace(WELL, revision=revision)
            await world.clock.advance(30)
        assert len(world.api.patches) == 1
        world.holds.view = replace(WELL, won_last=False)
        await world.clock.advance(30)
        assert world.condition()["reason"] == "OtherWonLast"
        world.holds.view = replace(WELL, won_last=False, revision=2000)
        await world.clock.advance(600)
        assert len(world.api.patches) == 3
        assert world.api.objects["etcd"]["status"]["compaction"]["revision"] == 2000


async def test_a_conflict_is_tried_again_at_the_next_look() -> None:
    async with keeping() as world:
        world.api.conflicts = 1
        world.see()
        await settle()
        assert world.api.patches == []
        await world.clock.advance(15)
        assert len(world.api.patches) == 1


async def test_one_event_when_it_stalls_and_one_when_it_is_well_again() -> None:
    async with keeping() as world:
        world.see()
        await settle()
        world.holds.view = replace(WELL, stalled=True, error=NoLeader("no leader"))
        await world.clock.advance(600)
        assert world.told.reasons == ["CompactionStalled"]
        # The runbook's table goes by the reason.
        assert ": NoLeader: no leader" in world.told.events[0][1]
        assert world.condition()["reason"] == "CompactionStalled"
        world.holds.view = WELL
        await world.clock.advance(600)
        assert world.told.reasons == ["CompactionStalled", "CompactionResumed"]


async def test_a_new_leader_does_not_tell_it_again() -> None:
    """What stands in the status was told by somebody before."""
    async with keeping() as world:
        world.see()
        await settle()
        world.holds.view = replace(WELL, stalled=True)
        await world.clock.advance(15)
        stalled = copy.deepcopy(world.api.objects)
    async with keeping() as world:
        world.api.objects = stalled
        world.holds.view = replace(WELL, stalled=True)
        world.see()
        await world.clock.advance(60)
        assert world.told.reasons == []
        world.holds.view = WELL
        await world.clock.advance(15)
        assert world.told.reasons == ["CompactionResumed"]


async def test_a_cluster_that_cannot_be_reached_stalls_as_well() -> None:
    """C38: tried again and again, and told after two intervals."""
    async with keeping() as world:
        world.holds.failure = MemberUnreachable("10.0.0.1:2379: refused")
        world.see()
        await settle()
        assert world.condition()["reason"] == "MemberUnreachable"
        await world.clock.advance(100)
        assert world.told.reasons == []
        await world.clock.advance(60)
        assert world.told.reasons == ["CompactionStalled"]
        assert ": MemberUnreachable: 10.0.0.1:2379: refused" in world.told.events[0][1]
        world.holds.failure = None
        await world.clock.advance(15)
        assert world.told.reasons == ["CompactionStalled", "CompactionResumed"]


async def test_who_may_not_compact_is_named_with_what_is_missing() -> None:
    async with keeping() as world:
        world.holds.view = replace(WELL, error=PermissionDenied("Compact at x: permission denied"))
        world.see()
        await settle()
        found = world.condition()
        assert (found["status"], found["reason"]) == ("False", "PermissionDenied")
        assert "role root" in found["message"]
        assert "compact_rev_key" in found["message"]


async def test_the_user_that_is_named_is_the_one_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C31: one compactor for both, in the way of one of them."""

    async def connect(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(ClusterClient, "connect", connect)
    async with keeping() as world:
        for name in ("first", "second"):
            world.see(name=name)
            await settle()
            await world.holds.made[-1].dial()
        world.holds.used = world.holds.made[-1]
        world.holds.view = replace(WELL, error=PermissionDenied("permission denied"))
        await world.clock.advance(15)
        for name in ("first", "second"):
            assert "the etcd user second may not" in world.condition(name)["message"]


async def test_a_way_that_does_not_work_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """C38: though it is tried at every look."""
    async with keeping() as world:
        world.see()
        await settle()
        world.holds.failure = MemberUnreachable("10.0.0.1:2379: refused")
        world.see(generation=2)
        await world.clock.advance(600)
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == ["cannot connect"]


@pytest.mark.parametrize(
    ("view", "status", "reason"),
    [
        (replace(WELL, advanced_at=None, won_last=None), "Unknown", "Starting"),
        (replace(WELL, last_result=Result.RAW, nospace=True), "True", "NoSpaceAlarm"),
        # Nothing was written since, so nothing more can be compacted: it is as full as before.
        (replace(WELL, last_result=Result.ALREADY_COMPACTED, nospace=True), "True", "NoSpaceAlarm"),
        (replace(WELL, error=SpaceExceeded("full"), nospace=True), "True", "NoSpaceAlarm"),
        (replace(WELL, won_last=None), "True", "Compacting"),
        (replace(WELL, won_last=False), "True", "OtherWonLast"),
    ],
)
async def test_the_condition_says_how_it_stands(view: View, status: str, reason: str) -> None:
    async with keeping() as world:
        world.holds.view = view
        world.see()
        await settle()
        assert (world.condition()["status"], world.condition()["reason"]) == (status, reason)


async def test_a_way_that_leads_astray_is_taken_afresh() -> None:
    """C37: the endpoints lead to a restored cluster with another ID by now."""
    async with keeping() as world:
        world.see()
        await settle()
        world.holds.made[0].astray = True
        await world.clock.advance(15)
        assert [held.released for held in world.holds.made] == [True, False]


async def test_what_it_holds_is_kept_while_the_new_way_does_not_work_yet() -> None:
    """C38."""
    async with keeping() as world:
        world.see()
        await settle()
        world.holds.failure = MemberUnreachable("a typing error")
        world.see(generation=2)
        await world.clock.advance(60)
        assert not world.holds.made[0].released
        assert world.condition()["reason"] == "WonLast"
