"""What fills a database: its live keys by the folder that they are in.

Every value has to be read for that, once and in pages; nothing of a value is kept but its length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from etcdmaint.errors import RevisionCompacted
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.types import KeyValue

_PAGE_BYTES = 8 << 20
_FIRST_PAGE, _LARGEST_PAGE = 200, 10_000
_END = b"\0"


@dataclass(slots=True)
class Prefix:
    """One folder: how many keys, their bytes, and how often they were written since they exist."""

    name: str
    keys: int = 0
    size: int = 0
    writes: int = 0


def prefix_of(key: bytes) -> str:
    """The folder that tells what a key is: `/registry/pods/`, `/registry/apps.example/things/`.

    Never so deep that the name of a single object is in it.
    """
    parts = key.split(b"/")
    if len(parts) == 1:
        return "(keys without a /)"
    depth = 1 if parts[0] else 2
    if len(parts) > depth + 2 and b"." in parts[depth]:
        depth += 1
    shown = b"/".join(parts[: min(depth + 1, len(parts) - 1)]) + b"/"
    return shown.decode(errors="replace")


async def largest_prefixes(
    client: MemberClient, *, count: int = 10, timeout: float | None = None
) -> list[Prefix]:
    """The folders with the most bytes in live keys and values, the largest first. Raises EtcdError."""
    found: dict[str, Prefix] = {}
    async for kv in _everything(client, timeout):
        name = prefix_of(kv.key)
        prefix = found.setdefault(name, Prefix(name))
        prefix.keys += 1
        prefix.size += len(kv.key) + len(kv.value)
        prefix.writes += kv.version
    return sorted(found.values(), key=lambda prefix: (-prefix.size, prefix.name))[:count]


async def _everything(client: MemberClient, timeout: float | None) -> AsyncIterator[KeyValue]:
    """Every key of one revision, or of the newest where that one is compacted meanwhile."""
    key, limit, revision = b"\0", _FIRST_PAGE, 0
    while True:
        try:
            page = await client.range(
                key, _END, limit=limit, revision=revision, serializable=True, timeout=timeout
            )
        except RevisionCompacted:
            revision = 0
            continue
        revision = revision or page.header.revision
        for kv in page.kvs:
            yield kv
        if not page.more:
            return
        key = page.kvs[-1].key + b"\0"
        size = sum(len(kv.key) + len(kv.value) for kv in page.kvs) // len(page.kvs)
        limit = max(1, min(_LARGEST_PAGE, 4 * limit, _PAGE_BYTES // max(1, size)))
