"""Calls at a rate, whoever calls."""

from __future__ import annotations

import pytest

from etcdmaint.compression.encryption.pace import Pace


def test_callers_are_let_through_evenly_and_none_waits_after_a_pause() -> None:
    """Issue 6: --kms-rate."""
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(10, monotonic=lambda: now[0], sleep=sleep)
    for _ in range(4):
        pace()
    assert slept == pytest.approx([0.1, 0.1, 0.1])
    now[0] += 5
    pace()
    assert len(slept) == 3
    pace()
    assert slept[3] == pytest.approx(0.1), "a pause is not saved up"
