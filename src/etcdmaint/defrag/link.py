"""The connection of a run to its cluster: made anew when the way there or the credentials change (D51)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Self

from etcdmaint.defrag.run import Target
from etcdmaint.errors import MemberUnreachable, WrongMember
from etcdmaint.etcd.client import MemberClient, RpcObserver
from etcdmaint.etcd.cluster import ClusterClient, voters_of
from etcdmaint.etcd.types import format_id

Connect = Callable[..., Awaitable[ClusterClient]]
"""How a cluster is connected: as `ClusterClient.connect` does it."""


class Link:
    """Holds at most one connected cluster; an async context manager that closes it at its end."""

    def __init__(
        self,
        timeout: float,
        observer: RpcObserver | None,
        connect: Connect = ClusterClient.connect,
    ) -> None:
        self._timeout = timeout
        self._observer = observer
        self._connect = connect
        self._way: tuple[Any, ...] = ()
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
        way = (target.seeds, target.access, target.metrics_port)
        if self._cluster is not None and self._way == way:
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
        self._cluster, self._way = fresh, way
        if known is not None:
            await known.close()
        return fresh

    def client(self, *, prefer: int = 0, avoid: Collection[int] = ()) -> MemberClient:
        """A voter to ask: the preferred one, else another one each time, those to avoid last."""
        voters = voters_of(self.cluster)
        self._asked += 1
        first = self._asked % len(voters)
        turned = [*voters][first:] + [*voters][:first]
        return voters[min(turned, key=lambda i: (i in avoid, i != prefer))]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            await cluster.close()
