"""What goes wrong in a sweep, on real etcd: nobody is defragmented twice, nobody at once, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from etcdmaint.defrag.lock import SLOT_KEY
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import Ending, LeaderTransfer, MemberTurn, Outcome, Phase
from etcdmaint.errors import ClusterNotHealthy, LeadershipLost
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.member import Member
from tests.controlplane.processes import wait_until

from .sweeping import MIB, QUICK, World, counts, request, row, run, sweep, target

pytestmark = pytest.mark.etcd


async def eventually(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for a condition while the sweep goes on in the same loop."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the condition is etcd's, not this loop's
            await asyncio.sleep(0.02)


def fragmented(factory: EtcdClusterFactory, **options: object) -> EtcdCluster:
    cluster = factory(**options)
    cluster.fill(bytes_deleted=10 * MIB)
    return cluster


class TestMembersThatAreAway:
    async def test_a_member_down_at_the_start_defers_the_run_and_nothing_is_sent(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D11, D19: one event while the reason stays the same; it begins once the member is back."""
        cluster = fragmented(etcd_cluster_factory)
        away = cluster.followers()[0]
        away.kill()
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        running = asyncio.create_task(run(world))
        await eventually(lambda: "DefragDeferred" in world.reasons, "the run is deferred")
        await asyncio.sleep(1.0)
        assert world.states[-1].phase is Phase.PENDING
        assert away.name in world.states[-1].message
        assert world.reasons.count("DefragDeferred") <= 2
        assert counts_of(m for m in cluster.members if m is not away) == [0, 0]
        away.start()
        result = await running
        assert result.ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]

    async def test_a_member_going_down_between_two_turns_holds_the_sweep(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D10, D14: the gate is judged before every member."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        last = cluster.leader()

        def after_first(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED and len(world.turns) == 2:
                last.pause()

        world.on_turn = after_first
        running = asyncio.create_task(run(world))
        try:
            await eventually(lambda: world.reasons.count("DefragDeferred") > 0, "the sweep waits")
            assert world.states[-1].phase is Phase.RUNNING
            assert sum(r.outcome is Outcome.DEFRAGMENTED for r in world.states[-1].rows) == 1
        finally:
            last.resume()
        result = await running
        assert result.ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]

    async def test_when_the_gate_defers_for_longer_than_the_patience_the_run_ends(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D19: the command line does not wait unless it is told to."""
        cluster = fragmented(etcd_cluster_factory)
        cluster.followers()[0].kill()
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        result = await run(world, request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert result.state.reason == "MemberUnreachable"

    async def test_without_a_leader_nothing_is_touched(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D13: etcd itself would defragment a member without a quorum."""
        cluster = fragmented(etcd_cluster_factory)
        left, *others = cluster.members
        for other in others:
            other.kill()
        world = World(target(cluster))
        result = await run(world, request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert counts_of([left]) == [0]


def seeds(cluster: EtcdCluster) -> tuple[Endpoint, ...]:
    return tuple(Endpoint.parse(url) for url in cluster.client_urls)


def counts_of(members: object) -> list[float]:
    return [member.defrag_count() for member in members]


class TestATurnThatDoesNotEnd:
    async def test_after_a_timeout_no_other_member_is_touched_until_it_is_proven_idle(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D33, D34: never retried, never sent twice, the slot kept, the run Failed."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        with contextlib.ExitStack() as stack:
            first: list[str] = []

            def turn(turn: MemberTurn) -> None:
                if not first:
                    first.append(turn.row.name)
                    stack.enter_context(cluster.hold_snapshot(by_name(cluster, turn.row.name)))

            world.on_turn = turn
            # A slot that would be gone after 5 s, were it not kept alive by way of another member.
            timing = replace(QUICK, member_timeout=lambda _: 2.0, slot_margin=3.0)
            running = asyncio.create_task(run(world, timing=timing))
            await eventually(
                lambda: bool(world.states) and world.states[-1].reason == "WaitingForMember",
                "the run waits for the member",
            )
            await asyncio.sleep(7.0)
            assert not running.done()
            others = [m for m in cluster.members if m.name != first[0]]
            assert counts_of(others) == [0, 0]
            assert cluster.etcdctl("get", SLOT_KEY.decode(), member=others[0]).stdout
        result = await running
        assert result.ending is Ending.FAILED
        failed = row(result, first[0])
        assert (failed.outcome, failed.reason) == (Outcome.FAILED, "RPCTimeout")
        others_rows = [r for r in result.state.rows if r.name != first[0]]
        assert {(r.outcome, r.reason) for r in others_rows} == {(Outcome.SKIPPED, "SweepStopped")}
        assert by_name(cluster, first[0]).defrag_count() == 1
        assert counts_of(others) == [0, 0]
        assert not cluster.etcdctl("get", SLOT_KEY.decode()).stdout

    async def test_a_member_that_streams_a_snapshot_defers_the_run(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D16: a backup in progress would hold the defragmentation for as long as it takes."""
        cluster = fragmented(etcd_cluster_factory)
        with cluster.hold_snapshot(cluster.followers()[0]):
            result = await run(World(target(cluster)), request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert result.state.reason == "SnapshotInProgress"
        assert counts(cluster) == [0, 0, 0]

    async def test_a_defragmentation_by_somebody_else_defers_the_run(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D16: etcd's own metric says so."""
        cluster = fragmented(etcd_cluster_factory)
        busy = cluster.followers()[0]
        with cluster.hold_snapshot(busy):
            foreign = await asyncio.create_subprocess_exec(
                *cluster.etcdctl_command("defrag", "--command-timeout=60s", member=busy)
            )
            await asyncio.to_thread(wait_for, busy.defragmenting)
            result = await run(
                World(replace(target(cluster), seeds=seeds(cluster))), request(patience=0.0)
            )
        await foreign.wait()
        assert result.ending is Ending.DEFERRED
        assert counts(cluster).count(1) == 1


def by_name(cluster: EtcdCluster, name: str) -> Member:
    return next(member for member in cluster.members if member.name == name)


def wait_for(condition: Callable[[], object]) -> None:
    wait_until(condition, "as the test wants it")


class TestAnOperatorThatDies:
    """D2, D36: whatever the moment, a new process finishes the run, and no member is done twice."""

    async def killed_at(
        self, cluster: EtcdCluster, point: Callable[[World, MemberTurn | None], bool]
    ) -> World:
        """Run until the point and die there, as kill -9 would: nothing is released or tidied."""
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        died = asyncio.Event()

        class Died(BaseException):
            pass

        def on_turn(turn: MemberTurn) -> None:
            if point(world, turn):
                died.set()
                raise Died

        def on_record(state: object) -> None:
            if point(world, None):
                died.set()
                raise Died

        world.on_turn, world.on_record = on_turn, on_record
        with pytest.raises(Died):
            await run(world)
        world.on_turn = world.on_record = None
        world.epoch = "2-second"
        return world

    async def resumed(self, cluster: EtcdCluster, world: World) -> None:
        state = world.states[-1] if world.states else None
        result = await sweep(world).run(state)
        assert result.ending is Ending.DONE, result.state.message
        assert {r.outcome for r in result.state.rows} == {Outcome.DEFRAGMENTED}

    @pytest.mark.parametrize("write", range(9))
    async def test_at_any_write_of_the_record(
        self, etcd_cluster_factory: EtcdClusterFactory, write: int
    ) -> None:
        cluster = fragmented(etcd_cluster_factory)
        world = await self.killed_at(
            cluster, lambda world, turn: turn is None and len(world.states) == write
        )
        await self.resumed(cluster, world)
        assert counts(cluster) == [1, 1, 1]

    async def test_after_the_slot_names_the_member_and_before_the_rpc(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D36 (a): same process, same count: it never ran."""
        cluster = fragmented(etcd_cluster_factory)
        world = await self.killed_at(
            cluster, lambda world, turn: turn is not None and turn.row.in_flight
        )
        await self.resumed(cluster, world)
        assert counts(cluster) == [1, 1, 1]

    async def test_during_the_rpc(self, etcd_cluster_factory: EtcdClusterFactory) -> None:
        """D36: the member is waited for, and found Defragmented by etcd's own count."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        with contextlib.ExitStack() as stack:
            first: list[Member] = []

            def hold(turn: MemberTurn) -> None:
                if not first:
                    first.append(by_name(cluster, turn.row.name))
                    stack.enter_context(cluster.hold_snapshot(first[0]))

            world.on_turn = hold
            running = asyncio.create_task(run(world))
            await eventually(lambda: bool(first), "the first turn")
            await asyncio.to_thread(wait_for, first[0].defragmenting)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            world.on_turn = None
            world.epoch = "2-second"
            again = asyncio.create_task(sweep(world).run(world.states[-1]))
            await eventually(
                lambda: world.states[-1].reason in ("WaitingForMember", "RPCTimeout"), "it waits"
            )
            await asyncio.sleep(0.5)
            assert not again.done()
        result = await again
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]
        assert "nobody watched" in row(result, first[0].name).message

    async def test_when_the_member_restarted_meanwhile_the_size_decides(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D36 (b): another process counts from zero, so the rule is asked again."""
        cluster = fragmented(etcd_cluster_factory)
        world = await self.killed_at(
            cluster, lambda world, turn: turn is not None and turn.row.in_flight
        )
        member = by_name(cluster, world.turns[0].row.name)
        cluster.etcdctl("defrag", member=member)
        member.kill()
        member.start()
        cluster.wait_healthy()
        result = await sweep(world).run(world.states[-1])
        assert result.ending is Ending.DONE
        done = row(result, member.name)
        assert (done.outcome, done.reason) == (Outcome.DEFRAGMENTED, "InferredFromSize")
        assert member.defrag_count() == 0

    async def test_a_paused_predecessor_that_wakes_up_sends_nothing(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D37, D62: the new process rewrote the slot, and the old one reads it before its RPC."""
        cluster = fragmented(etcd_cluster_factory)
        old = World(replace(target(cluster), seeds=seeds(cluster)))
        asleep, wake = asyncio.Event(), asyncio.Event()
        record = old.record

        async def sleepy(state: object) -> None:
            await record(state)  # type: ignore[arg-type]
            if len(old.states) == 3:
                asleep.set()
                await wake.wait()

        old.record = sleepy  # type: ignore[method-assign]
        predecessor = asyncio.create_task(run(old))
        await asleep.wait()
        new = World(old.where, epoch="2-second")
        rewritten = asyncio.Event()
        new.on_turn = lambda turn: rewritten.set()
        successor = asyncio.create_task(sweep(new).run(old.states[-1]))
        await rewritten.wait()
        recorded = len(old.states)
        wake.set()
        with pytest.raises(LeadershipLost):
            await predecessor
        assert len(old.states) == recorded, "the successor's record was overwritten"
        result = await successor
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]


class TestTwoAtOnce:
    async def test_somebody_elses_slot_is_respected_and_named(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D3, D60, D63: another operator, or a person on another machine."""
        cluster = fragmented(etcd_cluster_factory)
        world, other = World(target(cluster)), World(target(cluster), holder="other/lease uid-2")
        with contextlib.ExitStack() as stack:

            def hold(turn: MemberTurn) -> None:
                if len(world.turns) == 1:
                    stack.enter_context(cluster.hold_snapshot(by_name(cluster, turn.row.name)))

            world.on_turn = hold
            running = asyncio.create_task(run(world))
            await eventually(lambda: bool(world.turns), "the first run is at it")
            second = await run(other, request(uid="other", name="b/other", patience=0.0))
            # The member that is held answers no Status: the gate speaks before the slot is asked.
            assert second.ending in (Ending.HELD, Ending.DEFERRED)
        assert (await running).ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]

    async def test_two_runs_take_turns_and_each_member_is_done_once_by_the_rule(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D3, D61: started at the same instant, by different holders."""
        cluster = fragmented(etcd_cluster_factory)
        one, two = World(target(cluster)), World(target(cluster), holder="other/lease uid-2")
        results = await asyncio.gather(
            run(one), run(two, request(uid="other", name="team-b/etcd-now"))
        )
        assert {result.ending for result in results} == {Ending.DONE}
        assert counts(cluster) == [1, 1, 1]
        assert sorted(result.state.defragmented for result in results) == [0, 3]

    async def test_a_broken_lock_is_taken_over_but_the_gate_still_judges(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D63."""
        cluster = fragmented(etcd_cluster_factory)
        cluster.etcdctl("put", SLOT_KEY.decode(), '{"v":1,"holder":"ann@far","epoch":"1"}')
        world = World(target(cluster))
        refused = await run(world, request(patience=0.0))
        assert refused.ending is Ending.HELD
        assert "ann@far" in refused.state.message
        world = World(target(cluster))
        result = await run(world, request(patience=0.0), break_lock=True)
        assert result.ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]


class TestAlarms:
    @pytest.mark.parametrize("version", ["3.5", "3.6", "3.7"])
    async def test_nospace_is_admitted_relieved_and_disarmed(
        self, etcd_cluster_factory: EtcdClusterFactory, version: str
    ) -> None:
        """D15, D40, D64: without a slot, since etcd takes no write."""
        cluster = armed(etcd_cluster_factory, version=version)
        world = World(target(cluster))
        result = await run(world)
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]
        assert cluster.etcdctl("alarm", "list").stdout.strip() == ""
        cluster.etcdctl("put", "writable", "again")
        assert "AlarmDisarmed" in world.reasons

    async def test_nospace_that_comes_up_in_mid_sweep_does_not_hold_it_up(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D64: the slot is ours, though it cannot be written any more; and D40 at the end."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(target(cluster))

        def arm(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED:
                world.on_turn = None
                cluster.leader().gateway.post(
                    "/v3/maintenance/alarm",
                    {
                        "action": "ACTIVATE",
                        "memberID": str(cluster.leader().id),
                        "alarm": "NOSPACE",
                    },
                )

        world.on_turn = arm
        async with asyncio.timeout(120):
            result = await run(world)
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]
        assert cluster.etcdctl("alarm", "list").stdout.strip() == ""
        assert not cluster.etcdctl("get", SLOT_KEY.decode()).stdout

    async def test_left_over_from_before_it_is_disarmed_by_a_run_that_finds_nothing_to_do(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D40: whatever the run reclaimed."""
        cluster = armed(etcd_cluster_factory)
        for member in cluster.members:
            cluster.etcdctl("defrag", member=member)
        result = await run(World(target(cluster)), request(rule=Rule()))
        assert result.ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]
        assert cluster.etcdctl("alarm", "list").stdout.strip() == ""

    async def test_with_a_member_still_over_nine_tenths_it_stays_and_says_by_how_much(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D41."""
        cluster = armed(etcd_cluster_factory, dead=0)
        result = await run(World(target(cluster)), request(rule=Rule(all=True)))
        assert result.ending is Ending.ALARM_LEFT
        assert "over 90 %" in result.state.message
        assert "NOSPACE" in cluster.etcdctl("alarm", "list").stdout

    @pytest.mark.parametrize("with_nospace", [False, True])
    async def test_corrupt_blocks_alone_and_beside_nospace(
        self, etcd_cluster_factory: EtcdClusterFactory, with_nospace: bool
    ) -> None:
        """D15: and neither alarm is disarmed."""
        cluster = armed(etcd_cluster_factory) if with_nospace else fragmented(etcd_cluster_factory)
        cluster.members[0].gateway.post(
            "/v3/maintenance/alarm",
            {"action": "ACTIVATE", "memberID": str(cluster.members[1].id), "alarm": "CORRUPT"},
        )
        result = await run(World(target(cluster)), request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert result.state.reason == "CorruptAlarm"
        assert counts(cluster) == [0, 0, 0]
        assert "CORRUPT" in cluster.etcdctl("alarm", "list").stdout

    async def test_a_foreign_defragmentation_ends_a_run_that_has_no_slot(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D64: exit code 5 at the command line."""
        cluster = armed(etcd_cluster_factory)
        world = World(target(cluster))
        leader = cluster.leader()

        def meanwhile(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED:
                world.on_turn = None
                cluster.etcdctl("defrag", member=leader)

        world.on_turn = meanwhile
        result = await run(world)
        assert result.ending is Ending.HELD
        assert result.state.reason == "ForeignDefragmentation"


def armed(factory: EtcdClusterFactory, *, dead: int = 24, version: str = "3.7") -> EtcdCluster:
    """A cluster driven into NOSPACE: a quota of 40 MiB, of which `dead` MiB can be given back."""
    cluster = factory(version=version, quota_backend_bytes=40 * MIB)
    live = 36 - dead
    cluster.fill(bytes_live=live * MIB, bytes_deleted=dead * MIB, compact=False)
    value = "x" * 1_000_000
    for number in range(60):
        if cluster.etcdctl("put", f"more/{number}", stdin=value, check=False).returncode:
            break
    assert "NOSPACE" in cluster.etcdctl("alarm", "list").stdout
    if dead:
        head = cluster.leader().status().revision
        cluster.etcdctl("compact", str(head), "--physical")

        numbers = itertools.count()

        def freed() -> bool:
            # Each member compacts by itself, and only a commit updates what it says of it. etcd
            # takes no put now, but a role.
            cluster.etcdctl("role", "add", f"role-{next(numbers)}")
            statuses = [member.status() for member in cluster.members]
            return all(s.db_size - s.db_size_in_use > dead * MIB // 2 for s in statuses)

        def compacted() -> bool:
            name = "etcd_debugging_mvcc_db_compaction_last"
            return all(member.metrics().get(name, 0) > 0 for member in cluster.members)

        wait_until(compacted, "compacted on every member")
        wait_until(freed, "every member says so", pause=0.3)
    return cluster


class TestMembershipAndLeadership:
    @pytest.mark.parametrize("version", ["3.5", "3.6", "3.7"])
    async def test_a_learner_is_skipped_and_the_run_completes(
        self, etcd_cluster_factory: EtcdClusterFactory, version: str
    ) -> None:
        """D30: etcd refuses it, with code 14 or 9 by release; it is never asked."""
        cluster = fragmented(etcd_cluster_factory, version=version)
        learner = await asyncio.to_thread(cluster.add_member, learner=True)
        result = await run(World(target(cluster)))
        assert result.ending is Ending.DONE, result.state.message
        skipped = row(result, learner.name)
        assert (skipped.outcome, skipped.reason) == (Outcome.SKIPPED, "Learner")
        assert learner.defrag_count() == 0

    async def test_leadership_moved_by_somebody_else_in_mid_sweep_changes_the_order(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D30: the present leader is last, whoever it was at the start."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(target(cluster))
        waiting = cluster.followers()

        def meanwhile(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED and len(world.turns) == 2:
                left = next(m for m in waiting if m.name != turn.row.name)
                cluster.etcdctl("move-leader", left.id_hex, member=cluster.leader())

        world.on_turn = meanwhile
        result = await run(world, request(leader_transfer=LeaderTransfer.NEVER))
        assert result.ending is Ending.DONE
        order = [turn.row.name for turn in world.turns if turn.row.in_flight]
        assert order[-1] == cluster.leader().name
        assert counts(cluster) == [1, 1, 1]

    async def test_a_member_removed_in_mid_sweep_is_gone_and_the_run_failed(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D39, D34."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=seeds(cluster)))
        removed: list[Member] = []

        def meanwhile(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED and not removed:
                left = [m for m in cluster.followers() if m.name != turn.row.name]
                removed.append(left[0])
                door = cluster.leader()

                def remove() -> bool:
                    # etcd refuses until the peers were healthy for 5 s.
                    done = cluster.etcdctl(
                        "member", "remove", left[0].id_hex, member=door, check=False
                    )
                    return done.returncode == 0

                wait_until(remove, "removed")
                left[0].kill()

        world.on_turn = meanwhile
        result = await run(world)
        assert result.ending is Ending.FAILED
        assert row(result, removed[0].name).reason == "MemberGone"

    async def test_two_clusters_behind_one_list_of_endpoints_are_refused(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D12: mixed cluster IDs."""
        one, two = etcd_cluster_factory(size=1), etcd_cluster_factory(size=1)
        world = World(replace(target(one), seeds=(*seeds(one), *seeds(two))))
        result = await run(world, request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert result.state.reason == "MixedClusters"

    async def test_a_url_that_every_member_advertises_gives_no_member_a_second_turn(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D12: N members, at most N RPCs, however many URLs."""
        shared: list[str] = []

        def advertise(_: object, url: str) -> list[str]:
            shared.append(url)
            return [shared[0], url]

        cluster = fragmented(etcd_cluster_factory, advertise=advertise)
        result = await run(World(target(cluster)))
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]


class TestReleases:
    async def test_a_release_with_a_guarded_defect_is_warned_of_and_defragmented(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D17: warn."""
        cluster = fragmented(etcd_cluster_factory, version="3.5.21", size=1)
        world = World(target(cluster))
        result = await run(world)
        assert result.ending is Ending.DONE
        assert "UnsafeEtcdVersion" in world.reasons
        assert "3.5.23" in result.state.message


class TestTime:
    async def test_a_run_with_too_little_time_left_does_not_begin(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D4: counted from creation, by the API server's time."""
        cluster = fragmented(etcd_cluster_factory)
        result = await run(World(target(cluster)), request(age=3600.0 - 60.0))
        assert result.ending is Ending.FAILED
        assert result.state.reason == "DeadlineExceeded"
        assert counts(cluster) == [0, 0, 0]

    async def test_on_expiry_of_the_deadline_a_waiting_run_fails_and_says_for_what_it_waited(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D4."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(target(cluster))

        def unhealthy() -> None:
            raise ClusterNotHealthy("Made up", "the test says no")

        world.on_look = unhealthy
        timing = replace(QUICK, deadline_floor=1.0, waiting_budget=1.0)
        result = await run(world, timing=timing)
        assert result.state.phase is Phase.FAILED
        assert result.state.reason == "DeadlineExceeded"
        assert "the test says no" in result.state.message

    async def test_a_paused_run_stays_where_it_is_until_the_pause_goes(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D9: read before each member."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(target(cluster))

        def pause(turn: MemberTurn) -> None:
            if turn.row.outcome is Outcome.DEFRAGMENTED:
                world.on_turn = None
                world.where = replace(world.where, paused="the annotation says so")

        world.on_turn = pause
        running = asyncio.create_task(run(world))
        await eventually(
            lambda: bool(world.states) and world.states[-1].reason == "Paused", "it is paused"
        )
        assert world.states[-1].phase is Phase.RUNNING
        assert sum(counts(cluster)) == 1
        world.where = replace(world.where, paused=None)
        assert (await running).ending is Ending.DONE
        assert counts(cluster) == [1, 1, 1]


class TestRoom:
    async def test_a_member_without_room_for_the_copy_is_skipped_and_the_run_failed(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D24: too little announced by the volume's size."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(target(cluster, volume_size=8 * MIB))
        result = await run(world)
        assert result.ending is Ending.FAILED
        assert result.state.reason == "NoDiskSpace"
        assert {r.reason for r in result.state.rows} == {"NoDiskSpace"}
        assert counts(cluster) == [0, 0, 0]
