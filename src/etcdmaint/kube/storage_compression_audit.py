"""One audit of an etcd for the operator: connect, count without decrypting, say what may be said.

It gives way to whoever holds the cluster's slot, and keeps to a rate. This module must not know when an
audit is due, nor for which object.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from etcdmaint.api.compression import AuditStatus
from etcdmaint.clock import Clock
from etcdmaint.compression.audit import Audit, audit
from etcdmaint.compression.census import Census
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.source import ClusterSource
from etcdmaint.compression.walk import Progress, Timing
from etcdmaint.defrag.courtesy import SlotCourtesy
from etcdmaint.defrag.run import Target
from etcdmaint.errors import WrongMember
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import format_id, prefix_end
from etcdmaint.kube.storage_compression_status import summarize


async def count_stored(
    target: Target,
    *,
    cluster_id: int,
    bytes_per_second: int,
    clock: Clock,
    timeout: float,
    turn: AbstractAsyncContextManager[object],
    observer: RpcObserver | None = None,
    timing: Timing | None = None,
) -> AuditStatus:
    """Count all that an API server keeps below the target's prefix; `timeout` (seconds) for each RPC.

    `turn` is entered once nobody holds the slot: a cluster that is being worked on keeps no other one's
    audit waiting. Raises WrongMember where another cluster than `cluster_id` is there by now, EtcdError
    and ClusterNotHealthy when it cannot be carried to its end.
    """
    timing = timing or Timing()
    keyspace = Keyspace(target.kubernetes_prefix.encode())
    span = (keyspace.root, prefix_end(keyspace.root))
    async with await ClusterClient.connect(
        target.seeds,
        target.access,
        timeout=timeout,
        observer=observer,
        metrics_port=target.metrics_port,
    ) as cluster:
        if cluster.cluster_id != cluster_id:
            found, known = format_id(cluster.cluster_id), format_id(cluster_id)
            raise WrongMember(f"etcd cluster {found} is there now, and no longer {known}")
        courtesy = SlotCourtesy(cluster, timeout)
        while await courtesy.holder():
            await clock.sleep(timing.look)
        async with turn:
            started = clock.now()
            # Damaged keys are named by the command line, to whoever may read etcd.
            state = Audit(Census(keyspace, keep=0), Progress(spans=(span,)))
            await audit(
                state,
                ClusterSource(cluster, timeout=timeout, frugal=True),
                bytes_per_second=bytes_per_second,
                clock=clock,
                courtesy=courtesy,
                timing=timing,
            )
            return summarize(state, cluster.cluster_id, started, clock.now())
