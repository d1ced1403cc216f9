"""Takes part in the election of one cluster for as long as it runs, and knows how far is compacted.

Two things go on side by side: a round after each interval, and a watch on the key, by which it learns of
other contenders' rounds at once. Whatever goes wrong with either is told and tried again; only
cancellation ends it, at any await. This module must not know how the cluster is reached, nor who asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from etcdmaint.clock import Clock, came_within
from etcdmaint.compaction.election import (
    KEY,
    PHYSICAL_TIMEOUT,
    Result,
    Round,
    State,
    Store,
    advertised,
    ask_until_sent,
)
from etcdmaint.compaction.knowledge import Knowledge, Observer, View
from etcdmaint.errors import EtcdError, EtcdmaintError, MemberUnreachable, PermissionDenied
from etcdmaint.etcd.types import KeyValue
from etcdmaint.etcd.watch import WatchBatch

log = logging.getLogger(__name__)


class Voter(Store, Protocol):
    """A member to hold a round with and to watch; an `etcd.client.MemberClient` is one."""

    def watch(
        self, key: bytes, *, start_revision: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchBatch]]:
        """Watch/Watch of one key that requires a leader; it ends with an EtcdError."""


class Route(Protocol):
    """The way to the cluster."""

    async def voters(self) -> Sequence[Voter]:
        """Who may be asked, in this order, at least one. Raises EtcdmaintError."""

    def failed(self, error: EtcdmaintError) -> None:
        """The first of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. `rewatch` before each attempt to watch, longer and longer while the cluster is away."""

    rpc_timeout: float = 5.0
    physical_timeout: float = PHYSICAL_TIMEOUT
    rewatch: float = 1.0
    longest_rewatch: float = 30.0
    stall_grace: float = 5.0
    """What a round itself may take, on top of the intervals, before one speaks of a stall."""


class Compactor:
    """One contender; `run` carries it on. Its view outlasts every change of interval and route."""

    def __init__(
        self,
        route: Route,
        interval: float,
        clock: Clock,
        *,
        cluster: str = "",
        observer: Observer,
        pace: Pace | None = None,
    ) -> None:
        """`interval` in seconds, 0 for no rounds; `cluster` is what metrics and logs call it."""
        self._route = route
        self._clock = clock
        self._cluster = cluster
        self._observer = observer
        self._pace = pace or Pace()
        self._changed = asyncio.Event()
        self._state = State()
        self._known = Knowledge(
            clock, cluster, self._observer, interval=interval, grace=self._pace.stall_grace
        )
        self._complained_at: float | None = None

    @property
    def compact_revision(self) -> int:
        """The newest revision that is compacted as far as known: it never goes back within one store."""
        return self._known.revision

    @property
    def state(self) -> State:
        """What it remembers of the election."""
        return self._state

    @property
    def interval(self) -> float:
        """Seconds between two rounds; 0: none are held."""
        return self._known.interval

    def set_interval(self, interval: float) -> None:
        """From now on so many seconds; the wait for the next round begins anew, nothing is forgotten."""
        if interval != self.interval:
            self._known.begin(interval)
            self._changed.set()

    def view(self) -> View:
        """What is known now."""
        return self._known.view()

    async def run(self, *, watch: bool = True) -> None:
        """Hold rounds, and watch the key, until cancelled."""
        self._observer.started(self._cluster)
        self._known.begin(self.interval)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hold_rounds())
                if watch:
                    group.create_task(self._watch())
        finally:
            self._observer.stopped(self._cluster)

    async def _hold_rounds(self) -> None:
        while True:
            self._changed.clear()
            if self.interval <= 0:
                await self._changed.wait()
            elif not await came_within(self._clock, self.interval, self._changed):
                await self._hold_round()

    async def _hold_round(self) -> None:
        result = Result.ERROR
        self._known.round_begins()
        try:
            held = await ask_until_sent(
                await self._route.voters(),
                self._state,
                timeout=self._pace.rpc_timeout,
                physical_timeout=self._pace.physical_timeout,
                failed=self._route.failed,
            )
        except EtcdmaintError as error:
            self._known.failed(error)
            self._complain("the cluster cannot be reached", error)
        else:
            result = held.result
            self._learn(held)
        finally:
            self._known.round_is_over()
        self._observer.round(self._cluster, result, self._known.key_version)

    def _learn(self, held: Round) -> None:
        if held.new_world:
            log.warning(
                "this store is younger than the one remembered: begins anew",
                extra={"cluster": self._cluster, "remembered_revision": self._state.revision},
            )
        self._state = held.state
        if held.error is not None:
            if not isinstance(held.error, MemberUnreachable):
                self._route.failed(held.error)
            self._complain("a round failed", held.error)
        self._known.learn(held)
        log.debug(
            "round",
            extra={"cluster": self._cluster, "result": held.result, "revision": held.revision},
        )

    async def _watch(self) -> None:
        pause = self._pace.rewatch
        refused = False
        while True:
            # What an administrator has to grant is asked for no more often than by a round.
            await self._clock.sleep(max(pause, self.interval) if refused else pause)
            refused = False
            begun = self._clock.monotonic()
            try:
                await self._follow((await self._route.voters())[0])
            except EtcdmaintError as error:
                if isinstance(error, EtcdError):
                    self._route.failed(error)
                self._complain("cannot watch the key", error)
                pause = min(pause * 2, self._pace.longest_rewatch)
                refused = isinstance(error, PermissionDenied)
            if self._clock.monotonic() - begun > self._pace.longest_rewatch:
                # It has watched for a while: what ended it is news, not the same again.
                pause = self._pace.rewatch

    async def _follow(self, voter: Voter) -> None:
        """Read the key, then every change of it, until the watch ends."""
        read = await voter.range(KEY, timeout=self._pace.rpc_timeout)
        head = read.header.revision
        kv = read.kvs[0] if read.kvs else None
        cut = self._said(kv, head)
        self._known.read(kv.version if kv else 0, kv.mod_revision if kv else head, cut)
        if cut is None:
            return
        async with voter.watch(KEY, start_revision=head) as changes:
            async for batch in changes:
                if batch.events:
                    last = batch.events[-1].kv
                    cut = self._said(last, batch.header.revision)
                    self._known.change(last.version, last.mod_revision, cut)

    def _said(self, kv: KeyValue | None, head: int) -> int | None:
        revision = advertised(kv, head)
        if revision is None:
            self._complain("the key holds no revision of this store", None)
        return revision

    def _complain(self, what: str, error: EtcdmaintError | None) -> None:
        """Log it as a warning, but not more often than once an interval."""
        now = self._clock.monotonic()
        often = self._complained_at is not None and now - self._complained_at < self.interval
        if not often:
            self._complained_at = now
        log.log(
            logging.DEBUG if often else logging.WARNING,
            what,
            extra={"cluster": self._cluster, "error": str(error) if error is not None else ""},
        )
