"""Says whether this process still gets anything done, for the probes to ask.

A check is a callable that gives None, or what is wrong in one line. Liveness may end the process,
so it fails only where a restart heals; readiness only says whether this replica could take part.
Neither asks etcd: one broken cluster of two hundred must not stop a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from etcdmaint.clock import Clock

Check = Callable[[], str | None]


@dataclass(slots=True)
class Checks:
    """The named checks of one probe, in the order in which they were added."""

    _checks: dict[str, Check] = field(default_factory=dict)

    def add(self, name: str, check: Check) -> None:
        """Register a check; a second one of that name replaces the first."""
        self._checks[name] = check

    def failures(self) -> dict[str, str]:
        """What is wrong now, by the check's name; empty when all is well."""
        answers = {name: check() for name, check in self._checks.items()}
        return {name: fault for name, fault in answers.items() if fault is not None}


class Freshness:
    """Something that must happen again and again, and is called stale once it has not for too long.

    It serves as a check. `limit` is in seconds of the monotonic clock. Before the first time it is
    fresh for one `limit`.
    """

    def __init__(self, what: str, clock: Clock, *, limit: float) -> None:
        self._what = what
        self._clock = clock
        self._limit = limit
        self._last = clock.monotonic()

    def mark(self) -> None:
        """It happened."""
        self._last = self._clock.monotonic()

    def __call__(self) -> str | None:
        """What is wrong, or None."""
        age = self._clock.monotonic() - self._last
        if age <= self._limit:
            return None
        return f"{self._what}: last {age:.0f} s ago, more than {self._limit:.0f} s"


async def beat(
    heartbeat: Freshness,
    clock: Clock,
    lag: Callable[[float], None],
    *,
    interval: float = 1.0,
) -> None:
    """Mark the heartbeat every `interval` seconds, for ever, and report how late each beat was."""
    while True:
        asked = clock.monotonic() + interval
        await clock.sleep(interval)
        lag(clock.monotonic() - asked)
        heartbeat.mark()
