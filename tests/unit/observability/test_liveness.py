"""Checks fail when nothing happens any more, and only then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from etcdmaint.observability.liveness import Checks, Freshness, beat


class Hands:
    """A clock that is moved by hand; sleeping moves it, `late` seconds too far."""

    def __init__(self) -> None:
        self.time = 100.0
        self.late = 0.0
        self.beats = 0

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)

    async def sleep(self, seconds: float) -> None:
        if self.beats == 0:
            await asyncio.Event().wait()
        self.beats -= 1
        self.time += seconds + self.late


def test_a_heartbeat_is_fresh_for_its_limit_and_stale_afterwards() -> None:
    clock = Hands()
    heartbeat = Freshness("event loop", clock, limit=30)
    clock.time += 30
    assert heartbeat() is None
    clock.time += 1
    assert heartbeat() == "event loop: last 31 s ago, more than 30 s"
    heartbeat.mark()
    assert heartbeat() is None


def test_the_failing_checks_are_told_by_name() -> None:
    checks = Checks()
    checks.add("good", lambda: None)
    checks.add("bad", lambda: "broken")
    assert checks.failures() == {"bad": "broken"}
    checks.add("bad", lambda: None)
    assert checks.failures() == {}


async def test_the_heart_beats_and_says_how_late() -> None:
    clock = Hands()
    clock.beats, clock.late = 3, 0.25
    heartbeat = Freshness("event loop", clock, limit=1)
    lags: list[float] = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(beat(heartbeat, clock, lags.append, interval=2.0), 0.05)
    assert lags == pytest.approx([0.25, 0.25, 0.25])
    assert heartbeat() is None
