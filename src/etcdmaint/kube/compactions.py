"""Has every cluster compacted whose object asks for it, for as long as it asks.

Objects are only watched: no finalizer, no annotation of ours on any. What an object asks for and what its
status says is `compaction_terms`', the election itself compaction/'s.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol

from etcdmaint.api.defrag import ClusterRef
from etcdmaint.api.metadata import generation_of, is_paused
from etcdmaint.api.vocabulary import ClusterKind
from etcdmaint.clock import came_within
from etcdmaint.compaction.knowledge import STALLED_AFTER
from etcdmaint.compaction.registry import Hold, Registry
from etcdmaint.defrag.run import Severity
from etcdmaint.errors import ClusterNotReady, EtcdmaintError, InvalidInput
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.kube.client import Json, KubeError
from etcdmaint.kube.compaction_terms import (
    PAUSED,
    STALLED,
    Account,
    account_of,
    asks,
    is_stalled,
    read_interval,
    says_something,
    unheld,
    wish,
    write_account,
)
from etcdmaint.kube.following import Followed, Following
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ETCD_CONNECTIONS, ObjectRef

log = logging.getLogger(__name__)

# Seconds.
_RETRY = 15.0
_REWRITE = 600.0
_RPC_TIMEOUT = 5.0
_STALL_GRACE = 5.0
# As kube-apiserver's own compactor has it: its watch is always open, and many are (C39).
_KEEPALIVE = 30.0


class RefusalCounter(Protocol):
    """Who counts objects whose interval cannot be read."""

    def refused(self, namespace: str, name: str, kind: str) -> None:
        """This one's cannot, from now on."""

    def accepted(self, namespace: str, name: str, kind: str) -> None:
        """It can, or the object is gone."""


@dataclass(slots=True, eq=False)
class _Asking(Followed):
    """An object that asks, or has asked, and what is kept of it between two looks."""

    since: float = 0.0
    hold: Hold | None = None
    user: str = ""
    stalled: bool = False
    refused: str = ""
    disconnected: str = ""
    """Why the way that it asks for now does not work, as it was logged."""
    told: Account | None = None
    """What the status is known to say."""
    written_at: float = -math.inf


