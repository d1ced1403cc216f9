"""Builds what a healthy cluster says, so that each test changes just the one thing it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etcdmaint.defrag.health import Observation
from etcdmaint.etcd.types import Header, Member, MemberStatus

MIB = 1 << 20
CLUSTER_ID = 0xC1


def status(member_id: int, **changes: Any) -> MemberStatus:
    """A healthy voter's status; the leader is member 1."""
    healthy = MemberStatus(
        header=Header(CLUSTER_ID, member_id, revision=100, raft_term=2),
        version="3.7.3",
        db_size=300 * MIB,
        db_size_in_use=100 * MIB,
        leader=1,
        raft_index=1000,
        raft_applied_index=1000,
        raft_term=2,
        db_size_quota=2048 * MIB,
    )
    return replace(healthy, **changes)


def member(member_id: int, **changes: Any) -> Member:
    """A started voter."""
    url = f"http://127.0.0.1:{10000 + member_id}"
    return replace(Member(member_id, f"m{member_id}", (), (url,)), **changes)


def observation(**changes: Any) -> Observation:
    """Three healthy voters, m1 leading."""
    healthy = Observation(
        members=(member(1), member(2), member(3)),
        statuses={i: status(i) for i in (1, 2, 3)},
        leader_committed=1000,
    )
    return replace(healthy, **changes)


def with_status(member_id: int, **changes: Any) -> Observation:
    """… but one member says something else."""
    healthy = observation()
    return replace(healthy, statuses={**healthy.statuses, member_id: status(member_id, **changes)})
