"""Make a Defragment last exactly as long as a test likes, on a database of a few megabytes.

etcd's Defragment waits, with all its locks held, until every open read transaction has ended; and
a Snapshot stream is one read transaction. So a snapshot that nobody reads keeps the member's
Defragment going until the reader goes away. The same happens by accident in the field, when a
backup stalls.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from .gateway import Gateway
from .member import Member
from .processes import wait_until

# As little as the kernel allows: what it buffers for us would let a small snapshot run to its end.
_RECEIVE_BUFFER_BYTES = 4096
_SNAPSHOT_STARTED = "grpc_server_started_total{"
_SNAPSHOT_HANDLED = "grpc_server_handled_total{"


class SnapshotNotHeld(Exception):
    """The snapshot ran to its end at once: the database is too small to stall it."""


@contextlib.contextmanager
def hold_snapshot(member: Member) -> Iterator[None]:
    """Keep a snapshot of one member open and unread within the ``with``.

    A Defragment sent to it meanwhile stays in flight until the end of the ``with``, and then
    finishes. The database must be some megabytes large; see ``EtcdCluster.fill``.
    """
    before = _open_snapshots(member)
    with contextlib.closing(_connect(member.gateway)) as connection:
        connection.sendall(_request(member.gateway))
        # The answer's first bytes: the read transaction is open now.
        if not connection.recv(1):
            raise SnapshotNotHeld(f"{member.name} closed the connection")
        try:
            wait_until(lambda: _open_snapshots(member) > before, "a stalled snapshot", 5.0)
        except TimeoutError as error:
            raise SnapshotNotHeld(
                f"{member.name}: the snapshot ran to its end; the database is too small to stall it"
            ) from error
        yield


def _connect(gateway: Gateway) -> socket.socket:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    plain.settimeout(10.0)
    plain.connect((gateway.host, gateway.port))
    context = gateway.context
    return context.wrap_socket(plain, server_hostname=gateway.host) if context else plain


def _request(gateway: Gateway) -> bytes:
    headers = [f"{name}: {value}" for name, value in gateway.headers().items()]
    lines = [
        "POST /v3/maintenance/snapshot HTTP/1.1",
        f"Host: {gateway.host}:{gateway.port}",
        "Content-Type: application/json",
        "Content-Length: 2",
        *headers,
        "",
        "{}",
    ]
    return "\r\n".join(lines).encode()


def _open_snapshots(member: Member) -> int:
    """Snapshot streams begun and not ended, by the member's own count."""
    metrics = member.metrics()
    snapshots = {name: count for name, count in metrics.items() if '"Snapshot"' in name}
    started = sum(v for name, v in snapshots.items() if name.startswith(_SNAPSHOT_STARTED))
    handled = sum(v for name, v in snapshots.items() if name.startswith(_SNAPSHOT_HANDLED))
    return int(started - handled)
