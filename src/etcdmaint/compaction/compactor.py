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
from datetime import datetime
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
    run_round,
)
from etcdmaint.errors import EtcdError, EtcdmaintError, MemberUnreachable
from etcdmaint.etcd.types import KeyValue
from etcdmaint.etcd.watch import WatchBatch

log = logging.getLogger(__name__)

STALLED_AFTER = 2
"""Intervals: a contender that dies leaves a gap shorter than that."""


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


class Observer(Protocol):
    """Who counts; `cluster` is etcd's cluster ID in hexadecimal."""

    def started(self, cluster: str) -> None:
        """A compactor takes part from now on."""

    def round(self, cluster: str, result: str, clock: int) -> None:
        """A round is over; `clock` is the key's version as known after it."""

    def known(self, cluster: str, revision: int) -> None:
        """History had been cut at this revision, nobody knows when."""

    def advanced(self, cluster: str, revision: int, timestamp: float) -> None:
        """History was cut at this revision, by whomever, at that Unix time."""

    def stopped(self, cluster: str) -> None:
        """It takes part no more."""


class NoObserver:
    """Counts nothing."""

    def started(self, cluster: str) -> None:
        """Ignore it."""

    def round(self, cluster: str, result: str, clock: int) -> None:
        """Ignore it."""

    def known(self, cluster: str, revision: int) -> None:
        """Ignore it."""

    def advanced(self, cluster: str, revision: int, timestamp: float) -> None:
        """Ignore it."""

    def stopped(self, cluster: str) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. `rewatch` before each attempt to watch, longer and longer while the cluster is away."""

    rpc_timeout: float = 5.0
    physical_timeout: float = PHYSICAL_TIMEOUT
    rewatch: float = 1.0
    longest_rewatch: float = 30.0
    stall_grace: float = 5.0
    """What a round itself may take, on top of the intervals, before one speaks of a stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a compactor knows at one instant; times are UTC, None for never.

    `revision`: the newest that is compacted as far as known (the key tells it before it is carried
    out), 0 for none. `clock`: the key's version as seen last. `error`: of the last round.
    """

    interval: float
    revision: int
    clock: int
    last_result: Result | None
    last_won_at: datetime | None
    last_seen_at: datetime | None
    advanced_at: datetime | None
    won_last: bool | None
    """Whether this compactor wrote the key last; None while nobody was seen to."""
    stalled: bool
    error: EtcdmaintError | None


class Compactor:
    """One contender; `run` carries it on. Its view outlasts every change of interval and route."""

    def __init__(
        self,
        route: Route,
        interval: float,
        clock: Clock,
        *,
        cluster: str = "",
        observer: Observer | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`interval` in seconds, 0 for no rounds; `cluster` is what metrics and logs call it."""
        self._route = route
        self._interval = interval
        self._clock = clock
        self._cluster = cluster
        self._observer = observer or NoObserver()
        self._pace = pace or Pace()
        self._changed = asyncio.Event()
        self._state = State()
        self._revision = 0
        self._key_version = 0
        self._key_revision = 0
        self._own_version = 0
        self._informed = False
        self._last_round: Round | None = None
        self._error: EtcdmaintError | None = None
        self._won_at: datetime | None = None
        self._seen_at: datetime | None = None
        self._advanced_at: datetime | None = None
        self._complained_at: float | None = None
        self._rewatch = self._pace.rewatch
        self._expect_anew()

    @property
    def compact_revision(self) -> int:
        """The newest revision that is compacted as far as known: it never goes back within one store."""
        return self._revision

    @property
    def state(self) -> State:
        """What it remembers of the election."""
        return self._state

    @property
    def interval(self) -> float:
        """Seconds between two rounds; 0: none are held."""
        return self._interval

    def set_interval(self, interval: float) -> None:
        """From now on so many seconds; the wait for the next round begins anew, nothing is forgotten."""
        if interval != self._interval:
            self._interval = interval
            self._expect_anew()
            self._changed.set()

    def view(self) -> View:
        """What is known now."""
        return View(
            interval=self._interval,
            revision=self._revision,
            clock=self._key_version,
            last_result=self._last_round.result if self._last_round else None,
            last_won_at=self._won_at,
            last_seen_at=self._seen_at,
            advanced_at=self._advanced_at,
            won_last=self._key_version == self._own_version if self._key_version else None,
            stalled=self._stalled(),
            error=self._error,
        )

    async def run(self, *, watch: bool = True) -> None:
        """Hold rounds, and watch the key, until cancelled."""
        self._observer.started(self._cluster)
        self._expect_anew()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._hold_rounds())
                if watch:
                    group.create_task(self._watch())
        finally:
            self._observer.stopped(self._cluster)

    # Rounds

    async def _hold_rounds(self) -> None:
        while True:
            self._changed.clear()
            if self._interval <= 0:
                await self._changed.wait()
            elif not await came_within(self._clock, self._interval, self._changed):
                await self.hold_round()

    async def hold_round(self) -> Round | None:
        """One round now; the caller answers for the interval. None where nobody could be asked."""
        try:
            held = await self._ask_until_sent(await self._route.voters())
        except EtcdmaintError as error:
            self._error = error
            self._complain("the cluster cannot be reached", error)
            self._observer.round(self._cluster, Result.ERROR, self._key_version)
            return None
        self._learn(held)
        return held

    async def _ask_until_sent(self, voters: Sequence[Voter]) -> Round:
        """A round with the first voter to which it can be sent at all."""
        for voter in voters:
            held = await run_round(
                voter,
                self._state,
                others=[other for other in voters if other is not voter],
                timeout=self._pace.rpc_timeout,
                physical_timeout=self._pace.physical_timeout,
            )
            if not isinstance(held.error, MemberUnreachable) or held.swapped:
                break
            self._route.failed(held.error)
        return held

    def _learn(self, held: Round) -> None:
        before, self._state = self._state, held.state
        self._last_round, self._error = held, held.error
        if held.new_world:
            log.warning(
                "this store is younger than the one remembered: begins anew",
                extra={"cluster": self._cluster, "remembered_revision": before.revision},
            )
            self._revision = self._key_version = self._key_revision = self._own_version = 0
        if held.error is not None:
            if not isinstance(held.error, MemberUnreachable):
                self._route.failed(held.error)
            self._complain("a round failed", held.error)
        # What was so before one looked for the first time happened at a time that nobody knows.
        found = not self._informed and not held.swapped
        self._informed = self._informed or held.key_revision > 0
        self._note_key(held.state.version, held.key_revision, found=found)
        if held.swapped and not held.new_world:
            self._own_version, self._won_at = held.state.version, self._clock.now()
        if held.result in (Result.WON, Result.RAW, Result.ALREADY_COMPACTED):
            self._advance(held.revision, proven=True)
        else:
            self._advance(held.revision, found=found)
        log.debug(
            "round",
            extra={"cluster": self._cluster, "result": held.result, "revision": held.revision},
        )
        self._observer.round(self._cluster, held.result, self._key_version)

    # The watch

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._rewatch)
            try:
                await self._follow((await self._route.voters())[0])
            except EtcdmaintError as error:
                if isinstance(error, EtcdError):
                    self._route.failed(error)
                self._complain("cannot watch the key", error)
                self._rewatch = min(self._rewatch * 2, self._pace.longest_rewatch)

    async def _follow(self, voter: Voter) -> None:
        """Read the key, then every change of it, until the watch ends."""
        read = await voter.range(KEY, timeout=self._pace.rpc_timeout)
        head = read.header.revision
        self._rewatch = self._pace.rewatch
        kv = read.kvs[0] if read.kvs else None
        found, self._informed = not self._informed, True
        self._note_key(kv.version if kv else 0, kv.mod_revision if kv else head, found=found)
        if not self._see(kv, head, found=found):
            return
        async with voter.watch(KEY, start_revision=head) as changes:
            async for batch in changes:
                if batch.events:
                    last = batch.events[-1]
                    self._note_key(last.kv.version, last.kv.mod_revision)
                    self._see(last.kv, batch.header.revision)

    def _see(self, kv: KeyValue | None, head: int, *, found: bool = False) -> bool:
        """Take note of what the key says; whether that is something sensible."""
        revision = advertised(kv, head)
        if revision is None:
            self._complain("the key holds no revision of this store", None)
            return False
        self._advance(revision, found=found)
        return True

    # What is known

    def _note_key(self, version: int, revision: int, *, found: bool = False) -> None:
        """The key has had this version since that revision; the rounds and the watch both tell."""
        if revision > self._key_revision:
            self._key_version, self._key_revision = version, revision
            if version and not found:
                self._seen_at = self._clock.now()

    def _advance(self, revision: int, *, proven: bool = False, found: bool = False) -> None:
        """History is cut at this revision.

        `proven`: an RPC of ours said so, be it new or not. `found`: it was so before we looked.
        """
        if revision <= self._revision and not proven:
            return
        self._revision = max(self._revision, revision)
        if found:
            self._observer.known(self._cluster, self._revision)
            return
        self._advanced_at = self._clock.now()
        self._expected_from = self._clock.monotonic()
        self._observer.advanced(self._cluster, self._revision, self._advanced_at.timestamp())

    def _expect_anew(self) -> None:
        # The first round may only look, so nothing can be expected of the first interval.
        self._expected_from = self._clock.monotonic() + self._interval

    def _stalled(self) -> bool:
        if self._interval <= 0:
            return False
        allowed = STALLED_AFTER * self._interval + self._pace.stall_grace
        return self._clock.monotonic() - self._expected_from > allowed

    def _complain(self, what: str, error: EtcdmaintError | None) -> None:
        """Log it as a warning, but not more often than once an interval."""
        now = self._clock.monotonic()
        often = self._complained_at is not None and now - self._complained_at < self._interval
        if not often:
            self._complained_at = now
        log.log(
            logging.DEBUG if often else logging.WARNING,
            what,
            extra={"cluster": self._cluster, "error": str(error) if error is not None else ""},
        )
