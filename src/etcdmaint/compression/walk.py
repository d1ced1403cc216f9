"""Going through an etcd from the first key to the last, without being in anybody's way.

At one revision as long as that is there; when it is compacted away, on with the newest, which is
said. It waits while somebody else works on the cluster, keeps to a rate, and goes to another member
when the one it reads from fails. Where it is can be told at any time and is where to go on from.
This module must not know what is made of the entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Protocol

from etcdmaint import errors
from etcdmaint.clock import Clock
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.source import Source
from etcdmaint.etcd.entries import Chunk, Entry
from etcdmaint.etcd.ranges import RangeReader

Span = tuple[bytes, bytes]
"""Keys from the first on, up to but without the second (`b"\\0"`: no end)."""

EVERYTHING: Span = (b"\0", b"\0")

# Another member, or a moment later, may do better.
_PASSING = (
    errors.MemberUnreachable,
    errors.ConnectionLost,
    errors.RPCTimeout,
    errors.WrongMember,
    errors.TokenExpired,
    errors.FutureRevision,
    errors.NoLeader,
    errors.ProposalDropped,
    errors.TooManyRequests,
    errors.ClusterNotHealthy,
)
_SMALL_READS = 5


class Courtesy(Protocol):
    """Whoever knows when to stand back."""

    async def holder(self) -> str:
        """Who works on this cluster now, for people; "" when nobody does."""


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds: how often to look for others and at etcd's latency, and how long to wait for them.

    `retry` is the pause before a member is tried again, `patience` how long nothing may come.
    """

    look: float = 5.0
    probe: float = 1.0
    retry: float = 1.0
    patience: float = 30.0


@dataclass(slots=True)
class Progress:
    """How far a walk is. `revisions`: each that was read at, in order; more than one is no snapshot.

    `position` is the next key, `keys` and `bytes` what was read, `expected` how many keys there were
    at the start. `waiting` says for whom, while it waits.
    """

    spans: tuple[Span, ...] = (EVERYTHING,)
    position: bytes = b""
    revisions: list[int] = field(default_factory=list)
    keys: int = 0
    bytes: int = 0
    expected: int = 0
    finished: bool = False
    waiting: str = ""

    def note(self, chunk: Chunk, done: int) -> None:
        """The first so many entries of the chunk have been dealt with."""
        if done:
            self.position = chunk.entries[done - 1].key + b"\0"
            self.keys += done
            self.bytes += chunk.size * done // len(chunk.entries)

    @property
    def consistent(self) -> bool:
        """Whether everything was read at one revision."""
        return self.finished and len(self.revisions) == 1

    @property
    def left(self) -> list[Span]:
        """What is still to be read."""
        return [
            (max(start, self.position), end)
            for start, end in self.spans
            if end == b"\0" or end > self.position
        ]


class StandBack:
    """Returns when nobody else works on the cluster; looks for them every few seconds only."""

    def __init__(
        self, courtesy: Courtesy, clock: Clock, progress: Progress, seconds: float = 5.0
    ) -> None:
        self._courtesy = courtesy
        self._clock = clock
        self._progress = progress
        self._seconds = seconds
        self._due = 0.0

    async def __call__(self) -> bool:
        """Whether it had to wait."""
        waited = False
        if self._clock.monotonic() >= self._due:
            while holder := await self._courtesy.holder():
                self._progress.waiting = holder
                await self._clock.sleep(self._seconds)
                waited = True
            self._progress.waiting = ""
            self._due = self._clock.monotonic() + self._seconds
        return waited


