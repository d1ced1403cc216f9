"""A contender as a process of its own, for tests that kill it: `python -m … URL SECONDS`.

It does what an operator does for one cluster, and nothing else.
"""

from __future__ import annotations

import asyncio
import sys

from prometheus_client import CollectorRegistry

from etcdmaint.clock import SystemClock
from etcdmaint.compaction.registry import Registry
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.observability.metrics import Compactions


async def main(url: str, interval: float) -> None:
    registry = Registry(SystemClock(), observer=Compactions(CollectorRegistry()))

    async def dial() -> ClusterClient:
        return await ClusterClient.connect([Endpoint.parse(url)], Access(), timeout=2.0)

    await registry.hold(dial, interval)
    print("holds", flush=True)
    await registry.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
