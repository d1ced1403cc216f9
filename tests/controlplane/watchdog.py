"""Ends our servers when the process that started them is gone, however it went.

A ``finally`` does not run after SIGKILL, and a forgotten etcd would hold its port, its disk and a
core. One watchdog stands beside each process that starts servers. It holds the reading end of a
pipe whose only writing end is in that process, and the kernel closes that end when the process
dies: the one notice that cannot be skipped. (PR_SET_PDEATHSIG would be shorter, but follows the
*thread* that forked, and tests fork from worker threads.)

Run as a script it is the watchdog; imported it is the way to start and feed one. Standard library
only, and quick to start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading


class Watchdog:
    """The watchdog of this process, started with the first server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def watch(self, group: int) -> None:
        """From now on the process group dies with us."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group has ended; its number may come to belong to somebody else."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None or self._owner != os.getpid():
                # A forked child shares its parent's pipe, and needs a dog of its own.
                self._owner = os.getpid()
                self._process = _start()
                atexit.register(_dismiss, self._process)
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired, ChildProcessError):
        process.wait(5)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        # A session of its own: Ctrl-C goes to the terminal's whole group, and the dog must outlive
        # the one it watches.
        start_new_session=True,
    )


def _stand_guard() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = set[int]()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    _stand_guard()
