"""Loopback ports that nobody else will take between being chosen and being used.

A port the kernel hands out for port 0 lies in the ephemeral range, so any outgoing connection may
be given it a moment later; and two pytest-xdist workers may choose the same one. So ports come from
below that range, and each is held by a locked file that all our processes respect. The kernel drops
the lock with the process, so nothing is left to clean up after a kill.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

_LOWEST = 15_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(Exception):
    """Every port of the range is taken."""


class Ports:
    """Ports held for one owner until it is closed; open it before the servers, close it after.

    >>> with Ports() as ports:
    ...     url = f"http://127.0.0.1:{ports.take()}"
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def take(self) -> int:
        """One more port, bindable on loopback right now and ours until ``close``."""
        for port in _candidates():
            descriptor = _lock(port)
            if descriptor is None:
                continue
            if _bindable(port):
                self._held[port] = descriptor
                return port
            os.close(descriptor)
        raise NoFreePort(f"no free port from {_LOWEST} to {_below_ephemeral()}")

    def close(self) -> None:
        """Give every port back."""
        while self._held:
            _, descriptor = self._held.popitem()
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _candidates() -> Iterator[int]:
    ports = range(_LOWEST, _below_ephemeral())
    # From a random place, so that workers starting together do not fight over the same files.
    start = random.randrange(len(ports))
    for offset in range(len(ports)):
        yield ports[(start + offset) % len(ports)]


def _below_ephemeral() -> int:
    try:
        lowest = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        lowest = 32_768
    # A machine whose ephemeral range starts very low leaves no room below it: the locks still
    # keep us apart from each other, which is the more frequent collision.
    return lowest if lowest > _LOWEST + 1_000 else 32_768


def _lock(port: int) -> int | None:
    folder = Path(tempfile.gettempdir()) / f"etcdmaint-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        # As Go's listeners do: a connection in TIME_WAIT does not stand in the way of a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True
