"""Moments of a sweep that real etcd shows only by luck, each set up by a pretended one (`pretended`)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from etcdmaint.defrag.lock import SLOT_KEY, SlotValue
from etcdmaint.defrag.queue import RunQueue
from etcdmaint.defrag.run import (
    IN_FLIGHT,
    Ending,
    MemberRow,
    Outcome,
    Phase,
    RecordRefused,
    RunGone,
    RunState,
)
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import AuthenticationFailed, ClusterNotHealthy, LeadershipLost
from etcdmaint.etcd.endpoint import Endpoint

from .pretended import (
    MIB,
    Fault,
    PretendedCluster,
    Process,
    Rival,
    TimelessLoop,
    World,
    now,
    timeless,
)


def rows(world: World, **changes: Any) -> RunState:
    """A run that has begun; nobody has had a turn, but for what is changed of the first row."""
    found = tuple(MemberRow(name=f"m{i}", member_id=i) for i in world.members)
    return RunState(phase=Phase.RUNNING, rows=(replace(found[0], **changes), *found[1:]))


def in_flight(state: RunState) -> bool:
    return any(row.in_flight for row in state.rows)


class TestTheSlot:
    def test_it_outlives_a_member_that_blocks_for_longer_than_its_ttl(self) -> None:
        """D33: the member in doubt is not the one by which the lease is kept alive."""
        world = World([400.0, 0.5, 0.5], leader=2)
        world.members[1].db_size *= 2

        async def main() -> None:
            result = await Process(world, "1").sweep().run()
            assert (result.ending, result.state.rows[0].reason) == (Ending.FAILED, "RPCTimeout")
            await asyncio.gather(*world.working)

        timeless(main())

    def test_its_ttl_covers_the_members_that_a_successor_has_yet_to_do(self) -> None:
        """D61: the sizes of all are in the record from the beginning."""
        world = World([1.0, 1.0, 1.0])
        world.members[3].db_size = world.members[3].in_use = 9000 * MIB
        first = Process(world, "1")

        def stop(state: RunState) -> None:
            world.stopping = state.defragmented == 1

        first.on_record = stop
        stopped = timeless(first.sweep().run())
        assert stopped.ending is Ending.STOPPED
        world.stopping, world.longest_ttl = False, 0
        timeless(Process(world, "2").sweep().run(world.state))
        assert world.longest_ttl >= Timing().member_timeout(9000 * MIB) + 60

    def test_its_lease_is_fresh_when_a_member_is_asked(self) -> None:
        """D61: no beat may come through while the leader blocks, up to the member's timeout."""
        world = World([1.0])
        world.members[1].in_use = 15000 * MIB
        world.members[1].db_size = 16000 * MIB
        process = Process(world, "1")
        lasts: list[float] = []

        async def main() -> None:
            process.on_turn = lambda turn: lasts.append(
                max(u for _, u in world.leases.values()) - now()
            )
            process.on_record = lambda state: setattr(
                process, "still_until", now() + 300.0 if in_flight(state) else 0.0
            )
            await process.sweep().run()

        timeless(main())
        assert lasts[0] > Timing().member_timeout(15000 * MIB)

    def test_it_is_given_back_when_the_object_has_gone_and_nobody_is_at_it(self) -> None:
        """D61: a force-deleted EtcdDefrag keeps no other run waiting."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        def vanish(state: RunState) -> None:
            process.vanished = in_flight(state)
            if process.vanished:
                raise RunGone("deleted by force")

        process.on_record = vanish

        async def main() -> None:
            with pytest.raises(RunGone):
                await process.sweep().run()
            assert world.slot() is None

        timeless(main())
        assert [member.asked for member in world.members.values()] == [0, 0]

    def test_it_stays_when_the_object_has_gone_while_a_member_may_be_at_it(self) -> None:
        """D33: others keep off until it expires."""
        world = World([400.0, 400.0])
        process = Process(world, "1")

        def vanish(state: RunState) -> None:
            process.vanished = any(row.in_doubt for row in state.rows) and not in_flight(state)
            if process.vanished:
                raise RunGone("deleted by force")

        process.on_record = vanish

        async def main() -> None:
            with pytest.raises(RunGone):
                await process.sweep().run()
            assert world.slot() is not None

        timeless(main())

    def test_a_member_in_doubt_is_waited_for_though_the_object_has_gone(self) -> None:
        """D7, D33: and then the slot is free at once."""
        world = World([400.0, 400.0], leader=1)
        process = Process(world, "1")

        def vanish(state: RunState) -> None:
            process.vanished = state.reason == "WaitingForMember"

        process.on_record = vanish

        async def main() -> None:
            with pytest.raises(RunGone):
                await process.sweep().run()
            assert now() > 400
            assert world.slot() is None

        timeless(main())

    def test_it_stays_at_the_deadline_while_a_member_may_be_at_it(self) -> None:
        """D33, D4: and the record says so."""
        world = World([9000.0, 1.0])

        async def main() -> None:
            result = await Process(world, "1").sweep().run()
            assert result.state.reason == "DeadlineExceeded"
            assert "may still be at it" in result.state.message
            assert world.slot() is not None

        timeless(main())

    def test_it_stays_while_a_member_that_is_asked_again_may_be_at_it(self) -> None:
        """D33, D36: that it was idle before counts for nothing."""
        world = World([9000.0, 1.0], leader=2)
        before = rows(world, reason=IN_FLIGHT, db_size_in_use_before=100 * MIB)

        async def main() -> None:
            result = await Process(world, "1").sweep().run(before)
            assert (result.state.rows[0].reason, world.members[1].asked) == ("RPCTimeout", 1)
            assert "the cluster's slot stays until it expires" in result.state.message
            assert world.slot() is not None

        timeless(main())

    def test_lost_before_the_run_has_begun_it_is_waited_for_again(self) -> None:
        """D3, D37: nothing was touched, so nothing is over."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        def break_it(effect: Any) -> None:
            if not process.events and world.slot() is not None:
                process.events.append("broken")
                world.hold_slot("ann@far", seconds=60)

        at = process.at

        async def watched(what: str, effect: Any, *, sent: bool = False) -> Any:
            found = await at(what, effect, sent=sent)
            if what == "txn":
                break_it(effect)
            return found

        process.at = watched  # type: ignore[method-assign]
        result = timeless(process.sweep().run())
        assert result.ending is Ending.DONE, result.state.message
        assert "DefragDeferred" in process.events

    def test_the_lock_of_whoever_came_meanwhile_is_not_broken(self) -> None:
        """D63: another one than was looked at, however often it is tried."""
        world = World([1.0, 1.0])
        process = Process(world, "1")
        at = process.at

        async def overtaken(what: str, effect: Any, *, sent: bool = False) -> Any:
            if what == "txn" and (slot := world.slot()) and slot.holder == "ann@far":
                world.hold_slot("bob@near", lease=8)
            return await at(what, effect, sent=sent)

        process.at = overtaken  # type: ignore[method-assign]

        async def main() -> None:
            world.hold_slot("ann@far", lease=7)
            result = await process.sweep(break_lock=True, patience=30.0).run()
            assert result.ending is Ending.HELD
            assert "bob@near" in result.state.message

        timeless(main())

    def test_a_lock_that_could_not_be_looked_at_is_still_broken(self) -> None:
        """D63: it is the one that its owner means."""
        world = World([1.0], strikes={"range": Fault.REQUEST_LOST})

        async def main() -> None:
            world.hold_slot("ann@far", lease=7)
            result = await Process(world, "1").sweep(break_lock=True, patience=30.0).run()
            assert result.ending is Ending.DONE

        timeless(main())

    def test_somebody_elses_lease_is_never_revoked(self) -> None:
        """D63: what else hangs on it is not known."""
        world = World([1.0])

        async def main() -> None:
            world.hold_slot("ann@far", lease=7)
            result = await Process(world, "1").sweep(break_lock=True, patience=0.0).run()
            assert result.ending is Ending.DONE
            assert world.leases[7][1] > now()

        timeless(main())

    def test_a_lock_is_broken_under_nospace_too_and_only_the_one_that_was_seen(self) -> None:
        """D63, D64: who takes it afterwards has it."""
        world = World([1.0, 1.0], nospace=True)
        process = Process(world, "1")

        def taken_meanwhile(state: RunState) -> None:
            if in_flight(state):
                world.set_nospace(False)
                world.hold_slot("bob@near", lease=8)

        process.on_record = taken_meanwhile

        async def main() -> None:
            world.hold_slot("ann@far", lease=7)
            result = await process.sweep(break_lock=True, patience=0.0).run()
            assert result.ending is Ending.HELD
            assert "bob@near" in result.state.message
            slot = world.slot()
            assert slot is not None
            assert slot.holder == "bob@near"

        timeless(main())
        assert [member.asked for member in world.members.values()] == [0, 0]

    def test_a_lost_answer_to_its_taking_does_not_lose_the_mark_of_a_predecessor(self) -> None:
        """D36, D61: the evidence is in the slot and nowhere else."""
        world = World([1.0, 1.0], strikes={"txn": Fault.ANSWER_LOST})
        before = rows(world, reason=IN_FLIGHT, db_size_in_use_before=100 * MIB)
        marked = SlotValue(
            holder="ns/etcdmaint/uid",
            epoch="0",
            uid="uid",
            member=1,
            defrag_count=0,
            process_start=0.0,
        )

        async def main() -> None:
            world.hold_slot("")
            world.keys[SLOT_KEY] = world.keys[SLOT_KEY]._replace(value=marked.encode())
            result = await Process(world, "1").sweep().run(before)
            assert result.ending is Ending.DONE

        world.members[1].count = 1
        world.members[1].db_size = 590 * MIB
        timeless(main())
        assert world.members[1].asked == 0
        assert "nobody watched" in world.state.rows[0].message

    @pytest.mark.parametrize(
        "strikes",
        [
            {"txn": Fault.ANSWER_LOST, "revoke": Fault.REQUEST_LOST},
            {"txn": Fault.DIES_AFTER},
        ],
        ids=["its answer is lost", "its holder dies"],
    )
    def test_one_that_is_taken_anew_proves_nothing_about_a_member_in_flight(
        self, strikes: dict[str, Fault]
    ) -> None:
        """D36: the mark of who had asked it has expired; that there is none now is our own doing."""
        world = World([1.0, 1.0], strikes=strikes)
        world.state = rows(world, reason=IN_FLIGHT, db_size_before=600 * MIB)
        world.members[1].db_size, world.members[1].count = 100 * MIB, 1

        async def main() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await Process(world, "1").sweep().run(world.state)
            await asyncio.sleep(1)
            if not world.state.phase.terminal:
                await Process(world, "2").sweep().run(world.state)

        timeless(main())
        assert world.state.phase is Phase.COMPLETE
        assert (world.state.rows[0].reason, world.members[1].asked) == ("InferredFromSize", 0)

    def test_without_it_no_alarm_is_disarmed(self) -> None:
        """D37: a run that was never admitted has nothing to tidy up."""
        world = World([1.0], nospace=True)

        async def main() -> None:
            world.hold_slot("ann@far")
            # Near the end of the hour that it has.
            result = await Process(world, "1").sweep(age=3500.0).run(rows(world))
            assert result.state.reason == "DeadlineExceeded"

        timeless(main())
        assert world.nospace


