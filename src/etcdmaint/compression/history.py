"""What old revisions hold, which nobody sees and which is often most of an etcd.

etcd tells no sizes of old revisions, and reading them all back as a watcher would make it load them
at once. But it can be read as it was at the oldest revision that is left, and beside it as it is now;
a key's `version` counts its writes, so each key tells how many revisions lie between. The sizes of
those that neither reading sees are taken as the mean of the two. Keys that were both created and
deleted in between are not seen at all, and the result says so.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from etcdmaint.clock import Clock
from etcdmaint.compression.census import Tally
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.resources import Keyspace, named
from etcdmaint.compression.source import Source
from etcdmaint.compression.walk import Courtesy, Progress, StandBack, Timing, Walk
from etcdmaint.errors import RevisionCompacted
from etcdmaint.etcd.entries import Entry
from etcdmaint.etcd.ranges import RangeReader

OTHERS = "(no known resource)"
_MOST_ROWS = 5_000


@dataclass(slots=True)
class History:
    """Old revisions by resource: how many, and about how many bytes of keys and values.

    `oldest` is the oldest revision that is left, `newest` what it was compared with. `complete` is
    false where `oldest` was compacted away meanwhile. `busiest`: number, key, bytes.
    """

    oldest: int
    newest: int
    rows: dict[str, Tally] = field(default_factory=dict)
    busiest: list[tuple[int, bytes, int]] = field(default_factory=list)
    complete: bool = True

    @property
    def total(self) -> Tally:
        """Over all resources."""
        return Tally.sum(self.rows.values())

    def sorted(self) -> list[tuple[str, Tally]]:
        """The rows, the one with the most bytes first."""
        return sorted(self.rows.items(), key=lambda each: (-each[1].bytes, each[0]))

    def sentence(self) -> str:
        """How far these figures go."""
        text = (
            f"Between revisions {self.oldest} and {self.newest}; sizes in between are means, and "
            "keys that came and went in between are not seen."
        )
        return text if self.complete else text + " Compacted meanwhile: this is a part of it."

    def document(self, key: Callable[[bytes], str]) -> dict[str, Any]:
        """For JSON."""
        return {
            "oldestRevision": self.oldest,
            "newestRevision": self.newest,
            "complete": self.complete,
            "oldRevisions": self.total.values,
            "bytes": self.total.bytes,
            "resources": [
                {"resource": name, "oldRevisions": held.values, "bytes": held.bytes}
                for name, held in self.sorted()
            ],
            "busiest": [
                {"key": key(name), "oldRevisions": number, "bytes": size}
                for number, name, size in self.busiest
            ],
        }


def held(old: Entry | None, new: Entry | None) -> tuple[int, int]:
    """How many old revisions a key has, seen at the oldest revision and now, and their bytes."""
    if new is None:
        # Deleted: its last value is there as long as the deletion is not compacted.
        return (1, _size(old)) if old is not None else (0, 0)
    if old is None:
        return new.version - 1, (new.version - 1) * _size(new)
    if old.mod_revision == new.mod_revision:
        return 0, 0
    # A key that was deleted meanwhile began to count anew.
    counted = old.version if old.create_revision == new.create_revision else 0
    between = new.version - counted - 1
    return 1 + between, _size(old) + between * (_size(old) + _size(new)) // 2


def _size(entry: Entry) -> int:
    return len(entry.key) + len(entry.value)


async def compare(
    source: Source,
    progress: Progress,
    keyspace: Keyspace,
    *,
    governor: Governor,
    clock: Clock,
    courtesy: Courtesy,
    timing: Timing,
    keep: int = 0,
) -> History:
    """Read everything as it is and as it was, side by side. `keep`: how many `busiest`.

    `progress` tells how far it is, and what to read; two walks do it, which see there for what they
    are given and for what they raise.
    """
    await StandBack(courtesy, clock, progress, timing.look)()
    reader = await source.reader()
    first = progress.spans[0][0]
    newest = await reader.newest(first)
    history = History(await oldest_revision(reader, first, newest), newest)
    busiest: list[tuple[int, bytes, int]] = []

    async def entries(progress: Progress, revision: int) -> AsyncGenerator[list[Entry], None]:
        progress.revisions = [revision]
        walk = Walk(
            progress,
            source,
            governor=governor,
            clock=clock,
            courtesy=courtesy,
            timing=timing,
            exact=True,
        )
        async with aclosing(walk.chunks()) as chunks:
            async for chunk in chunks:
                # Whoever asked has it, and fails with it.
                progress.note(chunk, len(chunk.entries))
                yield chunk.entries

    try:
        async with (
            aclosing(entries(Progress(progress.spans), history.oldest)) as before,
            aclosing(entries(progress, newest)) as after,
        ):
            async for pairs in _side_by_side(before, after):
                _count(history, pairs, keyspace, busiest, keep)
    except RevisionCompacted:
        history.complete = False
    history.busiest = sorted(busiest, reverse=True)
    return history


def _count(
    history: History,
    pairs: Iterable[tuple[Entry | None, Entry | None]],
    keyspace: Keyspace,
    busiest: list[tuple[int, bytes, int]],
    keep: int,
) -> None:
    for old, new in pairs:
        number, size = held(old, new)
        if number == 0:
            continue
        entry = new or old
        assert entry is not None
        found = keyspace.resource(entry.key)
        name = OTHERS if found is None else named(*found)
        if name not in history.rows and len(history.rows) >= _MOST_ROWS:
            name = OTHERS
        row = history.rows.setdefault(name, Tally())
        row.values += number
        row.bytes += size
        if keep:
            heapq.heappush(busiest, (number, entry.key, size))
            if len(busiest) > keep:
                heapq.heappop(busiest)


async def oldest_revision(reader: RangeReader, key: bytes, newest: int) -> int:
    """The oldest revision that can still be read: found by asking, in some thirty small reads."""
    low, high = 1, newest
    while low < high:
        middle = (low + high) // 2
        try:
            await reader.client.range(key, revision=middle, count_only=True, serializable=True)
        except RevisionCompacted:
            low = middle + 1
        else:
            high = middle
    return low


async def _side_by_side(
    before: AsyncGenerator[list[Entry], None], after: AsyncGenerator[list[Entry], None]
) -> AsyncGenerator[list[tuple[Entry | None, Entry | None]], None]:
    """Both, joined by key: each key once, with what it was and what it is."""
    old: list[Entry] = []
    new: list[Entry] = []
    more_old = more_new = True
    while True:
        if not old and more_old:
            old = await anext(before, [])
            more_old = bool(old)
        if not new and more_new:
            new = await anext(after, [])
            more_new = bool(new)
        if not old and not new:
            return
        # Up to here both are known whole.
        end = min(chunk[-1].key for chunk in (old, new) if chunk)
        was = {entry.key: entry for entry in old if entry.key <= end}
        now = {entry.key: entry for entry in new if entry.key <= end}
        old, new = old[len(was) :], new[len(now) :]
        yield [(was.get(key), now.get(key)) for key in {**was, **now}]
