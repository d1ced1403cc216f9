"""The table of the EtcdDefrag page, at its edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.defrag.rule import (
    MemberSizes,
    Rule,
    effective_quota,
    evaluate,
    lacking_room,
    member_timeout,
    still_due,
)
from etcdmaint.defrag.timing import Timing

MIB = 1 << 20
GIB = 1 << 30
sizes = st.integers(min_value=0, max_value=64 * GIB)


@pytest.mark.parametrize(
    ("rule", "db", "used", "quota", "due"),
    [
        pytest.param(Rule(), 300, 100, 2048, False, id="reclaimable-equal-to-freeSpaceAbove"),
        pytest.param(Rule(), 301, 100, 2048, True, id="reclaimable-over-freeSpaceAbove"),
        pytest.param(Rule(all=True), 1, 1, 2048, True, id="all-takes-everything"),
        pytest.param(Rule(), 2000, 1990, 2048, False, id="full-but-not-fragmented"),
        pytest.param(
            Rule(quota_usage_above=Fraction(4, 5)), 1640, 1600, 2048, True, id="over-quota-share"
        ),
        pytest.param(
            Rule(quota_usage_above=Fraction(1, 2)), 1024, 900, 2048, False, id="at-quota-share"
        ),
        pytest.param(
            Rule(quota_usage_above=Fraction(4, 5)), 1640, 1608, 2048, True, id="at-minReclaim"
        ),
        pytest.param(
            Rule(quota_usage_above=Fraction(4, 5)), 1640, 1609, 2048, False, id="below-minReclaim"
        ),
        pytest.param(
            Rule(quota_usage_above=Fraction(4, 5)),
            1640,
            1600,
            None,
            False,
            id="no-quota-never-fires",
        ),
    ],
)
def test_a_member_is_due_exactly_by_the_table(
    rule: Rule, db: int, used: int, quota: int | None, due: bool
) -> None:
    """D20: strict over freeSpaceAbove and the share, at least minReclaim under pressure."""
    member = MemberSizes(db * MIB, used * MIB, quota * MIB if quota else None)
    assert evaluate(rule, member).due is due


def test_a_skipped_member_is_told_with_its_numbers() -> None:
    """D22."""
    decision = evaluate(Rule(), MemberSizes(150 * MIB, 100 * MIB, 2 * GIB))
    assert decision.reason == "BelowThreshold"
    assert "50Mi reclaimable" in decision.message
    assert "200Mi" in decision.message


@given(db=sizes, used=sizes, quota=sizes)
def test_the_quota_arm_never_takes_less_than_min_reclaim(db: int, used: int, quota: int) -> None:
    """D20: under pressure smaller wins are taken, but never a no-op."""
    rule = Rule(quota_usage_above=Fraction(1, 100))
    decision = evaluate(rule, MemberSizes(db, used, quota or None))
    if decision.due:
        assert db - used >= rule.min_reclaim


@given(db=sizes, used=sizes)
def test_after_an_interruption_all_means_a_tenth_of_the_file(db: int, used: int) -> None:
    """D36: `all` alone would defragment a member again that has just been done."""
    due = still_due(Rule(all=True), MemberSizes(db, used, None))
    assert due is (max(0, db - used) * 10 > db)


@pytest.mark.parametrize(
    ("status", "fallbacks", "quota"),
    [
        (8 * GIB, (GIB,), 8 * GIB),
        (-1, (GIB,), None),
        (0, (GIB, 3), GIB),
        (0, (None, -1), None),
        (0, (None, None, 0, 5 * GIB), 5 * GIB),
        (0, (None, None), 2 * GIB),
    ],
)
def test_the_quota_is_taken_from_the_first_who_knows(
    status: int, fallbacks: tuple[int | None, ...], quota: int | None
) -> None:
    """D21."""
    assert effective_quota(status, *fallbacks) == quota


def test_room_on_the_disk_counts_the_copy_and_a_reserve() -> None:
    """D24: dbSize + 1.1 x inUse + min(512 MiB, 10 %) must fit."""
    member = MemberSizes(4 * GIB, 4 * GIB, None)
    needed = 4 * GIB + 4 * GIB * 11 // 10 + 512 * MIB
    assert lacking_room(member, needed) is None
    lacking = lacking_room(member, needed - 1)
    assert lacking is not None
    assert "4Gi" in lacking


@pytest.mark.parametrize(
    ("in_use", "seconds"), [(0, 60), (300_000_000, 60), (1_000_000_000, 130), (10**12, 1800)]
)
def test_the_members_timeout_follows_its_live_bytes(in_use: int, seconds: float) -> None:
    """D33: max(60 s, 30 s + inUse / 10 MB/s), at most 30 min."""
    assert member_timeout(in_use) == seconds


@given(in_use=st.lists(st.integers(0, 16 * GIB), min_size=1, max_size=9))
def test_a_sweep_of_a_healthy_cluster_always_fits_its_deadline(in_use: list[int]) -> None:
    """D4: for 1 to 9 members of up to 16 GiB, with the waiting budget to spare."""
    timing = Timing()
    assert timing.deadline(in_use) >= 3600
    spare = timing.deadline(in_use) - timing.sweep_seconds(in_use)
    assert spare >= timing.waiting_budget - 1e-6
