"""Compaction outside of the loop: what a person at a terminal looks at, and does when etcd is full.

How far etcd really is compacted is read from etcd itself, since the key only says what somebody meant to
do. This module must not know who asks, nor wait for anything but RPCs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from etcdmaint.compaction.compactor import Voter
from etcdmaint.compaction.election import KEY, State, Store, advertised, compact_physically, request
from etcdmaint.errors import EtcdError, RevisionCompacted, RPCTimeout
from etcdmaint.etcd.types import RangeResult

_EVERYTHING = (b"\0", b"\0")
_TELLING = 10.0


class Member(Voter, Protocol):
    """Whom this is asked of; an `etcd.client.MemberClient` is one."""

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        limit: int = 0,
        revision: int = 0,
        count_only: bool = False,
        timeout: float | None = None,
    ) -> RangeResult:
        """KV/Range."""


@dataclass(frozen=True, slots=True)
class History:
    """Where a store stands: `head` is its revision, `compacted` how far history is really cut.

    `version` and `advertised` are the key's: 0 for no key, None where it says nothing sensible.
    `written_at` is the revision at which it was written.
    """

    head: int
    compacted: int
    version: int
    advertised: int | None
    written_at: int = 0
    live_keys: int = 0

    @property
    def revisions(self) -> int:
        """How many revisions are kept."""
        return max(0, self.head - self.compacted)

    def bytes_of_history(self, in_use: int) -> int:
        """About how much of a member's bytes in use is history: as if all revisions were equally large."""
        return in_use * self.revisions // max(1, self.revisions + self.live_keys)


async def read_history(member: Member, *, timeout: float | None = None) -> History:
    """Look at everything that etcd tells of compaction. Raises EtcdError."""
    found = await member.range(KEY, timeout=timeout)
    kv = found.kvs[0] if found.kvs else None
    compacted = await read_compacted(member, timeout=timeout)
    live = await member.range(*_EVERYTHING, count_only=True, timeout=timeout)
    return History(
        head=found.header.revision,
        compacted=compacted,
        version=kv.version if kv else 0,
        advertised=advertised(kv, found.header.revision),
        written_at=kv.mod_revision if kv else 0,
        live_keys=live.count,
    )


async def read_compacted(member: Member, *, timeout: float | None = None) -> int:
    """The revision to which this member is compacted, by its own word; 0 for not at all.

    Only a watcher that comes too late is told the revision (RPC Watch from revision 1), and only where
    there is one to tell (RPC Range at revision 1 fails then). Raises EtcdError.
    """
    try:
        await member.range(KEY, revision=1, timeout=timeout)
    except RevisionCompacted:
        pass
    else:
        return 0
    try:
        async with asyncio.timeout(_TELLING if timeout is None else timeout):
            async with member.watch(KEY, start_revision=1) as changes:
                async for _ in changes:
                    continue
    except RevisionCompacted as told:
        return told.compact_revision
    except TimeoutError:
        pass
    raise RPCTimeout("etcd does not say to which revision it is compacted")


@dataclass(frozen=True, slots=True)
class HistoryByHand:
    """Cuts history where etcd is full, and tells the other contenders. Every method raises EtcdError.

    In seconds: `timeout` for a question, `limit` for one member's compaction.
    """

    timeout: float
    limit: float

    async def compacted(self, member: Member) -> int:
        """As `read_compacted`."""
        return await read_compacted(member, timeout=self.timeout)

    async def compact(self, members: Sequence[Member], revision: int) -> None:
        """Compact to this revision, physically and on every member, and see that it is so.

        One that had been compacted as far already is as good. An error means that it is not known to
        be done: it may be asked for again.
        """
        first, *others = members
        with contextlib.suppress(RevisionCompacted):
            await compact_physically(first, others, revision, self.limit, others_timeout=self.limit)
        compacted = await read_compacted(first)
        if compacted < revision:
            raise EtcdError(f"compacted to {revision}, but etcd says that it is at {compacted}")

    async def is_told(self, member: Store, revision: int) -> bool:
        """Whether the key says that as much is compacted; also where there is no key."""
        version, said = await self._read_key(member)
        return version == 0 or said >= revision

    async def publish(self, member: Store, revision: int) -> bool:
        """Have the key say what was compacted without it; whether it had to be written.

        By the same compare-and-swap as in the election, so that other contenders only see one more
        round. A key that says as much or more is left alone, also when it is moved on meanwhile.
        """
        version, said = await self._read_key(member)
        if said >= revision:
            return False
        swap = request(State(version, revision))
        return (await member.txn(*swap, timeout=self.timeout)).succeeded

    async def _read_key(self, member: Store) -> tuple[int, int]:
        """The key's version and the revision that it says, 0 for nothing sensible."""
        found = await member.range(KEY, timeout=self.timeout)
        kv = found.kvs[0] if found.kvs else None
        return kv.version if kv else 0, advertised(kv, found.header.revision) or 0
