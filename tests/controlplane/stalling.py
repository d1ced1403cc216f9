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
_STARTED = "grpc_server_started_total{"
_HANDLED = "grpc_server_handled_total{"
_SENT = "grpc_server_msg_sent_total{"


class SnapshotNotHeld(Exception):
    """The snapshot ran to its end at once: the database is too small to stall it."""


@contextlib.contextmanager
def hold_snapshot(member: Member) -> Iterator[None]:
    """Keep a snapshot of one member open and unread within the ``with``.

    A Defragment sent to it meanwhile stays in flight until the end of the ``with``, and then
    finishes. The database must be 4 MB or larger; see ``EtcdCluster.fill``.
    """
    before = _open_snapshots(member)
    with contextlib.closing(_connect(member.gateway)) as connection:
        connection.sendall(_request(member.gateway))
        # The answer's first byte: the read transaction is open now.
        if not connection.recv(1):
            raise SnapshotNotHeld(f"{member.name} closed the connection")
        _wait_stalled(member, before)
        yield


def _connect(gateway: Gateway) -> socket.socket:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    plain.settimeout(30.0)
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


def _wait_stalled(member: Member, before: int) -> None:
    """Wait until the stream is open and nothing more is sent on it."""
    sent = -1.0

    def stalled() -> bool:
        nonlocal sent
        if _open_snapshots(member) <= before:
            raise SnapshotNotHeld(
                f"{member.name}: the snapshot ran to its end; "
                f"the database ({member.status().db_size} bytes) is too small to stall it"
            )
        last, sent = sent, _sent_messages(member)
        return sent == last

    wait_until(stalled, "a stalled snapshot", 30.0, pause=0.05)


def _open_snapshots(member: Member) -> int:
    """Snapshot streams begun and not ended, by the member's own count."""
    started, handled = _snapshot_sum(member, _STARTED), _snapshot_sum(member, _HANDLED)
    return int(started - handled)


def _sent_messages(member: Member) -> float:
    return _snapshot_sum(member, _SENT)


def _snapshot_sum(member: Member, metric: str) -> float:
    samples = member.metrics().items()
    return sum(v for name, v in samples if name.startswith(metric) and '"Snapshot"' in name)