class TestTheLastChecks:
    def test_the_gate_is_judged_again_when_marking_the_slot_takes_long(self) -> None:
        """D10: a member may have gone down meanwhile."""
        world = World([1.0, 1.0, 1.0])
        process = Process(world, "1")

        async def main() -> None:
            def go_down(state: RunState) -> None:
                if in_flight(state):
                    process.on_record = None
                    world.members[3].down = True
                    world.strikes["range"] = Fault.REQUEST_LOST
                    loop.call_later(60, setattr, world.members[3], "down", False)

            loop = asyncio.get_running_loop()
            process.on_record = go_down
            result = await process.sweep().run()
            assert result.ending is Ending.DONE
            assert now() > 60

        timeless(main())

    def test_a_member_that_is_removed_before_it_is_asked_is_gone(self) -> None:
        """D39: the run does not wait for it until the deadline."""
        world = World([1.0, 1.0, 1.0], strikes={"keepalive": Fault.REQUEST_LOST}, leader=1)
        process = Process(world, "1")

        def remove(state: RunState) -> None:
            if in_flight(state):
                world.members.pop(next(r.member_id for r in state.rows if r.in_flight), None)
                process.on_record = None

        process.on_record = remove

        async def main() -> None:
            result = await process.sweep().run()
            assert result.state.reason == "MemberGone"
            assert now() < 60

        timeless(main())

    def test_a_follower_that_has_become_leader_meanwhile_waits_for_its_turn(self) -> None:
        """D30, D31: it is decided anew, with a transfer."""
        world = World([1.0, 1.0, 1.0], strikes={"keepalive": Fault.REQUEST_LOST})
        process = Process(world, "1")
        asked: list[int] = []

        def elect(state: RunState) -> None:
            for row in state.rows:
                if row.in_flight and not asked:
                    world.leader, world.term = row.member_id, world.term + 1
                    asked.append(row.member_id)

        process.on_record = elect
        order: list[int] = []
        process.on_turn = lambda turn: order.append(turn.row.member_id)
        result = timeless(process.sweep().run())
        assert result.ending is Ending.DONE
        assert order[-1] == asked[0]

    def test_a_terminal_that_stands_still_lets_nothing_be_sent_without_the_slot(self) -> None:
        """D37: the slot is read after everything that may take time."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        def stand_still(turn: object) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, TimelessLoop)
            loop.jump(600.0)

        process.on_turn = stand_still
        result = timeless(process.sweep().run())
        assert (result.ending, result.state.reason) == (Ending.HELD, "SlotLost")
        assert [member.asked for member in world.members.values()] == [0, 0]

    def test_a_process_that_stood_still_while_it_asked_who_the_member_is_sends_nothing(
        self,
    ) -> None:
        """D37, D62: the Lease is looked at after everything that takes time."""
        world = World([1.0], strikes={"confirm": Fault.STANDS_STILL_FOR_LONG})

        async def main() -> None:
            with pytest.raises(LeadershipLost):
                await Process(world, "1").sweep().run()

        timeless(main())
        assert world.members[1].asked == 0
        assert world.state.rows[0].in_flight, "whoever leads next finds out"

    def test_an_etcd_that_was_downgraded_in_mid_sweep_is_refused(self) -> None:
        """D17: judged before every member."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        def downgrade(state: RunState) -> None:
            if state.defragmented:
                world.members[1].version = "3.5.4"

        process.on_record = downgrade
        result = timeless(process.sweep().run())
        assert (result.ending, result.state.reason) == (Ending.UNSAFE, "UnsafeEtcdVersion")
        assert sum(member.asked for member in world.members.values()) == 1

    def test_endpoints_that_lead_to_another_cluster_in_mid_sweep_are_not_followed(self) -> None:
        """D12, D37: the slot is held in the first one."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        class Another(PretendedCluster):
            cluster_id = 0xC2

        def lead_astray(state: RunState) -> None:
            if state.defragmented:
                process.target = replace(process.target, seeds=(Endpoint("other", 2379),))
                process.cluster = Another

        process.on_record = lead_astray

        async def main() -> None:
            result = await process.sweep(patience=0.0).run()
            assert result.state.reason == "WrongMember"
            assert world.slot() is None

        timeless(main())

    def test_leadership_that_has_moved_all_the_same_is_recorded_as_moved(self) -> None:
        """D31: what the members say counts, not what became of the RPC."""
        world = World([1.0, 1.0], strikes={"move leader": Fault.ANSWER_LOST})
        process = Process(world, "1")
        result = timeless(process.sweep().run())
        assert "LeadershipTransferred" in process.events
        assert "LeadershipTransferFailed" not in process.events
        assert "leadership moved to m2" in result.state.rows[0].message


class TestTheWayThere:
    def test_credentials_that_change_between_two_members_are_read_again(self) -> None:
        """D51: also while the cluster settles."""
        world = World([1.0, 1.0])
        process = Process(world, "1")
        refused: list[int] = []

        class Guarded(PretendedCluster):
            def __init__(self, process: Process) -> None:
                super().__init__(process)
                self.seeds = process.target.seeds

            async def statuses(self, timeout: float) -> Any:
                if self.seeds != process.target.seeds:
                    refused.append(1)
                    return dict.fromkeys(world.members, AuthenticationFailed("old credentials"))
                return await super().statuses(timeout)

        def rotate(state: RunState) -> None:
            if state.defragmented == 1:
                process.target = replace(process.target, seeds=(Endpoint("rotated", 2379),))

        process.cluster, process.on_record = Guarded, rotate

        async def main() -> None:
            result = await process.sweep().run()
            assert result.ending is Ending.DONE
            assert now() < 60

        timeless(main())
        assert not refused


class TestTheDeadline:
    def test_a_run_resumed_after_it_touches_nobody(self) -> None:
        """D4: it bounds waiting and running together."""
        world = World([1.0, 1.0])
        result = timeless(Process(world, "1").sweep(age=5000.0).run(rows(world)))
        assert (result.ending, result.state.reason) == (Ending.FAILED, "DeadlineExceeded")
        assert [member.asked for member in world.members.values()] == [0, 0]

    def test_a_member_whose_turn_may_outlast_it_is_not_begun(self) -> None:
        """D4: after a long pause, say."""
        world = World([1.0, 1.0])
        result = timeless(Process(world, "1").sweep(age=3550.0).run(rows(world)))
        assert result.state.reason == "DeadlineExceeded"
        assert [member.asked for member in world.members.values()] == [0, 0]


class TestNospace:
    def test_the_gate_is_judged_again_under_a_slot_that_is_taken_at_last(self) -> None:
        """D61, D64: who goes without one may have asked a member while it was taken."""
        world = World([1.0, 1.0, 20.0], nospace=True, leader=2)
        process = Process(world, "1")
        at = process.at

        async def rivalled(what: str, effect: Any, *, sent: bool = False) -> Any:
            if what == "grant" and in_flight(world.state) and world.nospace:
                world.set_nospace(False)
            if what == "txn" and not world.members[3].asked:
                rival = Rival(world, "2", holder="ann@far", own=rows(world))
                rival.own = replace(rival.own, rows=(in_flight_row,))
                world.begin(rival, world.members[3])
            return await at(what, effect, sent=sent)

        in_flight_row = MemberRow(name="m3", member_id=3, reason=IN_FLIGHT)
        process.at = rivalled  # type: ignore[method-assign]

        async def main() -> None:
            await process.sweep().run()
            await asyncio.gather(*world.working)

        timeless(main())
        assert world.members[1].asked == 1

    def test_a_gate_that_refuses_under_that_slot_is_judged_until_it_does_not(self) -> None:
        """D61: that it was passed a moment before says nothing any more."""
        world = World([1.0, 1.0], nospace=True, leader=2)
        process = Process(world, "1")
        at = process.at
        healthy: list[float] = []
        turns: list[float] = []

        async def relieved(what: str, effect: Any, *, sent: bool = False) -> Any:
            if what == "grant" and in_flight(world.state):
                world.set_nospace(False)
            if what == "txn" and not healthy:
                healthy.append(now() + 3.0)
            return await at(what, effect, sent=sent)

        class Split(PretendedCluster):
            async def refresh(self) -> None:
                if healthy and now() < healthy[0]:
                    raise ClusterNotHealthy("MixedClusters", "two clusters")
                await super().refresh()

        process.at = relieved  # type: ignore[method-assign]
        process.cluster = Split
        process.on_turn = lambda turn: turns.append(now()) if turn.row.in_flight else None
        assert timeless(process.sweep().run()).ending is Ending.DONE
        assert turns[0] >= healthy[0]

    def test_coming_up_in_mid_sweep_it_does_not_hold_the_sweep_up(self) -> None:
        """D64: the slot is ours already, though it cannot be written."""
        world = World([1.0, 1.0, 1.0])
        process = Process(world, "1")
        process.on_record = lambda state: world.set_nospace(state.defragmented == 1)

        async def main() -> None:
            result = await process.sweep().run()
            assert result.ending is Ending.DONE, result.state.message
            assert now() < 120

        timeless(main())
        assert [member.asked for member in world.members.values()] == [1, 1, 1]

    def test_gone_in_mid_sweep_the_slot_is_taken(self) -> None:
        """D37, D64: others can take it now."""
        world = World([1.0, 1.0], nospace=True)
        process = Process(world, "1")
        slots: list[SlotValue | None] = []

        def relieve(state: RunState) -> None:
            if state.defragmented:
                world.set_nospace(False)

        process.on_record = relieve
        process.on_turn = lambda turn: slots.append(world.slot()) if turn.row.in_flight else None
        assert timeless(process.sweep().run()).ending is Ending.DONE
        assert slots[0] is None
        assert slots[1] is not None

    def test_a_turn_of_ours_that_ran_into_its_timeout_is_not_called_somebody_elses(self) -> None:
        """D64."""
        world = World([90.0, 90.0], nospace=True)
        result = timeless(Process(world, "1").sweep().run())
        assert (result.ending, result.state.reason) == (Ending.FAILED, "MemberFailed")

    def test_it_makes_no_proof_of_a_mark_that_could_not_be_written(self) -> None:
        """D36: nobody is asked twice for it."""
        world = World([1.0, 1.0], nospace=True)
        before = rows(world, reason=IN_FLIGHT)
        marked = SlotValue(holder="ns/etcdmaint/uid", epoch="0", uid="uid", member=2)

        async def main() -> None:
            world.hold_slot("")
            world.keys[SLOT_KEY] = world.keys[SLOT_KEY]._replace(value=marked.encode())
            await Process(world, "1").sweep().run(before)

        world.members[1].db_size = 150 * MIB
        timeless(main())
        assert world.members[1].asked == 0
        assert world.state.rows[0].reason == "InferredFromSize"


class TestWaiting:
    def test_the_record_names_who_is_waited_for_now_and_the_event_tells_each_reason_once(
        self,
    ) -> None:
        """D19: the same reason may be about another member a minute later."""
        world = World([1.0, 1.0, 1.0])
        world.members[2].down = True
        process = Process(world, "1")
        told: list[str] = []
        process.on_record = lambda state: told.append(f"{state.reason}: {state.message}")

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(300.0, setattr, world.members[3], "down", True)
            loop.call_later(300.0, setattr, world.members[2], "down", False)
            loop.call_later(600.0, setattr, world.members[3], "down", False)
            result = await process.sweep().run()
            assert result.ending is Ending.DONE

        timeless(main())
        waits = [each for each in told if each.startswith("RPCTimeout")]
        assert {each.split()[2] for each in waits} == {"m2:", "m3:"}
        assert len(waits) == 2, "what has not changed is not written again"
        assert process.events.index("DefragDeferred") == 0
        assert process.events[1] == "Running"

    def test_asked_to_stop_while_it_is_admitted_it_does_not_begin(self) -> None:
        """D1, D3: a process that ends leaves no second run Running beside the one that it left."""
        world = World([1.0, 1.0])
        process = Process(world, "1")

        async def main() -> None:
            # The sizes are waited for by then, under the slot.
            asyncio.get_running_loop().call_later(0.2, setattr, world, "stopping", True)
            result = await process.sweep().run()
            assert (result.ending, result.state.phase) == (Ending.STOPPED, Phase.PENDING)
            assert (world.state.phase, process.events) == (Phase.PENDING, [])
            assert world.longest_ttl > 0
            assert world.slot() is None

        timeless(main())


class TestTheEnd:
    def test_it_is_recorded_though_the_endpoints_lead_to_two_clusters_by_then(self) -> None:
        """D12, D40: no alarm is disarmed, and the run is over all the same."""
        world = World([1.0], nospace=True)
        process = Process(world, "1")

        class Mixed(PretendedCluster):
            async def refresh(self) -> None:
                if world.state.defragmented:
                    raise ClusterNotHealthy("MixedClusters", "two clusters")
                await super().refresh()

        process.cluster = Mixed
        result = timeless(process.sweep().run())
        assert result.state.phase is Phase.COMPLETE
        assert "two clusters" in result.state.message
        assert world.nospace


class TestARecordThatMayNotBeWritten:
    @pytest.mark.parametrize("deleted", [False, True])
    def test_it_holds_no_cluster_and_loses_nothing(self, deleted: bool) -> None:
        """D2, D4, D7, D32: others may have the cluster; what is known is written as soon as it may be."""
        world = World([1.0, 1.0])
        held: list[bool] = []

        class Refused(Process):
            async def record(self, state: RunState) -> None:
                if in_flight(world.state) and len(held) < 3:
                    held.append(world.slot() is not None)
                    world.stopping = deleted
                    await self.sleep(600.0)
                    raise RecordRefused("no")
                await super().record(state)

        result = timeless(Refused(world, "1").sweep().run())
        assert held == [True, False, False]
        assert result.ending is Ending.STOPPED
        assert world.state == result.state
        assert world.state.defragmented == 1
        world.stopping = False
        again = timeless(Process(world, "1").sweep().run(world.state))
        assert again.ending is Ending.DONE
        assert [member.asked for member in world.members.values()] == [1, 1]

    def test_its_end_is_written_and_told_too_as_soon_as_it_may_be(self) -> None:
        """D1, D4, D19: once each, and not before."""
        world = World([1.0])
        refusals = [RecordRefused("no")] * 2

        class Refused(Process):
            async def record(self, state: RunState) -> None:
                if state.phase.terminal and refusals:
                    assert world.slot() is None
                    raise refusals.pop()
                assert "Complete" not in self.events
                await super().record(state)

        process = Refused(world, "1")
        result = timeless(process.sweep().run())
        assert (result.ending, world.state.phase) == (Ending.DONE, Phase.COMPLETE)
        assert process.events == ["Running", "MemberDefragmented", "Complete"]

    def test_a_beginning_that_was_not_written_is_none(self) -> None:
        """D1, D8: a run that somebody has made a dry run meanwhile must not have begun."""
        world = World([1.0, 1.0])
        refusals = [RecordRefused("no")] * 3

        class Refused(Process):
            async def record(self, state: RunState) -> None:
                if refusals and (len(refusals) < 3 or state.phase is Phase.RUNNING):
                    raise refusals.pop()
                await super().record(state)

        process = Refused(world, "1")
        result = timeless(process.sweep().run())
        assert (result.ending, result.state) == (Ending.STOPPED, world.state)
        assert (world.state.phase, world.state.rows, process.events) == (Phase.PENDING, (), [])
        assert world.state.reason == "Forbidden", "which the runbook has"
        assert not refusals, "it waits for the right, and holds no cluster meanwhile"
        again = timeless(Process(world, "1").sweep(dry_run=True).run(world.state))
        assert again.ending is Ending.DONE
        assert [member.asked for member in world.members.values()] == [0, 0]

    def test_an_end_that_is_not_written_is_none(self) -> None:
        """D1, D2: a process that stops leaves it to its successor, which tells it as well."""
        world = World([1.0])

        class Refused(Process):
            async def record(self, state: RunState) -> None:
                if state.phase.terminal:
                    world.stopping = True
                    raise RecordRefused("no")
                await super().record(state)

        process = Refused(world, "1")
        result = timeless(process.sweep().run())
        assert (result.ending, result.state) == (Ending.STOPPED, world.state)
        assert "Complete" not in process.events

    def test_the_cluster_is_kept_for_a_member_that_may_be_at_it(self) -> None:
        """D33: and is free once it is proven idle."""
        world = World([400.0, 1.0], leader=2)

        class Refused(Process):
            async def record(self, state: RunState) -> None:
                if not in_flight(state) and any(row.in_doubt for row in state.rows):
                    busy = world.members[1].busy is not None
                    assert busy == (world.slot() is not None)
                    if busy:
                        await self.sleep(150.0)
                        raise RecordRefused("no")
                await super().record(state)

        result = timeless(Refused(world, "1").sweep().run())
        assert result.ending is Ending.STOPPED
        assert world.state.rows[0].reason == "RPCTimeout"


class TestOnResume:
    def test_a_run_that_has_begun_is_none_the_less_for_being_called_a_dry_run(self) -> None:
        """D8, D36: the annotation came too late, and a member may be at it."""
        world = World([1.0, 1.0])
        before = rows(world, reason=IN_FLIGHT, db_size_before=600 * MIB)
        result = timeless(Process(world, "1").sweep(dry_run=True).run(before))
        assert result.ending is Ending.DONE
        assert {row.outcome for row in result.state.rows} == {Outcome.DEFRAGMENTED}

    def test_a_paused_run_still_looks_after_its_member_in_flight(self) -> None:
        """D9, D36: no further member is touched."""
        world = World([1.0, 1.0])
        process = Process(world, "1")
        process.target = replace(process.target, paused="somebody says so")
        result = timeless(process.sweep(patience=60.0).run(rows(world, reason=IN_FLIGHT)))
        assert result.state.reason == "Paused"
        assert {row.outcome for row in result.state.rows} == {Outcome.SKIPPED}
        assert [member.asked for member in world.members.values()] == [0, 0]

    @pytest.mark.parametrize("after", [0.0, 0.01])
    def test_asked_to_stop_it_still_waits_for_its_member_in_flight(self, after: float) -> None:
        """D7: however long it takes; also if it was deleted before this process began."""
        world = World([1.0, 1.0])
        world.stopping = not after
        process = Process(world, "2")

        async def main() -> None:
            world.state = rows(world, reason=IN_FLIGHT, db_size_before=600 * MIB)
            world.begin(replace(process, epoch="1", holder=process.holder), world.members[1])
            stopped = process.sweep().run(world.state)
            asyncio.get_running_loop().call_later(after, setattr, world, "stopping", True)
            result = await stopped
            assert result.ending is Ending.STOPPED
            assert result.state.rows[0].outcome is Outcome.DEFRAGMENTED

        world.members[1].takes = 100.0
        world.nospace_changed = 0.0
        timeless(main())

    def test_a_member_in_doubt_that_is_removed_is_waited_for_no_more(self) -> None:
        """D33, D39."""
        world = World([1.0, 1.0])
        before = rows(world, outcome=Outcome.FAILED, reason="RPCTimeout")
        world.members.pop(1)

        async def main() -> None:
            result = await Process(world, "1").sweep().run(before)
            assert result.state.reason == "MemberFailed"
            assert now() < 60

        timeless(main())

    def test_it_goes_before_an_older_run_that_has_not_begun(self) -> None:
        """D3: else each would wait for the other, one for the slot and one for its turn."""
        world = World([1.0, 1.0])
        queue = RunQueue()
        older, resumed = Process(world, "1"), Process(world, "1")

        async def main() -> None:
            world.hold_slot("")
            ours = SlotValue(holder=resumed.holder, epoch="0", uid="uid")
            world.keys[SLOT_KEY] = world.keys[SLOT_KEY]._replace(value=ours.encode())
            older.active.add("uid")
            begun = resumed.sweep(queue=queue, created="2", cluster_ref="b").run(rows(world))
            waits = older.sweep(
                queue=queue, created="1", cluster_ref="a", name="a/older", uid="older", patience=600
            )
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(waits.run())
                await asyncio.sleep(3)
                assert (await begun).ending is Ending.DONE
                assert now() < 60
                waiting.cancel()

        world.record = lambda state: setattr(world, "state", state)  # type: ignore[method-assign]
        timeless(main())
