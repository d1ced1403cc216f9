"""What one contender knows of a cluster's compaction, and since when.

It is told by the rounds and by the watch, whichever is first. What was so before anybody looked has no
time here: a key of last week says what is compacted, not that somebody is at it. This module must not
know where it is told from, nor do anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from etcdmaint.clock import Clock
from etcdmaint.compaction.election import Result, Round
from etcdmaint.errors import EtcdmaintError

STALLED_AFTER = 2
"""Intervals: a contender that dies leaves a gap shorter than that."""


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
    nospace: bool
    """Whether etcd refused the last round, since it is full."""
    error: EtcdmaintError | None


class Knowledge:
    """Of one cluster, compacted every `interval` seconds.

    `grace` in seconds: what a round may take before one speaks of a stall.
    """

    def __init__(
        self, clock: Clock, cluster: str, observer: Observer, *, interval: float, grace: float
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._observer = observer
        self._grace = grace
        self.interval = interval
        self.revision = 0
        self.key_version = 0
        self.error: EtcdmaintError | None = None
        self._key_revision = 0
        self._own_revision = 0
        self._changes: list[tuple[int, int]] = []
        self._informed = False
        self._in_round = False
        self._nospace = False
        self._won_last: bool | None = None
        self._last_result: Result | None = None
        self._won_at: datetime | None = None
        self._seen_at: datetime | None = None
        self._advanced_at: datetime | None = None
        self._stuck = False
        self._expected_from = clock.monotonic() + interval

    def view(self) -> View:
        """What is known now."""
        return View(
            interval=self.interval,
            revision=self.revision,
            clock=self.key_version,
            last_result=self._last_result,
            last_won_at=self._won_at,
            last_seen_at=self._seen_at,
            advanced_at=self._advanced_at,
            won_last=self._won_last,
            stalled=self._stalled,
            nospace=self._nospace,
            error=self.error,
        )

    def begin(self, interval: float) -> None:
        """Rounds begin anew. The first may only look, so nothing is expected of its interval.

        What has stalled stays so until something is compacted.
        """
        self._stuck = self._stalled
        self.interval = interval
        self._expected_from = self._clock.monotonic() + interval

    def round_begins(self) -> None:
        """Until it is over, what the watch tells may be of our own doing."""
        self._in_round = True

    def round_is_over(self) -> None:
        """Whatever became of it."""
        self._in_round = False
        self._judge_winner()
        self._judge_changes()

    def failed(self, error: EtcdmaintError) -> None:
        """There was nobody to hold a round with."""
        self._last_result, self._nospace, self.error = Result.ERROR, False, error

    def learn(self, held: Round) -> None:
        """Take in how a round ended."""
        self._last_result, self.error = held.result, held.error
        self._nospace = held.nospace
        if held.new_world:
            self.revision = self.key_version = self._key_revision = self._own_revision = 0
            self._informed = False
            self.begin(self.interval)
        found = not self._informed and not held.swapped
        self._informed = self._informed or held.key_revision > 0
        self._note_key(held.state.version, held.key_revision, found=found)
        if held.swapped and not held.new_world:
            self._own_revision, self._won_at = held.key_revision, self._clock.now()
        proven = held.result in (Result.WON, Result.RAW, Result.ALREADY_COMPACTED)
        self._note_cut(held.revision, proven=proven, found=found)

    def read(self, version: int, key_revision: int, cut: int | None) -> None:
        """The key was read, and not for the first time it may be; `cut` None: it says nothing sensible."""
        found, self._informed = not self._informed, True
        self._note_key(version, key_revision, found=found)
        if found:
            self._note_cut(cut or 0, found=True)
        else:
            self._note_change(key_revision, cut or 0)

    def change(self, version: int, key_revision: int, cut: int | None) -> None:
        """The key has changed just now."""
        self._note_key(version, key_revision)
        self._note_change(key_revision, cut or 0)

    def _note_key(self, version: int, revision: int, *, found: bool = False) -> None:
        if revision > self._key_revision:
            self.key_version, self._key_revision = version, revision
            if version and not found:
                self._seen_at = self._clock.now()
            self._judge_winner()

    def _judge_winner(self) -> None:
        # The watch may tell of our own swap before its answer has come.
        if not self._in_round:
            own = self._key_revision == self._own_revision
            self._won_last = own if self.key_version else None

    def _note_change(self, key_revision: int, cut: int) -> None:
        self._changes.append((key_revision, cut))
        if not self._in_round:
            self._judge_changes()

    def _judge_changes(self) -> None:
        changes, self._changes = self._changes, []
        for key_revision, cut in changes:
            # The key is written before it is done. Of our own we know whether it was done after all.
            if key_revision != self._own_revision:
                self._note_cut(cut)

    def _note_cut(self, revision: int, *, proven: bool = False, found: bool = False) -> None:
        """`proven`: an RPC of ours said so, be it new or not. `found`: it was so before we looked."""
        if revision <= self.revision and not proven:
            return
        self.revision = max(self.revision, revision)
        if found:
            self._observer.known(self._cluster, self.revision)
            return
        self._advanced_at = self._clock.now()
        self._expected_from, self._stuck = self._clock.monotonic(), False
        self._observer.advanced(self._cluster, self.revision, self._advanced_at.timestamp())

    @property
    def _stalled(self) -> bool:
        if self.interval <= 0:
            return False
        allowed = STALLED_AFTER * self.interval + self._grace
        return self._stuck or self._clock.monotonic() - self._expected_from > allowed
