"""Any number of contenders over one store, in a time that is only counted.

Every RPC takes its way to the store, is carried out there at one instant, and takes its way back; each
may be cut off. Nothing sleeps, so a hundred intervals of ten contenders take milliseconds. Contenders
run the real round; the loop around it is the compactor's: a whole interval, then a round.
"""

from __future__ import annotations

import heapq
import itertools
import random
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from etcdmaint.compaction.election import KEY, Result, Round, State, run_round
from etcdmaint.errors import MemberUnreachable, RPCTimeout
from etcdmaint.etcd.types import Header, RangeResult, TxnResult

from .kv import InMemoryStore

INTERVAL = 300.0
TIMEOUT = 5.0
EPSILON = 1e-6


@types.coroutine
def _wait(until: float) -> Generator[float, None, None]:
    yield until


@dataclass(eq=False)
class Contender:
    """One of them, and the faults of its network."""

    name: int
    partitioned: bool = False
    lost_replies: int = 0
    """So many answers to come are carried out and never arrive."""
    latency: float = 0.0
    state: State = field(default_factory=State)
    held: list[tuple[float, Round]] = field(default_factory=list)
    alive: bool = True


@dataclass
class World:
    """The store, the time, and what is watched: the invariants are asserted as things happen."""

    store: InMemoryStore = field(default_factory=lambda: InMemoryStore(revision=1))
    now: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    contenders: list[Contender] = field(default_factory=list)
    swaps: list[tuple[float, int]] = field(default_factory=list)
    """When the key was written by a contender, and its version then."""
    compactions: list[tuple[float, int]] = field(default_factory=list)
    tampered: bool = False
    """Somebody else has deleted the key: from then on versions may coincide (C17)."""

    def __post_init__(self) -> None:
        self._agenda: list[tuple[float, int, Coroutine[Any, Any, None]]] = []
        self._order = itertools.count()
        self._born = [(0.0, self.store.revision)]

    def add(self, *, phase: float) -> Contender:
        """One more, whose first interval begins after so many seconds."""
        contender = Contender(len(self.contenders))
        self.contenders.append(contender)
        self._later(self.now + phase, self._contend(contender))
        return contender

    def restart(self, contender: Contender) -> Contender:
        """It dies wherever it is, and one that remembers nothing takes its place."""
        contender.alive = False
        fresh = self.add(phase=self.random.uniform(0, 1))
        self.contenders.remove(contender)
        return fresh

    def write(self, times: int) -> None:
        """Somebody writes other keys."""
        self.store.write(times)
        self._note()

    def pass_time(self, seconds: float) -> None:
        """Let everything happen that is due."""
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, process = heapq.heappop(self._agenda)
            try:
                self._later(process.send(None), process)
            except StopIteration:
                continue
        self.now = until

    def close(self) -> None:
        """End all coroutines."""
        for _, _, process in self._agenda:
            process.close()

    def _later(self, when: float, process: Coroutine[Any, Any, None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), process))

    async def _contend(self, contender: Contender) -> None:
        store = _Wire(self, contender)
        while True:
            await _wait(self.now + INTERVAL)
            if not contender.alive:
                return
            held = await run_round(store, contender.state)
            contender.state = held.state
            contender.held.append((self.now, held))

    def _note(self) -> None:
        if self.store.revision > self._born[-1][1]:
            self._born.append((self.now, self.store.revision))

    def age(self, revision: int) -> float:
        """How many seconds ago the store had this revision already."""
        return self.now - next(when for when, head in self._born if head >= revision)

    def carried_out(self, contender: Contender, rpc: str, answer: Any, arguments: Any) -> None:
        """Look at what has just happened to the store."""
        self._note()
        if rpc == "txn" and isinstance(answer, TxnResult) and answer.succeeded:
            version = self.store.version
            if self.swaps and not self.tampered:
                when, before = self.swaps[-1]
                assert version > before, "the key's version went back"
                assert self.now - when > INTERVAL - EPSILON, (
                    "two elections were won in one interval"
                )
            self.swaps.append((self.now, version))
        if rpc == "compact":
            revision = arguments[0]
            assert self.age(revision) > INTERVAL - EPSILON, "compacted younger than one interval"
            self.compactions.append((self.now, revision))


class _Wire:
    """The store as one contender reaches it."""

    def __init__(self, world: World, contender: Contender) -> None:
        self._world = world
        self._contender = contender

    async def txn(self, *arguments: Any, timeout: float | None = None) -> TxnResult:
        answer = await self._call("txn", self._world.store.txn, arguments, {})
        assert isinstance(answer, TxnResult)
        return answer

    async def range(self, key: bytes, *, timeout: float | None = None) -> RangeResult:
        answer = await self._call("range", self._world.store.range, (key,), {})
        assert isinstance(answer, RangeResult)
        return answer

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> Header:
        found = await self._call(
            "compact", self._world.store.compact, (revision,), {"physical": physical}
        )
        assert isinstance(found, Header)
        return found

    async def _call(
        self, rpc: str, method: Callable[..., Any], arguments: Any, keywords: dict[str, Any]
    ) -> Any:
        world, contender = self._world, self._contender
        if contender.partitioned:
            await _wait(world.now + TIMEOUT)
            raise MemberUnreachable("partitioned")
        one_way = world.random.uniform(0, contender.latency)
        await _wait(world.now + one_way)
        answer = await method(*arguments, **keywords)
        world.carried_out(contender, rpc, answer, arguments)
        if contender.lost_replies:
            contender.lost_replies -= 1
            await _wait(world.now + TIMEOUT)
            raise RPCTimeout("the answer was lost")
        await _wait(world.now + one_way)
        if contender.partitioned:
            raise RPCTimeout("cut off before the answer")
        return answer


__all__ = ["INTERVAL", "KEY", "Contender", "Result", "World"]
