"""What fills a database: its live keys by the folder that they are in.

Every value has to be read for that, once; nothing of a value is kept but its length.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from etcdmaint.errors import RevisionCompacted
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.entries import Entry
from etcdmaint.etcd.ranges import RangeReader

_NO_END = b"\0"


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
    client: MemberClient,
    *,
    count: int = 10,
    timeout: float = 10.0,
    stopping: Callable[[], bool] = lambda: False,
) -> list[Prefix]:
    """The folders with the most bytes in live keys and values, the largest first. Raises EtcdError.

    `timeout` is for each message, in seconds. None at all once `stopping` says so.
    """
    found: dict[str, Prefix] = {}
    async with aclosing(_everything(RangeReader(client, timeout=timeout))) as entries:
        async for entry in entries:
            if stopping():
                return []
            name = prefix_of(entry.key)
            prefix = found.setdefault(name, Prefix(name))
            prefix.keys += 1
            prefix.size += len(entry.key) + len(entry.value)
            prefix.writes += entry.version
    return sorted(found.values(), key=lambda prefix: (-prefix.size, prefix.name))[:count]


async def _everything(reader: RangeReader) -> AsyncGenerator[Entry, None]:
    """Every key once; behind the last one at a newer revision where that one is compacted meanwhile."""
    position = _NO_END
    while True:
        try:
            async with aclosing(reader.read(position, _NO_END, 0)) as chunks:
                async for chunk in chunks:
                    for entry in chunk.entries:
                        yield entry
                    position = chunk.entries[-1].key + b"\0"
        except RevisionCompacted:
            continue
        return
