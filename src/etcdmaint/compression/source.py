"""Whom to read from: a member whose work matters least to everybody else.

A healthy follower, never a learner (it may be far behind) and never a member that is being
defragmented; the leader only where it is the only voter. Choosing is pure, `ClusterSource` asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from etcdmaint.errors import ClusterNotHealthy, EtcdError
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.ranges import RangeReader
from etcdmaint.etcd.types import Member, MemberStatus

# Entries of the raft log that a follower may be behind.
_LAG = 1000
_LOOK_SECONDS = 2.0


class Source(Protocol):
    """Where to read."""

    async def reader(self) -> RangeReader:
        """A reader of a member that is fit for it now. Raises EtcdError, ClusterNotHealthy."""


class ClusterSource:
    """A cluster, of which the best member is chosen anew whenever a reader is asked for.

    `timeout` (seconds) is for each call, `frugal` is the reader's. `member` is who was chosen last.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        timeout: float = 10.0,
        serializable: bool = True,
        frugal: bool = False,
    ) -> None:
        self.member: Member | None = None
        self._cluster = cluster
        self._timeout = timeout
        self._serializable = serializable
        self._frugal = frugal

    async def reader(self) -> RangeReader:
        """See `Source`."""
        if self.member is not None:
            await self._cluster.refresh()
        # A member that is being defragmented does not answer, and is not to be waited for.
        timeout = min(self._timeout, _LOOK_SECONDS)
        statuses = await self._cluster.statuses(timeout)
        metrics = {
            member.id: await self._cluster.metrics(member.id, timeout=timeout)
            for member in self._cluster.members
            if isinstance(statuses[member.id], MemberStatus)
        }
        self.member = choose(self._cluster.members, statuses, metrics)
        return RangeReader(
            self._cluster.client(self.member.id),
            serializable=self._serializable,
            timeout=self._timeout,
            frugal=self._frugal,
        )


def choose(
    members: Sequence[Member],
    statuses: Mapping[int, MemberStatus | EtcdError],
    metrics: Mapping[int, MemberMetrics | None],
) -> Member:
    """The member to read from. Raises ClusterNotHealthy (`NoReader`) that tells what each lacks."""
    voters = [member for member in members if not member.is_learner]
    known = [status for status in statuses.values() if isinstance(status, MemberStatus)]
    applied = max((status.raft_applied_index for status in known), default=0)
    faults: dict[str, str] = {}
    fit: list[tuple[int, str, Member]] = []
    for member in voters:
        status, measured = statuses.get(member.id), metrics.get(member.id)
        fault = ""
        if not isinstance(status, MemberStatus):
            fault = str(status) if status else "was not asked"
        elif status.leader == 0:
            fault = "knows no leader"
        elif status.leader == member.id and len(voters) > 1:
            fault = "is the leader"
        elif measured is not None and measured.defrag_inflight:
            fault = "is being defragmented"
        elif applied - status.raft_applied_index > _LAG:
            fault = f"is {applied - status.raft_applied_index} entries behind"
        else:
            fit.append((applied - status.raft_applied_index, member.name, member))
        if fault:
            faults[str(member)] = fault
    if not fit:
        told = "; ".join(f"{name} {fault}" for name, fault in faults.items())
        raise ClusterNotHealthy("NoReader", f"no member is fit to be read from: {told}")
    return min(fit, key=lambda each: each[:2])[2]
