"""A whole sweep of a real three-member etcd, and what it leaves behind."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from etcdmaint.defrag.lock import SLOT_KEY
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import Ending, LeaderTransfer, Outcome, Phase, Role
from etcdmaint.errors import LeadershipLost
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.processes import wait_until

from .sweeping import MIB, QUICK, World, counts, request, row, run, sweep, target

pytestmark = pytest.mark.etcd


@pytest.mark.parametrize("version", ["3.5", "3.6", "3.7"])
async def test_every_member_is_defragmented_once_and_shrinks(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """D1, D12, D30, D31, D35: followers first, the leader last and moved off, sizes in the rows."""
    cluster = etcd_cluster_factory(version=version)
    cluster.fill(bytes_deleted=20 * MIB)
    leader = cluster.leader()
    world = World(target(cluster))
    result = await run(world)

    assert result.ending is Ending.DONE, result.state.message
    assert counts(cluster) == [1, 1, 1]
    assert [state.phase for state in world.states][:2] == [Phase.PENDING, Phase.RUNNING]
    assert result.state.phase is Phase.COMPLETE
    for member in cluster.members:
        done = row(result, member.name)
        assert done.outcome is Outcome.DEFRAGMENTED
        assert done.member_id == member.id
        assert done.db_size_after is not None
        assert done.db_size_before is not None
        assert done.reclaimed_bytes == done.db_size_before - done.db_size_after
        assert done.reclaimed_bytes > 10 * MIB
        assert member.db_file.stat().st_size <= done.db_size_after + MIB
    last = world.turns[-1].row
    assert (last.name, last.role) == (leader.name, Role.LEADER)
    assert cluster.leader().name != leader.name
    assert "LeadershipTransferred" in world.reasons
    assert world.reasons[-1] == "Complete"


async def test_a_run_costs_two_writes_a_member_and_three_more(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D32: intent and outcome; kopf's two for its finalizer come on top of these three."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    world = World(target(cluster))
    # A member that answers late is waited for, and that would cost writes as well.
    await run(world, timing=replace(QUICK, rpc_timeout=30.0, metrics_timeout=30.0))
    assert len(world.states) == 3 + 2 * 3
    in_flight = [s for s in world.states if any(r.in_flight for r in s.rows)]
    assert len(in_flight) == 3


async def test_members_below_the_threshold_are_skipped_with_the_numbers(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D20, D22: nothing is due, nothing is touched, and the run is Complete."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_live=MIB, bytes_deleted=10 * MIB)
    result = await run(World(target(cluster)), request(rule=Rule()))
    assert result.ending is Ending.DONE
    assert counts(cluster) == [0, 0, 0]
    assert {r.reason for r in result.state.rows} == {"BelowThreshold"}
    assert all("200Mi" in r.message for r in result.state.rows)


async def test_a_dry_run_touches_nothing_and_takes_no_slot(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D8."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    before = cluster.etcdctl("get", "", "--prefix", "--keys-only").stdout
    revision = cluster.members[0].status().revision
    result = await run(World(target(cluster)), request(dry_run=True))
    assert result.ending is Ending.DONE
    assert {(r.outcome, r.reason) for r in result.state.rows} == {
        (Outcome.SKIPPED, "WouldDefragment")
    }
    assert counts(cluster) == [0, 0, 0]
    assert cluster.etcdctl("get", "", "--prefix", "--keys-only").stdout == before
    assert cluster.members[0].status().revision == revision


async def test_the_slot_is_held_while_running_and_gone_afterwards(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D60, D61: and it names the member in flight."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    seen = []
    world = World(target(cluster))
    key = SLOT_KEY.decode()

    def look(turn: object) -> None:
        seen.append(cluster.etcdctl("get", key, "--print-value-only").stdout)

    world.on_turn = look
    await run(world)
    assert cluster.members[0].id_hex in "".join(seen)
    assert all('"run":"team-a/etcd-now"' in value for value in seen[:1])
    assert cluster.etcdctl("get", key).stdout == ""


async def test_a_process_that_lost_its_lease_sends_nothing(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D37: directly before the RPC."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    world = World(target(cluster))

    def lose(turn: object) -> None:
        world.held = False

    world.on_turn = lose
    with pytest.raises(LeadershipLost):
        await run(world)
    assert counts(cluster) == [0, 0, 0]


async def test_a_slot_that_somebody_broke_ends_the_run(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D37: the slot is read directly before every RPC; the record says what became of the run."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    world = World(target(cluster))

    def break_it(state: object) -> None:
        if len(world.states) == 2:
            cluster.etcdctl("put", SLOT_KEY.decode(), '{"holder":"me","epoch":"x"}')

    world.on_record = break_it
    result = await run(world)
    assert (result.ending, result.state.reason) == (Ending.HELD, "SlotLost")
    assert "held by me" in result.state.message
    assert counts(cluster) == [0, 0, 0]
    assert "me" in cluster.etcdctl("get", SLOT_KEY.decode(), "--print-value-only").stdout


@pytest.mark.parametrize(
    ("transfer", "moves"), [(LeaderTransfer.NEVER, False), (LeaderTransfer.AUTO, False)]
)
async def test_leadership_stays_when_it_is_not_to_move(
    etcd_cluster_factory: EtcdClusterFactory, transfer: LeaderTransfer, moves: bool
) -> None:
    """D31: Never, and Auto where the turn is predicted to be short; the row says so."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    leader = cluster.leader()
    world = World(target(cluster))
    result = await run(world, request(leader_transfer=transfer))
    assert result.ending is Ending.DONE
    assert ("LeadershipTransferred" in world.reasons) is moves
    assert cluster.leader().name == leader.name
    assert "leadership stays" in row(result, leader.name).message


