"""A clock that moves only when a test says so, and a way to a store that fails when it says so."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from etcdmaint.compaction.compactor import Voter
from etcdmaint.compaction.election import KEY
from etcdmaint.errors import EtcdmaintError, NoLeader
from etcdmaint.etcd.types import KeyValue
from etcdmaint.etcd.watch import Event, EventKind, WatchBatch

from .kv import InMemoryStore

_TURNS = 30
"""Turns of the event loop after which everything that can happen without time has happened."""


class SteppedClock:
    """Sleepers wake in their order while `advance` runs."""

    def __init__(self) -> None:
        self.time = 0.0
        self.start = datetime(2026, 1, 1, tzinfo=UTC)
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.time)

    async def sleep(self, seconds: float) -> None:
        waker = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.time + seconds, next(self._order), waker))
        await waker

    @property
    def sleeping(self) -> list[float]:
        """For how many seconds from now somebody sleeps, each."""
        return sorted(when - self.time for when, _, waker in self._sleepers if not waker.done())

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and all happen that happens in them."""
        await settle()
        until = self.time + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            when, _, waker = heapq.heappop(self._sleepers)
            if waker.done():
                continue
            self.time = max(self.time, when)
            waker.set_result(None)
            await settle()
        self.time = until
        await settle()


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@dataclass
class WatchedStore(InMemoryStore):
    """The store in memory with a watch that the test feeds."""

    started_at: list[int] = field(default_factory=list)
    """From which revision each watch was started."""
    watches: int = 0
    refuse_watch: EtcdmaintError | None = None

    def __post_init__(self) -> None:
        self._feed: asyncio.Queue[WatchBatch | EtcdmaintError] = asyncio.Queue()

    @asynccontextmanager
    async def watch(
        self, key: bytes, *, start_revision: int = 0
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        assert key == KEY
        if self.refuse_watch is not None:
            raise self.refuse_watch
        self.started_at.append(start_revision)
        self._feed = asyncio.Queue()
        self.watches += 1
        try:
            yield self._batches(self._feed)
        finally:
            self.watches -= 1

    async def _batches(
        self, feed: asyncio.Queue[WatchBatch | EtcdmaintError]
    ) -> AsyncIterator[WatchBatch]:
        while True:
            found = await feed.get()
            if isinstance(found, EtcdmaintError):
                raise found
            yield found

    def tell(self, *values: bytes | None) -> None:
        """One message with an event for each value; None: the key was deleted."""
        events = []
        for value in values:
            if value is None:
                self.delete()
                gone = KeyValue(KEY, b"", 0, 0, self.revision)
                events.append(Event(EventKind.DELETE, gone))
            else:
                self.put(value)
                assert self.kv is not None
                events.append(Event(EventKind.PUT, self.kv))
        self._feed.put_nowait(WatchBatch(self.header, tuple(events)))

    def told(self) -> None:
        """One message with the key as it is."""
        assert self.kv is not None
        self._feed.put_nowait(WatchBatch(self.header, (Event(EventKind.PUT, self.kv),)))

    def end_watch(self, error: EtcdmaintError | None = None) -> None:
        """The stream breaks."""
        self._feed.put_nowait(error or NoLeader("no leader"))


@dataclass
class OneWay:
    """The way to one or more stores."""

    stores: Sequence[Voter]
    failures: list[EtcdmaintError] = field(default_factory=list)
    away: EtcdmaintError | None = None
    asked: int = 0

    async def voters(self) -> Sequence[Voter]:
        self.asked += 1
        if self.away is not None:
            raise self.away
        return self.stores

    def failed(self, error: EtcdmaintError) -> None:
        self.failures.append(error)


@dataclass
class Counted:
    """What an observer was told."""

    told: list[tuple[object, ...]] = field(default_factory=list)

    def started(self, cluster: str) -> None:
        self.told.append(("started", cluster))

    def round(self, cluster: str, result: str, clock: int) -> None:
        self.told.append(("round", str(result), clock))

    def known(self, cluster: str, revision: int) -> None:
        """Ignore it."""

    def advanced(self, cluster: str, revision: int, timestamp: float) -> None:
        self.told.append(("advanced", revision))

    def stopped(self, cluster: str) -> None:
        self.told.append(("stopped", cluster))

    @property
    def rounds(self) -> list[object]:
        """The results in their order."""
        return [entry[1] for entry in self.told if entry[0] == "round"]


__all__ = ["Counted", "OneWay", "SteppedClock", "WatchedStore", "settle"]
