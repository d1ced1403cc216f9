"""Reading keys of etcd in an hour in which not every member answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etcdmaint.cli import output
from etcdmaint.errors import EtcdError, MemberUnreachable, RevisionCompacted

if TYPE_CHECKING:
    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.types import RangeResult


async def read(
    cluster: ClusterClient,
    key: bytes,
    end: bytes = b"",
    *,
    timeout: float,
    revision: int = 0,
    limit: int = 0,
) -> RangeResult:
    """From whichever voter answers; where the cluster has no leader, what one of them has.

    `timeout` is seconds for each member. Raises EtcdError.
    """
    fault: EtcdError = MemberUnreachable("no voter can be reached")
    for serializable in (False, True):
        for member in cluster.members:
            if member.is_learner:
                continue
            try:
                found = await cluster.client(member.id).range(
                    key,
                    end,
                    serializable=serializable,
                    timeout=timeout,
                    revision=revision,
                    limit=limit,
                )
            except RevisionCompacted:
                raise
            except EtcdError as error:
                fault = error
                continue
            if serializable:
                output.print_note(f"etcdmaint: {member} alone says so, perhaps from before")
            return found
    raise fault
