"""The cap on concurrent inflations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etcdmaint.compression.inflation import (
    LIMITER,
    InflationLimiter,
    available_cpus,
    inflation_cap,
)


@pytest.mark.parametrize(
    ("cpus", "cap"), [(1, 4), (2, 4), (3, 6), (8, 16), (191, 382), (192, 384), (400, 384)]
)
def test_the_cap_is_twice_the_cpus_within_bounds(cpus: int, cap: int) -> None:
    """R78, R83."""
    assert inflation_cap(cpus) == cap


def test_the_process_has_one_limiter_by_its_own_cpus() -> None:
    """R77: derived, not configured."""
    assert inflation_cap(available_cpus()) == LIMITER.cap


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100001 100000\n"}, 2),
        ({"cpu.max": "garbage"}, None),
        ({"cpu.max": "100000 0\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_cgroups_quota_counts_where_it_is_smaller(
    tmp_path: Path, files: dict[str, str], cpus: int | None
) -> None:
    """R78: both versions of cgroups; rounded up; no quota is no limit."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    own = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path) == min(own, cpus or own)


def test_a_turn_comes_back_whatever_happens_inside() -> None:
    """R81."""
    limiter = InflationLimiter(1)
    for _ in range(100):
        with pytest.raises(ZeroDivisionError), limiter.turn(timeout=0):
            raise ZeroDivisionError
    with limiter.turn(timeout=0), pytest.raises(TimeoutError), limiter.turn(timeout=0):
        pass


def test_a_turn_comes_back_when_whoever_counts_the_wait_fails() -> None:
    """R81."""
    limiter = InflationLimiter(1)

    def failing(_: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), limiter.turn(waited=failing):
        pass
    with limiter.turn(timeout=0):
        pass


def test_a_deadline_that_has_passed_is_no_time_at_all() -> None:
    """R79, R80: a free turn is still taken, and none is waited for."""
    limiter = InflationLimiter(1)
    with limiter.turn(timeout=-1.5), pytest.raises(TimeoutError), limiter.turn(timeout=-1.5):
        pass


def test_the_wait_is_told_in_seconds() -> None:
    """R132."""
    waits: list[float] = []
    with InflationLimiter(1).turn(waited=waits.append):
        pass
    assert len(waits) == 1
    assert 0 <= waits[0] < 60
