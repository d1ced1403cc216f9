"""What a sweep needs from outside, when a person at a terminal asked for it.

The record is kept in memory, the right to act never goes away, and the world is what the flags say.
How progress looks is `progress`' affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable

from etcdmaint.defrag.process import process_holder
from etcdmaint.defrag.run import RunState, Target


class TerminalSurroundings:
    """The flags do not change while the run goes on; only the wish to stop may come."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stop = asyncio.Event()

    async def look(self) -> Target:
        """How to reach the cluster."""
        return self._target

    async def is_active(self, run: str, uid: str) -> bool:
        """A process has one run, so no other of ours can be under way."""
        return False

    @property
    def stopping(self) -> bool:
        """Whether to stop after the member in flight."""
        return self._stop.is_set()

    async def nap(self, seconds: float) -> None:
        """Sleep so long, but not a moment longer once asked to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def stop(self) -> None:
        """Ask to stop after the member in flight."""
        self._stop.set()


class MemoryJournal:
    """Keeps the record, and tells whoever listens."""

    def __init__(self, listener: Callable[[RunState], None] = lambda _: None) -> None:
        self.state = RunState()
        self._listener = listener

    async def record(self, state: RunState) -> None:
        """Durable enough: the record is gone with the process, and so is the run."""
        self.state = state
        self._listener(state)


class ProcessFence:
    """This process may act as long as it lives; the slot in etcd does the rest (D63)."""

    def __init__(self) -> None:
        self.holder = process_holder()
        self.epoch = uuid.uuid4().hex

    def assert_held(self) -> None:
        """Always held."""
