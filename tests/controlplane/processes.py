"""Run a server, wait until it is ready, and leave nothing of it behind.

A server runs in a process group of its own with its output in a log file. It is ended by the number
of its group, in a ``finally``; if even that cannot run, the watchdog ends it. Waiting is always for
a condition, never for a time, and when it fails the error shows what the server said.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from .watchdog import Watchdog

_WATCHDOG = Watchdog()
_TAIL_LINES = 25
_LINE_LENGTH = 400
T = TypeVar("T")


class NotReady(Exception):
    """A server ended, or did not do in time what was waited for."""


class Server:
    """One program, which may be started again after it has ended.

    ``arguments`` is the whole command. The log is appended to, so that a restarted server's log
    tells the whole story.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str | os.PathLike[str]],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.arguments = [os.fspath(argument) for argument in arguments]
        self.log = log
        self.env = dict(env) if env is not None else None
        self.cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        if self._process is None:
            raise NotReady(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended; a paused server is running."""
        return self._process is not None and self._exit_code() is None

    @property
    def paused(self) -> bool:
        """Whether it is stopped by ``pause``."""
        return self._paused

    def start(self) -> Self:
        """Start it; give back at once, before it is ready."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                # The shell waits for a word before it becomes the server: were we killed between
                # the fork and telling the watchdog, it would read the end of the pipe and go.
                ["/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh", *self.arguments],
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process, self._paused = process, False
        try:
            _WATCHDOG.watch(process.pid)
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.close()
        except BaseException:
            self.kill()
            raise
        return self

    def wait_until(self, condition: Callable[[], T | None], what: str, timeout: float = 30.0) -> T:
        """Poll until the condition gives something true; fail at once if the server ends."""

        def alive_and_true() -> T | None:
            if not self.running:
                raise NotReady(self._story(f"ended before it was {what}"))
            return condition()

        try:
            return wait_until(alive_and_true, f"{self.name}: {what}", timeout)
        except TimeoutError as error:
            raise NotReady(self._story(f"was not {what} after {timeout:g} s")) from error

    def stop(self, grace: float = 10.0) -> None:
        """End it politely, and by force after the grace."""
        if self._process is None:
            return
        self.resume()
        if self.running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not self.running, f"{self.name} ends", grace)
        self.kill()

    def kill(self) -> None:
        """End the whole group with SIGKILL, as a power cut would; nothing if it has ended."""
        process, self._process, self._paused = self._process, None, False
        if process is None:
            return
        # Also when it has ended by itself: what it started may live on in its group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _WATCHDOG.forget(process.pid)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def pause(self) -> None:
        """Stop it with SIGSTOP: it keeps its connections and answers nobody.

        Once this returns: on a busy machine a thread may go on for a while after the signal.
        """
        self._signal(signal.SIGSTOP)
        self._paused = True
        wait_until(self._still, f"{self.name} has stopped", 10.0, pause=0.002)

    def resume(self) -> None:
        """Let a paused server go on."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def _still(self) -> bool:
        """Whether every thread is stopped; true for a process that has ended."""
        states = set()
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                states.add(stat.read_text().rpartition(")")[2].split()[0])
        return states <= {"T", "Z", "X"}

    def log_text(self) -> str:
        """Everything it has said so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _exit_code(self) -> int | None:
        """How it ended, without reaping it.

        A zombie keeps its number, so the group that ``kill`` ends is always still ours.
        """
        assert self._process is not None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _story(self, what: str) -> str:
        code = self._exit_code() if self._process is not None else None
        ended = "" if code is None else f" (exit code {code})"
        lines = self.log_text().splitlines()[-_TAIL_LINES:]
        # etcd logs whole stack traces on one line.
        tail = "\n".join(line[:_LINE_LENGTH] for line in lines) or "(nothing)"
        return f"{self.name} {what}{ended}; the end of {self.log}:\n{tail}"

    def __enter__(self) -> Self:
        return self.start() if not self.running else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def wait_until(
    condition: Callable[[], T | None], what: str, timeout: float = 30.0, pause: float = 0.01
) -> T:
    """Poll a condition until it gives something true, and give that back.

    It is asked at short, slowly growing intervals: a server that is ready is noticed within
    milliseconds, one that takes long is not kept busy with questions.
    """
    deadline = time.monotonic() + timeout
    while True:
        if result := condition():
            return result
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not so after {timeout:g} s")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.2)
