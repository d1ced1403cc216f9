"""The way to one cluster: whoever of its voters answers, and a new connection when none does.

A compactor outlives members, credentials and those who asked for it. This module must not know what is
asked of the members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from etcdmaint import errors
from etcdmaint.errors import EtcdError, EtcdmaintError
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.cluster import ClusterClient, voters_of

Dial = Callable[[], Awaitable[ClusterClient]]
"""Connects afresh, with whatever endpoints and credentials are right by now. Raises EtcdmaintError."""

_NEW_CREDENTIALS = (
    errors.AuthenticationFailed,
    errors.AuthenticationRequired,
    errors.AuthNotEnabled,
    errors.PermissionDenied,
    errors.TokenExpired,
)


class Line:
    """Owns one connected cluster, and replaces it by `redial` when it is of no use any more."""

    def __init__(self, cluster: ClusterClient, redial: Dial) -> None:
        self._cluster = cluster
        self._redial = redial
        self._turn = 0
        self._doubtful = False
        self._useless = False
        self._renewing = asyncio.Lock()

    async def voters(self) -> list[MemberClient]:
        """Who may be asked, in this order; never empty.

        After a failure the members are looked for afresh, which takes up to two and a half of the
        connection's timeout. Raises EtcdmaintError when nobody can be asked.
        """
        async with self._renewing:
            if self._doubtful:
                await self._renew()
        try:
            found = list(voters_of(self._cluster).values())
        except EtcdError:
            self._doubtful = True
            raise
        first = self._turn % len(found)
        return found[first:] + found[:first]

    def failed(self, error: EtcdmaintError) -> None:
        """What was asked of the first voter failed: next time another one is the first."""
        self._turn += 1
        self._doubtful = True
        self._useless = self._useless or isinstance(error, _NEW_CREDENTIALS)

    async def take(self, cluster: ClusterClient) -> None:
        """Use this connection from now on, and close the one so far."""
        async with self._renewing:
            await self._swap(cluster)

    async def close(self) -> None:
        """Close the connection; what is being asked ends as ConnectionLost."""
        await self._cluster.close()

    async def _renew(self) -> None:
        if not self._useless:
            try:
                await self._cluster.refresh()
            except EtcdmaintError:
                self._useless = True
            else:
                self._doubtful = False
                return
        await self._swap(await self._redial())

    async def _swap(self, cluster: ClusterClient) -> None:
        old, self._cluster = self._cluster, cluster
        self._doubtful = self._useless = False
        await old.close()
