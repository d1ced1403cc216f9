"""How many inflations may run at once in a process (KEP-6264, Bounding decompression).

A count, since what it protects is memory: each one costs at most twice the ceiling and 128 KiB here.
It is derived from the CPUs and not to be configured. Threads and event loops share it; a caller says
how long it is prepared to wait. Knows nothing of frames.
"""

from __future__ import annotations

import math
import os
import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

SMALLEST_CAP: Final = 4
LARGEST_CAP: Final = 384

_CGROUP: Final = Path("/sys/fs/cgroup")


def inflation_cap(cpus: int) -> int:
    """Twice the CPUs, within 4 and 384."""
    return min(max(2 * cpus, SMALLEST_CAP), LARGEST_CAP)


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """The CPUs that this process may run on, or its cgroup's quota where that is smaller."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        cpus = os.cpu_count() or 1
    return min(cpus, _quota(cgroup) or cpus)


def _quota(cgroup: Path) -> int:
    """The quota of cgroup v2 or v1 in whole CPUs, rounded up; 0 without one."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = (
                (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text().strip()
                for name in ("quota", "period")
            )
        except OSError:
            return 0
    if not quota.isdigit() or not period.isdigit() or period == "0":
        # "max", and "-1" of version 1: no limit.
        return 0
    return max(math.ceil(int(quota) / int(period)), 1)


class InflationLimiter:
    """Hands out a fixed number of turns."""

    __slots__ = ("_turns", "cap")

    def __init__(self, cap: int) -> None:
        self.cap = cap
        # A queue of tokens: its get and put are single steps in C, a Semaphore's are not.
        self._turns: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(cap):
            self._turns.put(None)

    def turn(
        self, timeout: float | None = None, waited: Callable[[float], None] | None = None
    ) -> Turn:
        """One turn, taken while the context lasts. Entering raises TimeoutError after `timeout`."""
        return Turn(self._turns, timeout, waited)


class Turn:
    """A context manager: entered when there is room, left on every way out."""

    __slots__ = ("_timeout", "_turns", "_waited")

    def __init__(
        self,
        turns: queue.SimpleQueue[None],
        timeout: float | None,
        waited: Callable[[float], None] | None,
    ) -> None:
        self._turns = turns
        self._timeout = timeout
        self._waited = waited

    def __enter__(self) -> None:
        start = time.perf_counter() if self._waited else 0.0
        # What is left of a caller's time may be less than nothing.
        timeout = self._timeout if self._timeout is None else max(self._timeout, 0)
        try:
            self._turns.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no turn to inflate within {self._timeout} s") from None
        if self._waited:
            try:
                self._waited(time.perf_counter() - start)
            except BaseException:
                # Nobody will leave what was not entered.
                self._turns.put(None)
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._turns.put(None)


LIMITER: Final = InflationLimiter(inflation_cap(available_cpus()))
"""The one of this process."""