class Walk:
    """One way through `progress.spans`, which must be sorted and apart.

    Whoever goes over `chunks`, once, notes in `progress` what is dealt with before asking for more.

    `exact`: a revision that is compacted away ends the walk (RevisionCompacted). Otherwise it raises
    what keeps it from going on for longer than `timing.patience`: EtcdError or ClusterNotHealthy.
    """

    def __init__(
        self,
        progress: Progress,
        source: Source,
        *,
        governor: Governor,
        clock: Clock,
        courtesy: Courtesy,
        timing: Timing,
        exact: bool = False,
    ) -> None:
        self._progress = progress
        self._source = source
        self._governor = governor
        self._clock = clock
        self._timing = timing
        self._stand_back = StandBack(courtesy, clock, progress, timing.look)
        self._exact = exact
        self._pinned = bool(progress.revisions)
        self._probe_at = 0.0
        self._calmed: object = None

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """All that is left. Close it (`aclosing`)."""
        progress, timing = self._progress, self._timing
        last = self._clock.monotonic()
        begun = False
        while not progress.finished:
            try:
                if await self._stand_back():
                    last = self._clock.monotonic()
                reader = await self._source.reader()
                await self._begin(reader)
                begun = True
                async with aclosing(self._read(reader)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                        del chunk
                        await self._between(reader)
                        last = self._clock.monotonic()
                progress.finished = True
            except errors.RevisionCompacted:
                if self._exact:
                    raise
                self._pinned = False
            except _PASSING:
                # Whoever cannot even begin is told so at once.
                if not begun or self._clock.monotonic() - last >= timing.patience:
                    raise
                await self._clock.sleep(timing.retry)

    async def _read(self, reader: RangeReader) -> AsyncGenerator[Chunk, None]:
        for start, end in self._progress.left:
            async with aclosing(reader.read(start, end, self._progress.revisions[-1])) as chunks:
                async for chunk in chunks:
                    await self._governor.spend(chunk.size)
                    yield chunk
                    # Not held while the next one is on its way.
                    del chunk

    async def _begin(self, reader: RangeReader) -> None:
        """Pin a revision, unless a walk that was interrupted has one, and see how etcd is."""
        progress = self._progress
        if not self._pinned:
            progress.revisions.append(await reader.newest(self._progress.spans[0][0]))
            self._pinned = True
        if not progress.expected:
            counts = [await reader.count(start, end) for start, end in progress.left]
            progress.expected = progress.keys + sum(counts)
        if self._governor.rate is not None and self._calmed is not reader.client:
            # Not anew for the same member: it may be slow by now, and is not to stay so.
            self._governor.calm([await self._latency(reader) for _ in range(_SMALL_READS)])
            self._calmed = reader.client

    async def _between(self, reader: RangeReader) -> None:
        await self._stand_back()
        now = self._clock.monotonic()
        if self._governor.rate is not None and now >= self._probe_at:
            self._governor.observe(await self._latency(reader))
            self._probe_at = now + self._timing.probe

    async def _latency(self, reader: RangeReader) -> float:
        """Seconds for a linearizable read of one key that is not there."""
        begun = self._clock.monotonic()
        await reader.client.range(self._progress.spans[0][0], keys_only=True)
        return self._clock.monotonic() - begun


async def take(chunk: Chunk, deal: Callable[[Iterator[Entry]], object], progress: Progress) -> None:
    """Have a thread deal with a chunk, one entry after the other, and note how far it came.

    A thread, because dealing may block and takes milliseconds in any case. What `deal` raises is
    about the entry that it took last, which is then not noted. When this is cancelled, `deal` gets no
    further entries.
    """
    done = 0
    leaving = False

    def entries() -> Iterator[Entry]:
        nonlocal done
        for entry in chunk.entries:
            if leaving:
                return
            yield entry
            done += 1

    def work() -> None:
        try:
            deal(entries())
        finally:
            progress.note(chunk, done)

    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        leaving = True
        # However often it is cancelled: what the thread has counted must be noted.
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        raise


def spans_of(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same keys in spans that are sorted and apart."""
    kept: list[Span] = []
    for start, end in sorted(spans):
        if kept and (kept[-1][1] == b"\0" or start <= kept[-1][1]):
            start, before = kept.pop()
            end = b"\0" if b"\0" in (before, end) else max(before, end)
        kept.append((start, end))
    return tuple(kept)
