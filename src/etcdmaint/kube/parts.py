"""What everything that works on objects of the Kubernetes API stands on, once for a process."""

from __future__ import annotations

from dataclasses import dataclass

from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Fence, Target
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.kube.client import KubeApi
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.events import EventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Whom it asks and tells, and the fence that says whether it may act."""

    api: KubeApi
    clusters: Clusters
    events: EventSink
    fence: Fence
    clock: Clock
    observer: RpcObserver | None

    async def dial(
        self, target: Target, *, timeout: float, keepalive: float = 10.0
    ) -> ClusterClient:
        """Connect to what a clusterRef has led to; seconds. Raises EtcdError and ClusterNotHealthy."""
        return await ClusterClient.connect(
            target.seeds,
            target.access,
            timeout=timeout,
            observer=self.observer,
            metrics_port=target.metrics_port,
            keepalive=keepalive,
        )
