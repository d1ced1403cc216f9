"""What a sweep needs from outside, when a person at a terminal asked for it.

The record is kept in memory, the right to act never goes away, and the world is what the flags say.
How progress looks is `progress`' affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable

from etcdmaint.cli.connection import Connection
from etcdmaint.cli.progress import Progress
from etcdmaint.clock import SystemClock
from etcdmaint.defrag.process import process_holder
from etcdmaint.defrag.run import RunRequest, RunState, Target
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.defrag.timing import Timing


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


class Parts:
    """What the sweeps of one command are made of; within one event loop, where they stop together."""

    def __init__(self, connection: Connection, volume_size: int | None, progress: Progress) -> None:
        self.progress = progress
        self.surroundings = TerminalSurroundings(
            Target(seeds=connection.seeds, access=connection.access, volume_size=volume_size)
        )
        self.fence = ProcessFence()
        self.clock = SystemClock()
        self.timing = Timing(
            dial_timeout=connection.dial_timeout, rpc_timeout=connection.command_timeout
        )

    def sweep(self, request: RunRequest, break_lock: bool) -> Sweep:
        """One run."""
        return Sweep(
            request,
            surroundings=self.surroundings,
            journal=MemoryJournal(self.progress.state),
            fence=self.fence,
            audience=self.progress,
            clock=self.clock,
            timing=self.timing,
            break_lock=break_lock,
        )
