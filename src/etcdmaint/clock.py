"""Time, as something that is handed in.

Deadlines, settling and five-minute intervals are tested in milliseconds because every room asks a
`Clock` and never the operating system. This module must not know what the time is used for.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the domain may ask about time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back. For durations and deadlines."""

    def now(self) -> datetime:
        """The wall clock, in UTC. For records that people read, never for durations."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds; at once, but after other tasks have run, for zero."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """The machine's wall clock in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Sleep in the running event loop."""
        await asyncio.sleep(seconds)


async def came_within(clock: Clock, seconds: float, event: asyncio.Event) -> bool:
    """Wait for the event, but no longer than so many seconds; whether it came."""
    async with asyncio.TaskGroup() as group:
        slept = group.create_task(clock.sleep(seconds))
        came = group.create_task(event.wait())
        await asyncio.wait((slept, came), return_when=asyncio.FIRST_COMPLETED)
        slept.cancel()
        came.cancel()
    return event.is_set()
