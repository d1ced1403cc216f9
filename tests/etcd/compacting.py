"""Runs real compactors against real servers, and reads from etcd itself what they did."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from etcdmaint.clock import SystemClock
from etcdmaint.compaction.compactor import Compactor, Pace
from etcdmaint.compaction.line import Dial, Line
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.gateway import text
from tests.controlplane.member import Member

KEY = b"compact_rev_key"
QUICK = Pace(rpc_timeout=3.0, rewatch=0.2, longest_rewatch=1.0, stall_grace=0.5)
_COMPACT = re.compile(r'finished scheduled compaction","compact-revision":(\d+)')


@dataclass(frozen=True)
class Key:
    """The key as etcd's own gateway shows it; version 0 where there is none."""

    version: int
    value: bytes
    mod_revision: int
    head: int


def read_key(member: Member) -> Key:
    """Read it, linearizably, by another hand than the client under test."""
    answer = member.gateway.post("/v3/kv/range", {"key": text(KEY)})
    head = int(answer["header"]["revision"])
    if not answer.get("kvs"):
        return Key(0, b"", 0, head)
    kv = answer["kvs"][0]
    value = base64.b64decode(kv.get("value", ""))
    return Key(int(kv["version"]), value, int(kv["mod_revision"]), head)


def compacted_to(member: Member) -> int:
    """How far the member says that it is compacted."""
    return int(member.metric("etcd_debugging_mvcc_compact_revision"))


def rpcs(member: Member, method: str, code: str = "OK") -> int:
    """How many calls of a method the member has answered."""
    name = "grpc_server_handled_total"
    return int(
        sum(
            count
            for sample, count in member.metrics().items()
            if sample.startswith(name)
            and f'grpc_method="{method}"' in sample
            and f'grpc_code="{code}"' in sample
        )
    )


def all_rpcs(cluster: EtcdCluster, method: str, code: str = "OK") -> int:
    """The same, over all members."""
    return sum(rpcs(member, method, code) for member in cluster.members)


@dataclass
class Counts:
    """What an observer was told."""

    rounds: list[str] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)

    def started(self, cluster: str) -> None:
        """Ignore it."""

    def round(self, cluster: str, result: str, clock: int) -> None:
        self.rounds.append(str(result))

    def known(self, cluster: str, revision: int) -> None:
        """Ignore it."""

    def advanced(self, cluster: str, revision: int, timestamp: float) -> None:
        self.revisions.append(revision)

    def stopped(self, cluster: str) -> None:
        """Ignore it."""


def dial_to(cluster: EtcdCluster, access: Access | None = None, timeout: float = 3.0) -> Dial:
    """The way to a cluster."""
    secure = cluster.tls is not None

    async def dial() -> ClusterClient:
        return await ClusterClient.connect(
            [Endpoint.parse(url, secure=secure) for url in cluster.client_urls],
            access or Access(),
            timeout=timeout,
        )

    return dial


@asynccontextmanager
async def compacting(
    cluster: EtcdCluster,
    interval: float,
    *,
    access: Access | None = None,
    pace: Pace = QUICK,
    dial: Dial | None = None,
) -> AsyncIterator[tuple[Compactor, Counts]]:
    """One real compactor while the `with` lasts."""
    dial = dial or dial_to(cluster, access)
    line = Line(await dial(), dial)
    counts = Counts()
    compactor = Compactor(line, interval, SystemClock(), observer=counts, pace=pace)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(compactor.run())
        try:
            yield compactor, counts
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await line.close()


async def until(condition: Callable[[], object], what: str, timeout: float = 60.0) -> None:
    """Wait for a condition without holding up the event loop."""
    deadline = time.monotonic() + timeout
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"{what}: not so after {timeout:g} s"
        await asyncio.sleep(0.02)
