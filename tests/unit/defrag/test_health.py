"""The gate: what stands against touching a member, each alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etcdmaint.defrag.health import SETTLED_LAG, Observation, judge, observe
from etcdmaint.defrag.run import DesiredMember
from etcdmaint.errors import ClusterNotHealthy, MemberUnreachable, RPCTimeout
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import AlarmKind

from .observations import member, observation, status, with_status
from .pretended import PretendedCluster, Process, World, timeless


def refusal(seen: Observation, **arguments: Any) -> ClusterNotHealthy:
    with pytest.raises(ClusterNotHealthy) as caught:
        judge(seen, **arguments)
    return caught.value


def test_a_healthy_cluster_passes() -> None:
    judge(observation())


def test_a_member_that_was_never_started_defers() -> None:
    """D11."""
    added = member(4, name="", client_urls=())
    error = refusal(observation(members=(*observation().members, added)))
    assert error.reason == "MemberNotStarted"


def test_a_member_that_cannot_be_reached_defers_with_the_reason_of_the_failure() -> None:
    """D11, D19: the condition says which member and why."""
    statuses = {**observation().statuses, 2: MemberUnreachable("m2:2379 refuses connections")}
    error = refusal(observation(statuses=statuses))
    assert (error.reason, error.member) == ("MemberUnreachable", "m2")
    assert "refuses connections" in str(error)


def test_a_member_that_does_not_answer_in_time_defers() -> None:
    """D16: Status blocks as long as a defragmentation takes."""
    statuses = {**observation().statuses, 3: RPCTimeout("no answer in 5 s")}
    assert refusal(observation(statuses=statuses)).reason == "RPCTimeout"


@pytest.mark.parametrize(
    "desired",
    [
        [DesiredMember(name="m1"), DesiredMember(name="m2")],
        [DesiredMember(name=f"m{i}") for i in (1, 2, 4)],
        [DesiredMember(name=f"m{i}", member_id=i) for i in (1, 2, 9)],
        [DesiredMember(name=f"m{i}") for i in (1, 2, 3, 4)],
    ],
)
def test_who_manages_the_members_must_agree_with_etcds_list(desired: list[DesiredMember]) -> None:
    """D11."""
    assert refusal(observation(), desired=desired).reason == "MembersDisagree"


def test_agreeing_by_id_or_by_name_is_enough() -> None:
    """D11."""
    by_name = [DesiredMember(name=f"m{i}") for i in (1, 2, 3)]
    by_id = [DesiredMember(name=f"pod-{i}", member_id=i) for i in (1, 2, 3)]
    judge(observation(), desired=by_name)
    judge(observation(), desired=by_id)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leader": 0}, "NoLeader"),
        ({"leader": 3}, "LeaderDisagreement"),
        ({"raft_term": 3}, "TermDisagreement"),
    ],
)
def test_the_voters_must_agree_on_leader_and_term(changes: dict[str, int], reason: str) -> None:
    """D13."""
    assert refusal(with_status(2, **changes)).reason == reason


def test_the_leader_must_be_a_listed_voter() -> None:
    """D13."""
    seen = observation(statuses={i: status(i, leader=9) for i in (1, 2, 3)})
    assert refusal(seen).reason == "LeaderUnknown"


def test_a_learners_view_of_the_leader_does_not_count() -> None:
    """D13: voters only."""
    learner = member(4, is_learner=True)
    seen = observation(
        members=(*observation().members, learner),
        statuses={**observation().statuses, 4: status(4, leader=0, is_learner=True)},
    )
    judge(seen)


@pytest.mark.parametrize(
    "text", ["memberID:2 alarm:CORRUPT ", "memberID:2  alarm:CORRUPT", " alarm:CORRUPT "]
)
def test_corrupt_blocks_in_every_spelling(text: str) -> None:
    """D15: the spacing differs by release, and the member may be missing."""
    assert refusal(with_status(3, errors=(text,))).reason == "CorruptAlarm"


def test_corrupt_blocks_beside_nospace_too() -> None:
    """D15."""
    errors = ("memberID:1 alarm:NOSPACE ", "memberID:2 alarm:CORRUPT ")
    assert refusal(with_status(1, errors=errors)).reason == "CorruptAlarm"


def test_nospace_alone_does_not_block_and_is_seen() -> None:
    """D15."""
    seen = with_status(1, errors=("memberID:1 alarm:NOSPACE ",))
    judge(seen)
    assert [(alarm.member_id, alarm.kind) for alarm in seen.alarms] == [(1, AlarmKind.NOSPACE)]


def metrics(**changes: Any) -> MemberMetrics:
    idle = MemberMetrics(
        defrag_count=0,
        defrag_inflight=False,
        process_start=1.0,
        quota=None,
        snapshot_streams=0,
        raft_snapshots_in_flight=0,
    )
    return replace(idle, **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"defrag_inflight": True}, "DefragmentationInFlight"),
        ({"snapshot_streams": 1}, "SnapshotInProgress"),
        ({"raft_snapshots_in_flight": 2}, "RaftSnapshotInProgress"),
    ],
)
def test_a_busy_member_defers(changes: dict[str, Any], reason: str) -> None:
    """D16."""
    error = refusal(observation(metrics={1: metrics(), 2: metrics(**changes)}))
    assert (error.reason, error.member) == (reason, "m2")


def test_a_member_without_metrics_must_answer_a_backend_read() -> None:
    """D16."""
    error = refusal(observation(metrics={2: None}, busy={2: RPCTimeout("no answer")}))
    assert error.reason == "MemberBusy"


def test_an_enabled_downgrade_defers() -> None:
    """D16."""
    assert refusal(with_status(2, downgrade_enabled=True)).reason == "DowngradeEnabled"


def test_a_voter_may_lag_a_thousand_entries_to_start_and_a_hundred_to_settle() -> None:
    """D14: against what the leader had committed before."""
    lagging = replace(with_status(3, raft_applied_index=2000), leader_committed=3000)
    lagging = replace(
        lagging,
        statuses={
            **lagging.statuses,
            1: status(1, raft_applied_index=3000),
            2: status(2, raft_applied_index=3000),
        },
    )
    judge(lagging)
    assert refusal(lagging, lag=SETTLED_LAG).reason == "RaftLag"
    assert refusal(replace(lagging, leader_committed=3001)).reason == "RaftLag"


def test_two_members_of_one_name_are_told_apart() -> None:
    """D2: the record has one row for each name, and etcd lets two have the same."""
    seen = observation(members=(member(1), member(2, name="m1"), member(3)))
    assert len({seen.name(i) for i in (1, 2, 3)}) == 3
    assert seen.name(3) == "m3"


def test_lag_is_judged_in_an_election_too() -> None:
    """D14: whoever knows the most to be committed is compared with, whether or not it leads."""
    world = World([1.0, 1.0])
    world.members[2].lags_until = 60.0
    process = Process(world, "1")
    told: list[int] = []

    async def look() -> Observation:
        cluster = PretendedCluster(process)
        world.leader = 0
        statuses = cluster.statuses

        async def elected_meanwhile(timeout: float) -> Any:
            found = await statuses(timeout)
            told.append(world.leader)
            world.leader = 1
            return found

        cluster.statuses = elected_meanwhile  # type: ignore[method-assign]
        return await observe(cluster, timeout=1.0)  # type: ignore[arg-type]

    error = refusal(timeless(look()), lag=SETTLED_LAG)
    assert (error.reason, error.member) == ("RaftLag", "m2")
    assert told == [0, 1]


def test_a_member_that_was_replaced_under_its_name_is_not_the_desired_one() -> None:
    """D11: the ID tells, where it is known."""
    wanted = DesiredMember(name="m2", member_id=7)
    assert not wanted.means(2, "m2")
    assert wanted.means(7, "anything")
