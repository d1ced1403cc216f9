"""The connection of a run to its cluster: made anew when the way there or the credentials change (D51)."""

from __future__ import annotations

from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdError, MemberUnreachable
from etcdmaint.etcd.client import MemberClient, RpcObserver
from etcdmaint.etcd.cluster import ClusterClient


class Link:
    """Holds at most one connected cluster."""

    def __init__(self, timeout: float, observer: RpcObserver | None) -> None:
        self._timeout = timeout
        self._observer = observer
        self._target: Target | None = None
        self._cluster: ClusterClient | None = None

    @property
    def cluster(self) -> ClusterClient:
        """The connected cluster."""
        if self._cluster is None:
            raise MemberUnreachable("the cluster is not connected")
        return self._cluster

    async def follow(self, target: Target) -> ClusterClient:
        """Connect to the target, or keep the connection when the way there is still the same."""
        if self._cluster is not None and self._target is not None:
            old = self._target
            if (old.seeds, old.access, old.metrics_port) == (
                target.seeds,
                target.access,
                target.metrics_port,
            ):
                return self._cluster
        # The old connection stays until there is a new one: credentials that have just been broken must
        # not take away the means to look after a member in flight.
        fresh = await ClusterClient.connect(
            target.seeds,
            target.access,
            timeout=self._timeout,
            observer=self._observer,
            metrics_port=target.metrics_port,
        )
        await self.close()
        self._cluster, self._target = fresh, target
        return fresh

    def client(self, *, prefer: int = 0, avoid: int | None = None) -> MemberClient:
        """A voter that can be asked now: the preferred one, else any but the one to avoid."""
        cluster = self.cluster
        failure: EtcdError | None = None
        ids = [member.id for member in cluster.members if not member.is_learner]
        for member_id in sorted(ids, key=lambda i: (i == avoid, i != prefer)):
            try:
                return cluster.client(member_id)
            except EtcdError as error:
                failure = error
        raise failure or MemberUnreachable("the cluster has no voter that can be asked")

    async def close(self) -> None:
        """Close the connection."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.close()
