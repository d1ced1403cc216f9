"""What an EtcdConnection's status says, and when it is worth a write."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from etcdmaint.errors import CredentialsUnavailable, EtcdError, MemberUnreachable
from etcdmaint.etcd.types import Header, Member, MemberStatus
from etcdmaint.kube.measurement import Measurement, failed, measured, write_measurement

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MIB = 1 << 20
MEMBERS = tuple(
    Member(id=n, name=f"m{n}", client_urls=(f"http://10.0.0.{n}:2379",)) for n in (1, 2, 3)
)


def status(number: int, **changes: Any) -> MemberStatus:
    base = MemberStatus(
        header=Header(cluster_id=9, member_id=number, raft_term=4),
        version="3.7.3",
        db_size=100 * MIB,
        db_size_in_use=60 * MIB,
        leader=1,
        raft_index=10,
        raft_applied_index=10,
        raft_term=4,
        db_size_quota=2048 * MIB,
    )
    return replace(base, **changes)


def look(changes: dict[int, MemberStatus | EtcdError] | None = None, **all_: Any) -> Measurement:
    statuses: dict[int, MemberStatus | EtcdError] = {n: status(n, **all_) for n in (1, 2, 3)}
    return measured(9, MEMBERS, {**statuses, **(changes or {})}, endpoints={}, quota_bytes=None)


def obj(measurement: Measurement, now: datetime = NOW) -> dict[str, Any]:
    bare = {"metadata": {"name": "etcd", "generation": 1}}
    return {**bare, "status": write_measurement(bare, measurement, now)}


def test_a_well_cluster_is_reachable_and_healthy_with_a_row_for_each_member() -> None:
    found = look()
    assert found.reachable.status is True
    assert found.healthy.status is True
    assert [row.role for row in found.members] == ["leader", "follower", "follower"]
    assert found.answered == {1, 2, 3}


def test_a_member_that_is_silent_is_named_and_keeps_its_row() -> None:
    found = look({2: MemberUnreachable("refused at http://10.0.0.2:2379")})
    assert found.reachable.status is False
    assert found.reachable.reason == "MemberUnreachable"
    assert "m2" in found.reachable.message
    assert found.healthy.status is False
    assert found.members[1].db_size is None
    assert found.answered == {1, 3}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leader": 0}, "NoLeader"),
        ({"errors": ("memberID:2 alarm:NOSPACE ",)}, "NoSpaceAlarm"),
        ({"errors": ("alarm:CORRUPT",)}, "CorruptAlarm"),
    ],
)
def test_what_makes_it_unhealthy_is_told_by_etcd_itself(changes: Any, reason: str) -> None:
    found = look(**changes)
    assert found.reachable.status is True
    assert (found.healthy.status, found.healthy.reason) == (False, reason)


def test_nobody_to_ask_means_that_health_is_not_known_and_members_stay_as_they_were() -> None:
    before = obj(look())
    patch = write_measurement(before, failed(CredentialsUnavailable("Secret ns/s gone")), NOW)
    assert patch is not None
    assert patch["members"] == before["status"]["members"]
    by_type = {c["type"]: c for c in patch["conditions"]}
    assert by_type["Reachable"]["status"] == "False"
    assert by_type["Reachable"]["reason"] == "CredentialsUnavailable"
    assert by_type["Healthy"]["status"] == "Unknown"


def test_the_same_again_is_not_written_until_ten_minutes_are_over() -> None:
    before = obj(look())
    assert write_measurement(before, look(), NOW + timedelta(minutes=9, seconds=59)) is None
    assert write_measurement(before, look(), NOW + timedelta(minutes=10)) is not None


@pytest.mark.parametrize(
    ("size", "worth"),
    [(104 * MIB, False), (105 * MIB, True), (96 * MIB, False), (95 * MIB, True)],
)
def test_a_size_is_written_when_it_moves_by_five_percent(size: int, worth: bool) -> None:
    moved = look({3: status(3, db_size=size)})
    assert (write_measurement(obj(look()), moved, NOW) is not None) is worth


@pytest.mark.parametrize(("size", "worth"), [(4096 + 15, False), (4096 + 16, True)])
def test_a_large_size_is_written_when_it_moves_by_sixteen_mebibytes(size: int, worth: bool) -> None:
    before = obj(look(db_size=4096 * MIB))
    moved = look(db_size=size * MIB)
    assert (write_measurement(before, moved, NOW) is not None) is worth


@pytest.mark.parametrize(
    "changed",
    [
        {2: status(2, version="3.7.4")},
        {1: status(1, leader=2), 2: status(2, leader=2), 3: status(3, leader=2)},
        {3: MemberUnreachable("gone")},
    ],
)
def test_a_version_a_role_or_a_condition_is_written_at_once(changed: Any) -> None:
    assert write_measurement(obj(look()), look(changed), NOW) is not None


def test_what_others_keep_in_the_status_is_not_in_the_patch() -> None:
    """The compaction's part is written by whoever compacts."""
    before = obj(look())
    before["status"]["compaction"] = {"revision": 5}
    patch = write_measurement(before, look(), NOW + timedelta(hours=1))
    assert patch is not None
    assert "compaction" not in patch


@pytest.mark.parametrize(
    ("said", "spec", "expected"),
    [(5, 7, 5), (0, 7, 7), (0, None, None), (-1, 7, None)],
)
def test_a_quota_is_the_members_own_and_else_the_connections(
    said: int, spec: int | None, expected: int | None
) -> None:
    """D21: 0 is unknown, negative is none."""
    statuses: dict[int, MemberStatus | EtcdError] = {1: status(1, db_size_quota=said)}
    found = measured(9, MEMBERS[:1], statuses, endpoints={}, quota_bytes=spec)
    assert found.members[0].quota == expected
