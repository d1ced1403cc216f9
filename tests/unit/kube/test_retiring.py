"""Which runs are known, which are due to go, which nobody works on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from etcdmaint.defrag.run import Phase
from etcdmaint.kube.client import Rejected
from etcdmaint.kube.inventory import RunInventory, read_run
from etcdmaint.kube.resources import ETCD_CONNECTIONS, ETCD_DEFRAGS, Resource
from etcdmaint.kube.resync import Resync
from tests.unit.kube.fakes import EPOCH, FakeApi, FakeClock, FakeFence


def run(name: str, phase: str = "Complete", **changes: Any) -> dict[str, Any]:
    spec = {"clusterRef": {"name": "etcd"}, **changes.pop("spec", {})}
    status = {"phase": phase, "completedAt": "2026-01-01T00:00:00Z"}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", **changes}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_finished_run_is_due_its_time_to_live_after_its_end() -> None:
    """D5: and nothing else is ever due."""
    inventory = RunInventory()
    for obj in (
        run("due", spec={"ttlSecondsAfterFinished": 5}),
        run("now", spec={"ttlSecondsAfterFinished": 0}),
        run("kept"),
        run("running", "Running", spec={"ttlSecondsAfterFinished": 0}),
        run("odd", spec={"ttlSecondsAfterFinished": "soon"}),
        run("negative", spec={"ttlSecondsAfterFinished": -1}),
    ):
        inventory.seen(obj)
    assert {known.ref.name for known in inventory.due(EPOCH)} == {"now"}
    later = EPOCH + timedelta(seconds=5)
    assert {known.ref.name for known in inventory.due(later)} == {"due", "now"}
    assert inventory.next_due() == EPOCH


@pytest.mark.parametrize("obj", [{}, {"metadata": 3}, {"metadata": {}, "status": {"phase": []}}])
def test_whatever_is_stored_under_the_kind_is_read_without_an_error(obj: dict[str, Any]) -> None:
    """D52."""
    assert read_run(obj).phase is Phase.NEW


def test_a_rehearsal_is_known_as_one_however_it_was_asked_for() -> None:
    """D8: it is no success of a defragmentation."""
    annotated = {"metadata": {"annotations": {"etcdmaint.io/dry-run": "true"}}}
    assert read_run({"spec": {"dryRun": True}}).dry_run
    assert read_run(annotated).dry_run
    assert not read_run({"spec": {"dryRun": False}, "metadata": {"annotations": None}}).dry_run


def test_an_unfinished_run_that_nobody_works_on_is_told_with_how_long() -> None:
    inventory = RunInventory()
    for obj in (run("a", "Running"), run("b", "Pending"), run("c")):
        inventory.seen(obj)
    inventory.seen(run("d", "Running", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert inventory.unattended({"uid-a"}, 10.0) == {"uid-b": 0.0}
    assert inventory.unattended({"uid-a"}, 70.0) == {"uid-b": 60.0}
    assert inventory.unattended({"uid-a", "uid-b"}, 80.0) == {}
    assert inventory.unattended({"uid-a"}, 90.0) == {"uid-b": 0.0}


class Enough(Exception):
    pass


class Listed:
    """Takes what is listed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def replace(self, _: Resource, objects: Sequence[Any]) -> None:
        self.names = [obj["metadata"]["name"] for obj in objects]


class Scene:
    """A resync that runs until its clock reaches an end."""

    def __init__(self, fence: FakeFence | None = None, namespaces: Sequence[str] = ()) -> None:
        self.clock = FakeClock()
        self.api = FakeApi(self.clock)
        self.inventory = RunInventory()
        self.connections = Listed()
        self.active: set[str] = set()
        self.resync = Resync(
            api=self.api,  # type: ignore[arg-type]
            inventory=self.inventory,
            followers={ETCD_CONNECTIONS: (self.connections, Listed())},  # type: ignore[dict-item]
            fence=fence or FakeFence(),
            clock=self.clock,
            active=lambda: self.active,
            namespaces=namespaces,
        )

    async def until(self, seconds: float) -> None:
        sleep = FakeClock.sleep

        async def stopping(pause: float) -> None:
            await sleep(self.clock, pause)
            if self.clock.seconds >= seconds:
                raise Enough

        self.clock.sleep = stopping  # type: ignore[method-assign]
        with pytest.raises(Enough):
            await self.resync.run()

    def names(self) -> set[str]:
        return {name for plural, _, name in self.api.objects if plural == "etcddefrags"}


