"""What a rescue does to a lock, in which order, and what becomes of it where a step fails (`pretended`).

tests/etcd/test_rescue.py has real servers that are really full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from etcdmaint.defrag import rescue
from etcdmaint.defrag.prefixes import Prefix
from etcdmaint.defrag.rescue import Findings, Rescue, Rescued
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import Ending, RunRequest
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import RPCTimeout

from .pretended import MIB, Rival, World, timeless

HEAD = 10


@dataclass
class Witnessed:
    """The history of a pretended etcd, and whoever looks on."""

    world: World
    cut: int = 0
    told: int = 0
    holder_after: str = ""
    """Who takes the cluster's lock once history is cut."""
    healed_meanwhile: bool = False
    stopped_at: str = ""
    """Somebody asks to stop when this is said."""
    said: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    async def compacted(self, member: object) -> int:
        return self.cut

    async def compact(self, members: Sequence[object], revision: int) -> None:
        self.cut = revision
        for member in self.world.members.values():
            member.in_use = 100 * MIB
        if self.holder_after:
            self.world.hold_slot(self.holder_after)

    async def is_told(self, member: object, revision: int) -> bool:
        return self.told >= revision

    async def publish(self, member: object, revision: int) -> bool:
        told, self.told = self.told, revision
        return told < revision

    def say(self, text: str) -> None:
        self.said.append(text)
        if self.stopped_at and self.stopped_at in text:
            self.world.stopping = True

    async def count_down(self, seconds: float, what: str) -> None:
        self.waited.append(seconds)
        if self.healed_meanwhile:
            self.world.set_nospace(False)


@pytest.fixture(autouse=True)
def _prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def largest(*_: object, **__: object) -> list[Prefix]:
        return [Prefix("/registry/events/", 3, 300, 30)]

    monkeypatch.setattr(rescue, "largest_prefixes", largest)


def full(*, live: bool = False) -> World:
    """NOSPACE is armed; where the members are full to the brim only less history helps."""
    world = World([0.1, 0.1, 0.1], nospace=True)
    if live:
        for member in world.members.values():
            member.db_size = member.in_use = 2000 * MIB
    return world


def rescuing(world: World, seen: Witnessed, *, break_lock: bool = False) -> Rescue:
    person = Rival(world, "person", holder="person@host")
    request = RunRequest(name="rescue", uid="uid", rule=Rule(), patience=0.0)

    def make_sweep(asked: RunRequest, breaks: bool) -> Sweep:
        changes: dict[str, Any] = {
            name: getattr(asked, name) for name in ("uid", "rule", "dry_run")
        }
        return person.sweep(break_lock=breaks, patience=0.0, **changes)

    return Rescue(
        request,
        make_sweep,
        surroundings=person,
        fence=person,
        history=seen,
        witness=seen,
        clock=person,
        timing=Timing(),
        break_lock=break_lock,
        connect=person.connect,  # type: ignore[arg-type]  # a stand-in of its shape
    )


async def look(world: World, seen: Witnessed, *, break_lock: bool = False) -> Findings:
    return await rescuing(world, seen, break_lock=break_lock).look()


async def heal(world: World, seen: Witnessed, *, break_lock: bool = False) -> Rescued:
    return await rescuing(world, seen, break_lock=break_lock).carry_out(5.0)


def holder(world: World) -> str:
    value = world.slot()
    return value.holder if value else ""


class TestTheLock:
    def test_a_look_breaks_none(self) -> None:
        """D61, D64: nobody has said yes yet; who holds it is told."""

        async def main() -> None:
            world = full()
            world.hold_slot("team-a/etcdmaint")
            found = await look(world, Witnessed(world), break_lock=True)
            assert holder(world) == "team-a/etcdmaint"
            assert found.holder.startswith("team-a/etcdmaint")
            refused = await look(world, Witnessed(world))
            assert refused.ending is Ending.HELD
            assert "held by team-a/etcdmaint" in refused.refusal

        timeless(main())

    def test_where_nothing_is_to_be_rescued_none_is_looked_at(self) -> None:
        """D61: nor is one taken: a look writes nothing."""

        async def main() -> None:
            world = World([0.1, 0.1, 0.1])
            world.hold_slot("team-a/etcdmaint")
            before = world.revision
            for break_lock in (False, True):
                found = await look(world, Witnessed(world), break_lock=break_lock)
                assert (found.ending, found.full, found.untold) == (Ending.DONE, (), False)
            assert (world.revision, world.longest_ttl) == (before, 0)
            assert holder(world) == "team-a/etcdmaint"

        timeless(main())

    def test_the_one_that_was_shown_is_broken_and_no_later_one(self) -> None:
        """D61, D63: somebody begins while history is being cut."""

        async def main() -> None:
            world = full(live=True)
            world.hold_slot("team-a/etcdmaint")
            seen = Witnessed(world, holder_after="team-b/etcdmaint")
            done = await heal(world, seen, break_lock=True)
            assert done.ending is Ending.HELD
            assert seen.cut > 0
            assert holder(world) == "team-b/etcdmaint"
            assert all(member.asked == 0 for member in world.members.values())

        timeless(main())


class TestTheSteps:
    def test_history_is_cut_only_where_giving_back_is_not_enough(self) -> None:
        """D40."""

        async def main(live: bool, cut: int, waited: list[float]) -> None:
            world = full(live=live)
            seen = Witnessed(world)
            done = await heal(world, seen)
            assert (done.ending, world.nospace) == (Ending.DONE, False)
            assert (seen.cut, seen.told, seen.waited) == (cut, cut, waited)
            assert [member.count for member in world.members.values()] == [1, 1, 1]

        timeless(main(False, 0, []))
        timeless(main(True, HEAD, [5.0]))

    def test_whoever_asks_to_stop_before_history_is_cut_keeps_it(self) -> None:
        """D7: at the last moment as well."""

        async def main() -> None:
            world = full(live=True)
            seen = Witnessed(world, stopped_at="will be dropped")
            assert (await heal(world, seen)).ending is Ending.STOPPED
            assert (seen.cut, world.nospace) == (0, True)

        timeless(main())

    def test_history_that_need_not_go_any_more_is_kept(self) -> None:
        """D40: five minutes are long enough for somebody else to heal it."""

        async def main() -> None:
            world = full(live=True)
            seen = Witnessed(world, healed_meanwhile=True)
            assert (await heal(world, seen)).ending is Ending.DONE
            assert (seen.cut, seen.waited) == (0, [5.0])
            assert all(member.asked == 0 for member in world.members.values())

        timeless(main())

    def test_the_last_is_made_up_for_where_it_was_killed_before_it(self) -> None:
        """D2: NOSPACE is disarmed, but API servers believe in history that is gone."""

        async def main() -> None:
            world = World([0.1, 0.1, 0.1])
            seen = Witnessed(world, cut=HEAD, told=HEAD - 1)
            assert (await look(world, seen)).untold
            done = await heal(world, seen)
            assert (done.ending, seen.told) == (Ending.DONE, HEAD)
            assert all(member.asked == 0 for member in world.members.values())
            assert not (await look(world, seen)).untold

        timeless(main())

    def test_it_is_healed_also_where_it_cannot_be_told_what_filled_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def hangs(*_: object, **__: object) -> list[Prefix]:
            raise RPCTimeout("no answer")

        async def main() -> None:
            world = full()
            seen = Witnessed(world)
            done = await heal(world, seen)
            assert (done.ending, done.prefixes) == (Ending.DONE, ())
            assert "no answer" in seen.said[-1]

        monkeypatch.setattr(rescue, "largest_prefixes", hangs)
        timeless(main())
