"""Carries out what EtcdDefrags ask for: each of them is one call of the sweep, with our adapters.

Knows which runs are under way, so that a stopping process can wait for them and a run that nobody works
on is noticed. What to do to etcd is the sweep's business, how an object is watched the handlers'.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from etcdmaint.api.defrag import EtcdDefrag, parse_defrag
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import (
    LeaderTransfer,
    Phase,
    RunGone,
    RunRequest,
    Severity,
)
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.errors import (
    InvalidInput,
    LeadershipLost,
)
from etcdmaint.kube.client import Json
from etcdmaint.kube.journal import DefragJournal
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.status import read_state, rows_lack_ids
from etcdmaint.kube.surroundings import (
    DefragAudience,
    DefragSurroundings,
    RunParts,
    StopSignal,
    is_over,
)

log = logging.getLogger(__name__)

_AFTER_A_FAULT = 15.0


@dataclass(slots=True)
class Runner:
    """Runs EtcdDefrags to their end."""

    parts: RunParts
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    _active: set[str] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._idle.set()

    @property
    def active(self) -> frozenset[str]:
        """The UIDs of the EtcdDefrags that are being carried out."""
        return frozenset(self._active)

    async def drain(self, timeout: float) -> bool:
        """Ask every run to stop after its member in flight; whether all have within the seconds."""
        self.draining.set()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self, ref: ObjectRef, stop: StopSignal) -> None:
        """Carry the run on until it is over, or is asked to stop. Raises nothing but cancellation."""
        with self._registered(ref.uid):
            while not (stop.is_set() or self.draining.is_set()):
                try:
                    if not await self._once(ref, stop):
                        continue
                except RunGone as gone:
                    log.info("the run is gone", extra={"object": str(ref), "why": str(gone)})
                except LeadershipLost:
                    log.warning(
                        "stops working on it: no leader any more", extra={"object": str(ref)}
                    )
                except Exception:
                    # The outermost shell of a run: what dies here would never be taken up again.
                    log.exception("a fault while carrying out a run", extra={"object": str(ref)})
                    await stop.wait(_AFTER_A_FAULT)
                    continue
                return

    @contextmanager
    def _registered(self, uid: str) -> Iterator[None]:
        self._active.add(uid)
        self._idle.clear()
        try:
            yield
        finally:
            self._active.discard(uid)
            if not self._active:
                self._idle.set()

    async def _once(self, ref: ObjectRef, stop: StopSignal) -> bool:
        """Whether there is nothing left to do, or only for another process."""
        parts = self.parts
        journal = DefragJournal(parts.api, ref, parts.fence, parts.clock)
        obj = await journal.read()
        if obj["metadata"].get("deletionTimestamp") or is_over(obj):
            return True
        try:
            defrag = parse_defrag(obj)
        except InvalidInput as error:
            await self._refuse(ref, journal, obj, error)
            return True
        surroundings = DefragSurroundings(parts, ref, defrag, stop, self.draining)
        sweep = Sweep(
            self._request(ref, defrag, obj),
            surroundings=surroundings,
            journal=journal,
            fence=parts.fence,
            audience=DefragAudience(parts.events, ref),
            clock=parts.clock,
            instrumentation=parts.instrumentation,
            queue=parts.queue,
            timing=parts.timing,
            observer=parts.observer,
        )
        state = read_state(obj)
        if rows_lack_ids(obj):
            state = read_state(obj, await surroundings.member_ids())
        result = await sweep.run(state)
        log.info(
            "a run has ended" if result.state.phase.terminal else "a run is left for later",
            extra={
                "object": str(ref),
                "ending": result.ending.value,
                "phase": result.state.phase.value,
                "reason": result.state.reason,
            },
        )
        return result.state.phase.terminal or surroundings.stopping

    def _request(self, ref: ObjectRef, defrag: EtcdDefrag, obj: Json) -> RunRequest:
        spec = defrag.spec
        return RunRequest(
            name=str(ref),
            uid=ref.uid,
            rule=Rule(
                all=spec.rule.all,
                free_space_above=spec.rule.free_space_above,
                quota_usage_above=spec.rule.quota_usage_above,
                min_reclaim=spec.rule.min_reclaim,
            ),
            leader_transfer=LeaderTransfer(spec.leader_transfer.value),
            dry_run=defrag.dry_run,
            allow_unsafe_version=defrag.allow_unsafe_version,
            created=defrag.created.isoformat(),
            cluster_ref=f"{ref.namespace}/{spec.cluster_ref.kind}/{spec.cluster_ref.name}",
            age=self.parts.api.age(obj),
        )

    async def _refuse(
        self, ref: ObjectRef, journal: DefragJournal, obj: Json, error: InvalidInput
    ) -> None:
        """A spec that cannot be read ends at once, naming the field (D52)."""
        now = self.parts.clock.now()
        state = replace(
            read_state(obj),
            phase=Phase.FAILED,
            reason=error.reason,
            message=str(error),
            completed_at=now,
        )
        await journal.record(state)
        self.parts.events.post(ref, Severity.WARNING, "DefragFailed", f"{error.reason}: {error}")
        self.parts.instrumentation.run_finished(Phase.FAILED, error.reason)
