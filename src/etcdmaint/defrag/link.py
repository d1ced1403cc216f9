"""The connection of a run to its cluster: made anew when the way there or the credentials change (D51)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdError, MemberUnreachable, WrongMember
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient, RpcObserver
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import format_id


class Connect(Protocol):
    """How a cluster is connected: `ClusterClient.connect`."""

    async def __call__(
        self,
        seeds: Sequence[Endpoint],
        access: Access,
        *,
        timeout: float,
        observer: RpcObserver | None,
        metrics_port: int | None,
    ) -> ClusterClient:
        """Raises EtcdError or ClusterNotHealthy when no member can be reached or trusted."""


class Link:
    """Holds at most one connected cluster."""

    def __init__(
        self,
        timeout: float,
        observer: RpcObserver | None,
        connect: Connect = ClusterClient.connect,
    ) -> None:
        self._timeout = timeout
        self._observer = observer
        self._connect = connect
        self._target: Target | None = None
        self._cluster: ClusterClient | None = None
        self._asked = 0

    @property
    def cluster(self) -> ClusterClient:
        """The connected cluster."""
        if self._cluster is None:
            raise MemberUnreachable("the cluster is not connected")
        return self._cluster

    @property
    def connected(self) -> bool:
        """Whether there is one."""
        return self._cluster is not None

    async def follow(self, target: Target, *, stay: bool = False) -> ClusterClient:
        """Connect to the target, or keep the connection when the way there is still the same.

        With `stay` the target must lead to the cluster that is connected already: raises WrongMember.
        """
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
        fresh = await self._connect(
            target.seeds,
            target.access,
            timeout=self._timeout,
            observer=self._observer,
            metrics_port=target.metrics_port,
        )
        known = self._cluster
        if stay and known is not None and known.cluster_id != fresh.cluster_id:
            await fresh.close()
            raise WrongMember(
                f"the endpoints now lead to cluster {format_id(fresh.cluster_id)}, the run began on "
                f"{format_id(known.cluster_id)}"
            )
        await self.close()
        self._cluster, self._target = fresh, target
        return fresh

    def client(self, *, prefer: int = 0, avoid: Collection[int] = ()) -> MemberClient:
        """A voter to ask: the preferred one, else another one each time, those to avoid last."""
        cluster = self.cluster
        self._asked += 1
        ids = [member.id for member in cluster.members if not member.is_learner]
        turned = sorted(ids, key=lambda i: (ids.index(i) + self._asked) % len(ids))
        failure: EtcdError | None = None
        for member_id in sorted(turned, key=lambda i: (i in avoid, i != prefer)):
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
