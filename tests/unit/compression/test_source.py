"""Whom to read from."""

from __future__ import annotations

import pytest

from etcdmaint.compression.source import choose
from etcdmaint.errors import ClusterNotHealthy, EtcdError, RPCTimeout
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import Header, Member, MemberStatus

MEMBERS = [Member(1, "a"), Member(2, "b"), Member(3, "c"), Member(4, "d", is_learner=True)]


def status(member_id: int, *, leader: int = 1, applied: int = 5000) -> MemberStatus:
    return MemberStatus(Header(9, member_id), "3.7.3", 1, 1, leader, applied, applied, 2)


def chosen(
    members: list[Member] = MEMBERS,
    metrics: dict[int, MemberMetrics | None] | None = None,
    **changed: MemberStatus | EtcdError,
) -> str:
    statuses: dict[int, MemberStatus | EtcdError] = {each.id: status(each.id) for each in members}
    statuses |= {each.id: changed[each.name] for each in members if each.name in changed}
    return choose(members, statuses, metrics or {}).name


def test_a_follower_is_read_from_and_never_the_leader_or_a_learner() -> None:
    assert chosen() == "b"
    assert chosen(b=status(2, applied=4999)) == "c", "the one that is less behind"


def test_a_member_that_is_defragmented_or_lags_or_is_lost_is_passed_by() -> None:
    assert chosen(metrics={2: MemberMetrics(defrag_inflight=1)}) == "c"
    assert chosen(metrics={2: MemberMetrics(defrag_inflight=0), 3: None}) == "b"
    assert chosen(b=status(2, applied=100)) == "c"
    assert chosen(b=status(2, leader=0)) == "c"
    assert chosen(b=RPCTimeout("no answer")) == "c"


def test_the_only_voter_is_read_from_although_it_leads() -> None:
    assert chosen(MEMBERS[:1]) == "a"
    assert chosen([MEMBERS[0], MEMBERS[3]]) == "a", "a learner beside it is no better"


def test_with_no_follower_fit_for_it_everybody_is_told_what_they_lack() -> None:
    with pytest.raises(ClusterNotHealthy) as refused:
        chosen(
            b=RPCTimeout("no answer within 5 s"),
            metrics={3: MemberMetrics(defrag_inflight=1)},
        )
    assert refused.value.reason == "NoReader"
    assert str(refused.value) == (
        "no member is fit to be read from: a is the leader; b no answer within 5 s; "
        "c is being defragmented"
    )