class CompactionKeeper(Following[_Asking]):
    """Knows all objects that ask, and keeps each one's share in a compactor while `run` runs."""

    def __init__(self, parts: Parts, registry: Registry, refusals: RefusalCounter) -> None:
        super().__init__(parts, _RETRY)
        self._registry = registry
        self._refusals = refusals

    def gone(self, uid: str) -> _Asking | None:
        """The object is deleted, or asks for nothing any more."""
        if (known := super().gone(uid)) is not None:
            self._accept(known)
        return known

    def _begin(self, ref: ObjectRef, obj: Json) -> _Asking | None:
        if not (asks(ref.resource, obj) or says_something(obj)):
            return None
        known = _Asking(ref, obj, since=self._parts.clock.monotonic())
        known.stalled = ref.resource is ETCD_CONNECTIONS and is_stalled(obj)
        return known

    def _renew(self, known: _Asking, obj: Json) -> None:
        before, known.obj = known.obj, obj
        if wish(known.ref.resource, before) != wish(known.ref.resource, obj):
            known.changed.set()

    async def _tend(self, known: _Asking) -> None:
        try:
            while True:
                known.changed.clear()
                pause = await self._contained(known, self._look(known))
                if pause is None and not known.changed.is_set():
                    self.gone(known.ref.uid)
                    return
                await came_within(self._parts.clock, pause or 0.0, known.changed)
        finally:
            await self._let_go(known)

    async def _look(self, known: _Asking) -> float | None:
        """Make true what the object asks for, and tell; how long to wait, None when it asks nothing."""
        interval = self._interval(known)
        account = await self._serve(known, interval)
        self._announce(known, account)
        if known.ref.resource is ETCD_CONNECTIONS:
            await self._publish(known, account)
        if account is None and not known.refused:
            return None
        if known.hold is None:
            return _RETRY
        # What is told is at most a fifth of an interval old.
        return min(60.0, max(5.0, known.hold.interval / 5))

    def _interval(self, known: _Asking) -> float:
        """What the object asks for, in seconds; 0 for nothing. A fault is told once."""
        ref = known.ref
        try:
            interval = read_interval(ref.resource, known.obj)
        except InvalidInput as error:
            # What is wrong elsewhere in an object its condition Reachable says.
            if "compaction" in error.field and known.refused != str(error):
                known.refused = str(error)
                self._refusals.refused(ref.namespace, ref.name, ref.resource.kind)
                self._parts.events.post(
                    ref, Severity.WARNING, "InvalidCompactionInterval", f"not compacted: {error}"
                )
            return 0.0
        self._accept(known)
        return interval

    def _accept(self, known: _Asking) -> None:
        if known.refused:
            known.refused = ""
            self._refusals.accepted(known.ref.namespace, known.ref.name, known.ref.resource.kind)

    async def _serve(self, known: _Asking, interval: float) -> Account | None:
        """Hold, or let go; what is to be told of it, None for nothing."""
        metadata = known.obj["metadata"]
        if interval <= 0 or metadata.get("deletionTimestamp"):
            await self._let_go(known)
            return None
        if is_paused(metadata.get("annotations")):
            await self._let_go(known)
            return PAUSED
        try:
            await self._hold(known, interval)
            known.disconnected = ""
        except KubeError:
            raise
        except EtcdmaintError as error:
            if known.hold is None:
                return unheld(error, interval, stalled=self._waits_too_long(known, interval))
            # What it held goes on: the new way there may be right a little later.
            if known.disconnected != str(error):
                known.disconnected = str(error)
                log.warning("cannot connect", extra={"object": str(known.ref), "error": str(error)})
        assert known.hold is not None
        return account_of(known.hold.compactor.view(), self._user(known))

    def _user(self, known: _Asking) -> str:
        """Which user of etcd's compacts the cluster: of whichever object's way there is in use."""
        assert known.hold is not None
        used = known.hold.used
        return next((each.user for each in self if each.hold is used), known.user)

    async def _hold(self, known: _Asking, interval: float) -> None:
        generation = generation_of(known.obj)
        if known.hold is not None and known.generation == generation and not known.hold.astray:
            if known.hold.interval != interval:
                known.hold.set_interval(interval)
            return

        async def dial() -> ClusterClient:
            return await self._dial(known)

        fresh = await self._registry.hold(dial, interval)
        old, known.hold, known.generation = known.hold, fresh, generation
        if old is not None:
            await old.release()
        log.info(
            "takes part in compaction",
            extra={"object": str(known.ref), "interval_seconds": interval},
        )

    async def _dial(self, known: _Asking) -> ClusterClient:
        ref = known.ref
        kind = ClusterKind(ref.resource.kind)
        target = await self._parts.clusters.find(
            ref.namespace, ClusterRef(name=ref.name, kind=kind)
        )
        if target.paused:
            raise ClusterNotReady("Paused", target.paused)
        known.user = target.access.login.user if target.access.login else ""
        return await self._parts.dial(target, timeout=_RPC_TIMEOUT, keepalive=_KEEPALIVE)

    async def _let_go(self, known: _Asking) -> None:
        hold, known.hold = known.hold, None
        known.since = self._parts.clock.monotonic()
        if hold is not None:
            await hold.release()

    def _waits_too_long(self, known: _Asking, interval: float) -> bool:
        waited = self._parts.clock.monotonic() - known.since
        return waited > STALLED_AFTER * interval + _STALL_GRACE

    def _announce(self, known: _Asking, account: Account | None) -> None:
        """One event when it stalls, and one when it is well again."""
        stalled = account is not None and account.verdict.reason == STALLED
        if stalled == known.stalled:
            return
        known.stalled = stalled
        if account is None:
            return
        if stalled:
            self._parts.events.post(known.ref, Severity.WARNING, STALLED, account.verdict.message)
        elif account.verdict.status:
            self._parts.events.post(
                known.ref, Severity.NORMAL, "CompactionResumed", account.verdict.message
            )
        else:
            known.stalled = True  # not well yet, only for another reason

    async def _publish(self, known: _Asking, account: Account | None) -> None:
        now = self._parts.clock.monotonic()
        stale = now - known.written_at >= _REWRITE
        if account is not None and account == known.told and not stale:
            return

        def patch(obj: Json) -> Json | None:
            return write_account(obj, account, self._parts.clock.now(), stale=stale)

        if patch(known.obj) is None:
            known.told = account
        elif await self._revise(known, generation_of(known.obj), patch):
            known.written_at, known.told = now, account