async def test_asked_to_stop_it_finishes_the_member_in_flight_and_touches_no_other(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7: and a later call goes on from there, without touching that member again (D2)."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB)
    world = World(target(cluster))

    def stop(turn: object) -> None:
        world.stopping = True

    world.on_turn = stop
    stopped = await run(world)
    assert stopped.ending is Ending.STOPPED
    assert sorted(counts(cluster)) == [0, 0, 1]
    assert stopped.state.defragmented == 1
    assert cluster.etcdctl("get", SLOT_KEY.decode()).stdout == ""

    world.stopping, world.on_turn = False, None
    result = await sweep(world).run(stopped.state)
    assert result.ending is Ending.DONE
    assert counts(cluster) == [1, 1, 1]


async def test_one_member_alone_is_defragmented_in_place(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D31: nowhere to move leadership to."""
    cluster = etcd_cluster_factory(size=1)
    cluster.fill(bytes_deleted=10 * MIB)
    result = await run(World(target(cluster)))
    assert result.ending is Ending.DONE
    assert counts(cluster) == [1]
    assert "one voter" in result.state.rows[0].message


async def test_on_an_idle_cluster_the_run_does_not_judge_by_sizes_of_an_hour_ago(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D23: after a logical compaction etcd says what it has in use only once something is written."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_deleted=10 * MIB, compact=False)
    door = cluster.leader().gateway
    # The leader's: a follower may not know of the deletion yet.
    door.compact(door.status().revision, physical=False)
    finished = "etcd_debugging_mvcc_db_compaction_last"

    def compacted() -> bool:
        return all(member.metrics().get(finished, 0) > 0 for member in cluster.members)

    def commits() -> list[float]:
        name = "etcd_disk_backend_commit_duration_seconds_count"
        return [member.metrics()[name] for member in cluster.members]

    def idle() -> bool:
        before = commits()
        # etcd commits what is pending every 100 ms.
        time.sleep(0.3)
        return commits() == before

    wait_until(compacted, "compacted on every member")
    wait_until(idle, "nothing is left to commit")
    # Longer than by default: a busy machine commits late, and this is not about how late.
    timing = replace(QUICK, commit_interval=4.5)
    result = await run(World(target(cluster)), timing=timing)
    assert result.ending is Ending.DONE
    assert counts(cluster) == [1, 1, 1]
