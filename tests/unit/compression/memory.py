"""An etcd in memory for the walk: revisions, compaction and failures when a test says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

from etcdmaint.errors import EtcdError, RevisionCompacted
from etcdmaint.etcd.entries import Chunk, Entry


class MemoryEtcd:
    """A source and its reader in one; `chunk` entries at a time.

    `before` is called with the number of each chunk about to be read and may change anything here.
    """

    def __init__(self, *, chunk: int = 2) -> None:
        self.revision = 1
        self.compacted = 0
        self.latency = 0.001
        self.fault: EtcdError | None = None
        self.before: Callable[[int], None] = lambda _: None
        self.readers = 0
        self.clock = ManualClock()
        self.client = self
        self._kept: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._chunk = chunk
        self._chunks = 0

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a key, or delete it with None."""
        self.revision += 1
        self._kept.setdefault(key, []).append((self.revision, value))

    def at(self, revision: int) -> list[Entry]:
        """Everything as it was."""
        found = []
        for key, revisions in sorted(self._kept.items()):
            past = [each for each in revisions if each[0] <= revision]
            if not past or past[-1][1] is None:
                continue
            gone = max((at for at, value in past if value is None), default=0)
            lived = [at for at, _ in past if at > gone]
            found.append(Entry(key, past[-1][1], len(lived), lived[0], lived[-1], 0))
        return found

    async def reader(self) -> Any:
        self.readers += 1
        self._fail()
        return self

    async def newest(self, key: bytes = b"\0") -> int:
        self._fail()
        return self.revision

    async def count(self, start: bytes, end: bytes, revision: int = 0) -> int:
        return len([1 for each in self.at(self.revision) if _within(each.key, start, end)])

    async def range(self, key: bytes, **flags: Any) -> None:
        self.clock.time += self.latency
        if flags.get("revision", self.revision) < self.compacted:
            raise RevisionCompacted("compacted")

    async def read(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Chunk, None]:
        entries = [each for each in self.at(revision) if _within(each.key, start, end)]
        for position in range(0, len(entries), self._chunk):
            self._chunks += 1
            self.before(self._chunks)
            self._fail()
            if revision < self.compacted:
                raise RevisionCompacted("compacted")
            some = entries[position : position + self._chunk]
            yield Chunk(some, sum(len(each.key) + len(each.value) for each in some))

    def _fail(self) -> None:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault


class Alone:
    """Nobody else works on the cluster."""

    async def holder(self) -> str:
        return ""


class ManualClock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def _within(key: bytes, start: bytes, end: bytes) -> bool:
    return key >= start and (end == b"\0" or key < end)
