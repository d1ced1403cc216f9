"""Reading keys of etcd in an hour in which not every member answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etcdmaint.cli import output
from etcdmaint.errors import EtcdError, MemberUnreachable, RevisionCompacted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.types import KeyValue, RangeResult

# A list has the values of its keys sent: about so many bytes at once, and a few to begin with.
_PAGE_BYTES = 2 << 20
_FIRST_KEYS, _MOST_KEYS = 8, 50


async def read(
    cluster: ClusterClient,
    key: bytes,
    end: bytes = b"",
    *,
    timeout: float,
    revision: int = 0,
    limit: int = 0,
    keys_only: bool = False,
    quiet: bool = False,
) -> RangeResult:
    """From whichever voter answers; where the cluster has no leader, what one of them has.

    `timeout` is seconds for each member; `quiet`: that nobody confirms it has been said. Raises
    EtcdError.
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
                    keys_only=keys_only,
                )
            except RevisionCompacted:
                raise
            except EtcdError as error:
                fault = error
                continue
            if serializable and not quiet:
                output.print_note(f"etcdmaint: {member} alone says so, perhaps from before")
            return found
    raise fault


async def pages(
    cluster: ClusterClient, prefix: bytes, *, most: int, timeout: float
) -> AsyncIterator[RangeResult]:
    """The first so many keys that begin so, at one revision and some megabytes at a time."""
    from etcdmaint.etcd.types import prefix_end

    position, end, revision, limit = prefix, prefix_end(prefix), 0, _FIRST_KEYS
    while most > 0:
        found = await read(
            cluster, position, end, timeout=timeout, revision=revision, limit=min(limit, most)
        )
        yield found
        if not found.more or not found.kvs:
            return
        revision = revision or found.header.revision
        position = found.kvs[-1].key + b"\0"
        most -= len(found.kvs)
        size = sum(len(kv.value) for kv in found.kvs) or 1
        limit = max(1, min(_PAGE_BYTES * len(found.kvs) // size, 4 * limit, _MOST_KEYS))


async def revisions(
    cluster: ClusterClient, key: bytes, *, timeout: float
) -> AsyncIterator[KeyValue | int]:
    """All of a key, from the newest back to the oldest that is left; a number is where it was deleted.

    What was deleted is found if it was there for longer than it has been gone, or at the oldest
    revision that is left; of several times, not each.
    """
    revision = 0
    while True:
        try:
            found = await read(cluster, key, timeout=timeout, revision=revision)
            deleted = 0
            if not found.kvs:
                deleted = await _deletion(cluster, key, revision or found.header.revision, timeout)
        except RevisionCompacted:
            return
        if found.kvs:
            yield found.kvs[0]
            revision = found.kvs[0].mod_revision - 1
        elif deleted:
            yield deleted
            revision = deleted - 1
        if not revision or not (found.kvs or deleted):
            return


async def _deletion(cluster: ClusterClient, key: bytes, gone: int, timeout: float) -> int:
    """A revision up to `gone` at which it was deleted, found in some sixty small reads; or 0."""

    async def there(revision: int) -> bool:
        found = await read(
            cluster, key, timeout=timeout, revision=revision, keys_only=True, quiet=True
        )
        return bool(found.kvs)

    # Further and further back, so that what was deleted a short while ago is found first.
    step, high, low = 1, gone, 0
    while not low:
        at = max(gone - step, 1)
        try:
            if await there(at):
                low = at
            elif at == 1:
                return 0
            else:
                high, step = at, 2 * step
        except RevisionCompacted:
            low = await _oldest(there, at + 1, high)
            if not await there(low):
                return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await there(middle) else (low, middle)
    return high


async def _oldest(there: Callable[[int], Awaitable[bool]], low: int, high: int) -> int:
    """The oldest revision that can be read, of which one up to `high` is known to be one."""
    while low < high:
        middle = (low + high) // 2
        try:
            await there(middle)
            high = middle
        except RevisionCompacted:
            low = middle + 1
    return low
