"""Ctrl-C, SIGTERM and a terminal that goes away, while a command goes on.

They end a command that changes nothing, as Ctrl-C ends any. A sweep is asked by the first to stop
after the member in flight, because etcd cannot be told to stop; by the second it leaves at once, and
says what etcd is still doing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from etcdmaint.cli.exits import ExitCode

if TYPE_CHECKING:
    from etcdmaint.cli.progress import Progress
    from etcdmaint.cli.terminal import TerminalSurroundings

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEAVING_SECONDS = 1.0
"""How long the sweep may take to let go of what it holds, when it is left."""


def run(work: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """Do the work to its end. SIGTERM, and a terminal that goes away, end it as Ctrl-C does.

    `runner` is for a command that does one thing after the other: gRPC's asyncio wants one event loop
    in a process, and may log a traceback where a second begins.
    """

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(*_: object) -> None:
            loop.call_soon_threadsafe(task.cancel)

        # Whoever says nohup means it.
        heard = [n for n in SIGNALS[1:] if signal.getsignal(n) is not signal.SIG_IGN]
        before = {number: signal.signal(number, end) for number in heard}
        try:
            return await work
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    try:
        return runner.run(guarded()) if runner else asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class Interruption:
    """Handles the signals as long as it is entered."""

    def __init__(self, surroundings: TerminalSurroundings, progress: Progress) -> None:
        self._surroundings = surroundings
        self._progress = progress
        self._task: asyncio.Task[Any] | None = None
        self._left = False
        self._before: dict[signal.Signals, Any] = {}

    async def guard(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work and keep the progress moving; None when it was left in the middle."""
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            self._task = group.create_task(work)
            try:
                result: T = await self._task
                return result
            except asyncio.CancelledError:
                if not self._left:
                    raise
                return None
            finally:
                ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._progress.interval)
            self._progress.tick()

    def _hung_up(self) -> None:
        # Shell and kernel both tell of a terminal that is gone: nobody meant it twice.
        if not self._surroundings.stopping:
            self._interrupted()

    def _interrupted(self) -> None:
        if not self._surroundings.stopping:
            self._surroundings.stop()
            self._progress.say(self._announcement())
        elif not self._left and self._task is not None:
            self._left = True
            self._progress.say(self._farewell())
            self._task.cancel()
            asyncio.get_running_loop().call_later(LEAVING_SECONDS, self._go)
        else:
            self._go()

    def _go(self) -> None:
        self._progress.close()
        # Nothing is lost: a dead process' slot is taken over, and etcd does not wait for us (D63).
        os._exit(ExitCode.INTERRUPTED)

    def _announcement(self) -> str:
        turn = self._progress.current
        if turn is None:
            return "stopping before the next member; once more to leave at once"
        return (
            f"stopping as soon as {turn.row.name} is done, which etcd cannot be told to break off; "
            "once more to leave at once"
        )

    def _farewell(self) -> str:
        turn = self._progress.current
        if turn is None:
            return "left; no member is being defragmented by this run"
        return (
            f"left; {turn.row.name} ({turn.endpoint}) is still being defragmented: start nothing on "
            "this cluster until `etcdmaint status` says that it is over"
        )

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            before = signal.getsignal(number)
            # Whoever says nohup means it.
            if number is signal.SIGHUP and before is signal.SIG_IGN:
                continue
            self._before[number] = before
            react = self._hung_up if number is signal.SIGHUP else self._interrupted
            loop.add_signal_handler(number, react)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number, before in self._before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, before)


async def finish(
    work: Coroutine[Any, Any, T], surroundings: TerminalSurroundings, progress: Progress
) -> T | None:
    """Do the work under an `Interruption`; None when it was left in the middle."""
    try:
        async with Interruption(surroundings, progress) as interruption:
            return await interruption.guard(work)
    finally:
        progress.close()
