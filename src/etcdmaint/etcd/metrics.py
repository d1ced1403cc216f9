"""A member's own /metrics: what it tells of itself even while a defragmentation blocks its RPCs.

Read with asyncio's streams, so that the whole reading has one deadline. Nothing that is not known
to be etcd's is passed on, and a metric that is not there is None, never a guess.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from etcdmaint.errors import MemberUnreachable, NotEtcd, RPCTimeout
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.diagnosis import connection, refusal
from etcdmaint.etcd.endpoint import Endpoint

# etcd's page is 0.2 MB; this is a bound for what is not etcd.
_LARGEST_PAGE = 16 * 1024 * 1024
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")
_SERVER_ID = re.compile(r'server_id="([0-9a-f]{1,16})"')


@dataclass(frozen=True, slots=True)
class MemberMetrics:
    """Each None where the page does not have it.

    `defrag_count`: defragmentations finished since `process_start` (Unix seconds, as it is on the
    page). `defrag_inflight`: 1 while one is going on. `quota`: bytes, negative is none.
    `snapshot_streams`: clients that are reading a Snapshot. `raft_snapshots_in_flight`: sent to and
    received from other members; etcd leaves the rows out until the first one, so absent is 0.
    `server_id`: the member's own ID. `last_compaction`: when one was carried out last (Unix seconds),
    None since the member started.
    """

    defrag_count: int | None = None
    defrag_inflight: int | None = None
    process_start: float | None = None
    quota: int | None = None
    snapshot_streams: int | None = None
    raft_snapshots_in_flight: int | None = None
    server_id: int | None = None
    last_compaction: float | None = None


async def read_metrics(
    endpoint: Endpoint, access: Access, *, timeout: float = 5.0
) -> MemberMetrics:
    """GET /metrics at this address, over TLS where the endpoint is secure.

    Raises MemberUnreachable, TLSFailed, RPCTimeout (seconds), or NotEtcd where the page is not one
    of etcd's.
    """
    where = f"/metrics at {endpoint}"
    dialled = access.address_map.resolve(endpoint)
    server_name = (access.tls and access.tls.server_name) or endpoint.host
    tls = access.tls if endpoint.secure else None
    if endpoint.secure and tls is None:
        raise MemberUnreachable(f"{where}: https:// needs a CA to verify it with")
    try:
        async with asyncio.timeout(timeout):
            context = tls.context() if tls is not None else None
            async with connection(dialled, context, server_name) as (reader, writer):
                # etcd may be told which hosts it goes by (--host-whitelist): by the one it advertises.
                writer.write(f"GET /metrics HTTP/1.0\r\nHost: {endpoint.target}\r\n\r\n".encode())
                page = await _read(reader)
    except TimeoutError:
        raise RPCTimeout(f"{where}: no answer within {round(timeout, 2):g} s") from None
    except (OSError, ValueError) as fault:
        why = refusal(fault, secure=endpoint.secure)
        raise type(why)(f"{where}: {why}", endpoint=str(endpoint)) from None
    head, _, body = page.partition(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 200\b", head):
        raise NotEtcd(f"{where}: no such page there", endpoint=str(endpoint))
    found = parse_metrics(body.decode("utf-8", errors="replace"))
    if found is None:
        raise NotEtcd(f"{where}: the page is not etcd's", endpoint=str(endpoint))
    return found


async def _read(reader: asyncio.StreamReader) -> bytes:
    page = bytearray()
    while piece := await reader.read(1 << 16):
        page += piece
        if page[:5] != b"HTTP/"[: len(page)] or len(page) > _LARGEST_PAGE:
            raise ValueError
    return bytes(page)


def parse_metrics(page: str) -> MemberMetrics | None:
    """Read the text format; None where no metric of etcd's is on the page."""
    samples: dict[str, list[tuple[str, float]]] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if math.isfinite(value):
            samples.setdefault(sample[1], []).append((sample[2] or "", value))
    if not any(name.startswith("etcd_") for name in samples):
        return None

    def total(name: str, label: str = "") -> float | None:
        rows = [value for labels, value in samples.get(name, ()) if label in labels]
        return sum(rows) if rows else None

    started = total("grpc_server_started_total", 'grpc_method="Snapshot"')
    handled = total("grpc_server_handled_total", 'grpc_method="Snapshot"')
    return MemberMetrics(
        defrag_count=_whole(total("etcd_disk_backend_defrag_duration_seconds_count")),
        defrag_inflight=_whole(total("etcd_disk_defrag_inflight")),
        process_start=total("process_start_time_seconds"),
        quota=_whole(total("etcd_server_quota_backend_bytes")),
        snapshot_streams=None if started is None else int(started - (handled or 0)),
        raft_snapshots_in_flight=int(
            (total("etcd_network_snapshot_send_inflights_total") or 0)
            + (total("etcd_network_snapshot_receive_inflights_total") or 0)
        ),
        server_id=_server_id(samples.get("etcd_server_id", ())),
        last_compaction=total("etcd_debugging_mvcc_db_compaction_last") or None,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _server_id(rows: Iterable[tuple[str, float]]) -> int | None:
    for labels, value in rows:
        if value == 1 and (found := _SERVER_ID.search(labels)):
            return int(found[1], 16)
    return None