async def test_what_came_due_while_the_operator_was_down_goes_at_its_start() -> None:
    """D5: by listing, not by having seen it finish."""
    scene = Scene()
    scene.api.put(ETCD_DEFRAGS, run("old", spec={"ttlSecondsAfterFinished": 0}))
    scene.api.put(ETCD_DEFRAGS, run("soon", spec={"ttlSecondsAfterFinished": 30}))
    scene.api.put(ETCD_DEFRAGS, run("kept"))
    scene.api.put(ETCD_CONNECTIONS, {"metadata": {"name": "etcd"}})
    await scene.until(20.0)
    assert scene.names() == {"soon", "kept"}
    assert scene.connections.names == ["etcd"]
    await scene.until(36.0)
    assert scene.names() == {"kept"}


async def test_the_object_itself_decides_and_not_what_was_seen_of_it() -> None:
    """It may have been replaced by another of its name, or given more time."""
    scene = Scene()
    scene.api.put(ETCD_DEFRAGS, run("more", spec={"ttlSecondsAfterFinished": 9000}))
    scene.api.put(ETCD_DEFRAGS, run("other", "Running"))
    await scene.until(1.0)
    scene.inventory.seen(run("more", spec={"ttlSecondsAfterFinished": 0}))
    scene.inventory.seen(run("other", uid="uid-before", spec={"ttlSecondsAfterFinished": 0}))
    await scene.until(30.0)
    assert scene.names() == {"more", "other"}


async def test_an_api_server_that_is_away_ends_nothing() -> None:
    scene = Scene()
    scene.api.put(ETCD_DEFRAGS, run("old", spec={"ttlSecondsAfterFinished": 0}))
    scene.api.outages = 5
    await scene.until(60.0)
    assert scene.names() == set()


async def test_who_may_not_act_deletes_nothing() -> None:
    """D37."""
    clock = FakeClock()
    scene = Scene(FakeFence(clock, until=0.0))
    scene.api.put(ETCD_DEFRAGS, run("old", spec={"ttlSecondsAfterFinished": 0}))
    with pytest.raises(Exception, match="lost"):
        await scene.resync.run()
    assert scene.names() == {"old"}


async def test_an_orphan_is_confirmed_before_it_is_told() -> None:
    """A watch that missed a deletion must not restart the operator."""
    scene = Scene()
    scene.api.put(ETCD_DEFRAGS, run("orphan", "Running"))
    scene.api.put(ETCD_DEFRAGS, run("finished", "Running"))
    scene.api.put(ETCD_DEFRAGS, run("gone", "Running"))
    await scene.until(30.0)
    assert scene.resync.orphans == {}
    scene.api.put(ETCD_DEFRAGS, run("finished", "Complete"))
    del scene.api.objects["etcddefrags", "ns", "gone"]
    await scene.until(100.0)
    assert set(scene.resync.orphans) == {"uid-orphan"}
    scene.active = {"uid-orphan"}
    await scene.until(110.0)
    assert scene.resync.orphans == {}


async def test_a_namespace_that_is_gone_with_our_rights_hides_nothing_of_the_others() -> None:
    """D5: with a Role in each of them."""
    scene = Scene(namespaces=["doomed", "ns"])
    scene.api.put(ETCD_DEFRAGS, run("old", spec={"ttlSecondsAfterFinished": 0}))
    scene.api.put(ETCD_CONNECTIONS, {"metadata": {"name": "etcd"}})
    scene.api.forbidden = {"doomed"}
    await scene.until(20.0)
    assert scene.names() == set()
    assert scene.connections.names == ["etcd"]


async def test_what_may_not_be_listed_at_all_is_not_taken_for_gone() -> None:
    """A 401 in passing must not stop what was known."""
    scene = Scene()
    scene.api.put(ETCD_CONNECTIONS, {"metadata": {"name": "etcd"}})
    await scene.until(1.0)
    scene.connections.names = ["kept"]
    scene.api.forbidden = {""}
    await scene.until(700.0)
    assert scene.connections.names == ["kept"]


async def test_one_run_that_may_not_be_deleted_keeps_no_other_from_it() -> None:
    """D5."""
    scene = Scene()
    for name in ("a", "b", "c"):
        scene.api.put(ETCD_DEFRAGS, run(name, spec={"ttlSecondsAfterFinished": 0}))
    delete = scene.api.delete

    async def guarded(ref: Any, *, resource_version: str = "") -> None:
        if ref.name == "a":
            raise Rejected("an admission webhook says no")
        await delete(ref, resource_version=resource_version)

    scene.api.delete = guarded  # type: ignore[method-assign]  # replaced for this test
    await scene.until(20.0)
    assert scene.names() == {"a"}
