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
from typing import Protocol

from etcdmaint.api.defrag import EtcdDefrag, defrag_status, parse_defrag
from etcdmaint.api.vocabulary import ClusterKind
from etcdmaint.clock import Clock
from etcdmaint.defrag.queue import RunQueue
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import (
    Fence,
    Instrumentation,
    LeaderTransfer,
    MemberTurn,
    Phase,
    RunGone,
    RunRequest,
    Severity,
    Target,
)
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import (
    ClusterNotFound,
    ClusterNotReady,
    CredentialsUnavailable,
    InvalidInput,
    LeadershipLost,
    StopRequested,
)
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.kube.client import Forbidden, Json, KubeApi, Unavailable
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.cozystack import paused_by
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.journal import DefragJournal, persist, read_object
from etcdmaint.kube.resources import ETCD_DEFRAGS, ObjectRef
from etcdmaint.kube.schema import DefragSchema
from etcdmaint.kube.status import read_state, rows_lack_ids

log = logging.getLogger(__name__)

_AFTER_A_FAULT = 15.0
_AWAIT_MEMBERS = 60.0
_FIRST_LOOKS = 2.0
_OLDER = "OlderCRD"


class StopSignal(Protocol):
    """Whether a run is to stop: its object is deleted, or is no longer to be worked on."""

    def is_set(self) -> bool:
        """Whether it is."""

    async def wait(self, timeout: float) -> None:
        """Return once it is, or after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What all runs of one process share."""

    api: KubeApi
    clusters: Clusters
    schema: DefragSchema
    events: EventSink
    fence: Fence
    clock: Clock
    instrumentation: Instrumentation
    observer: RpcObserver
    queue: RunQueue
    timing: Timing
    take_over: bool = False
    accept_older_crd: bool = False


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
        if obj["metadata"].get("deletionTimestamp") or _is_over(obj):
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


def _is_over(obj: Json) -> bool:
    phase = defrag_status(obj).phase
    return phase is not None and phase.terminal


@dataclass(frozen=True, slots=True)
class DefragSurroundings:
    """Implements `defrag.run.Surroundings` for one EtcdDefrag."""

    parts: RunParts
    ref: ObjectRef
    defrag: EtcdDefrag
    stop: StopSignal
    draining: asyncio.Event

    @property
    def stopping(self) -> bool:
        """The object is deleted, or this process ends."""
        return self.stop.is_set() or self.draining.is_set()

    async def nap(self, seconds: float) -> None:
        """Sleep, but wake up at once to stop."""
        waiting = [
            asyncio.ensure_future(self.stop.wait(seconds)),
            asyncio.ensure_future(self.draining.wait()),
        ]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def look(self) -> Target:
        """The cluster as it is now; waits while the Kubernetes API is away (D38)."""
        return await persist(self._look, self.parts.fence, self.parts.clock, str(self.ref))

    async def _look(self) -> Target:
        if self.stopping:
            raise StopRequested("asked to stop")
        obj = await read_object(self.parts.api, self.ref)
        await self._may_act(obj)
        target = await self.parts.clusters.find(self.ref.namespace, self.defrag.spec.cluster_ref)
        paused = paused_by("this EtcdDefrag", obj) or target.paused
        return replace(target, paused=paused)

    async def _may_act(self, obj: Json) -> None:
        missing: tuple[str, ...] = ()
        if not self.parts.accept_older_crd:
            missing = await self.parts.schema.missing(self.parts.api.age(obj))
        if missing:
            raise ClusterNotReady(
                _OLDER,
                f"the installed CRD of EtcdDefrag lacks {', '.join(missing)}: install ours and "
                "create this EtcdDefrag again, or run the operator with --accept-older-crd",
            )
        state = read_state(obj)
        before = state.reason == _OLDER and state.phase is not Phase.RUNNING
        if before and not self.parts.accept_older_crd:
            # A dryRun that was dropped then does not come back with the newer CRD.
            raise ClusterNotReady(
                _OLDER,
                "it was created through an older CRD, which may have dropped fields of it: "
                "create it again",
            )
        if (
            self.parts.take_over
            or self.defrag.spec.cluster_ref.kind is not ClusterKind.ETCD_CLUSTER
        ):
            return
        other = await self.parts.clusters.other_controller(obj)
        if other:
            raise ClusterNotReady(
                "OtherController", f"{other}; --take-over makes this operator act all the same"
            )

    async def member_ids(self) -> dict[str, int]:
        """Member IDs by name, as the other operator's EtcdMembers say them.

        Where the cluster cannot be looked up for a minute, nothing: its members are then gone to us.
        """
        until = self.parts.clock.monotonic() + _AWAIT_MEMBERS
        while not self.stopping and self.parts.clock.monotonic() < until:
            try:
                target = await self.look()
            except (ClusterNotReady, CredentialsUnavailable):
                await self.nap(_FIRST_LOOKS)
            except ClusterNotFound:
                break
            else:
                return {name: member_id for member_id, name in target.member_names.items()}
        return {}

    async def is_active(self, run: str, uid: str) -> bool:
        """Whether the run that left its mark on the slot is still to be finished."""
        namespace, _, name = run.partition("/")
        other = ObjectRef(ETCD_DEFRAGS, namespace, name, uid)
        try:
            return not _is_over(await read_object(self.parts.api, other))
        except RunGone:
            return False
        except (Unavailable, Forbidden):
            return True


@dataclass(frozen=True, slots=True)
class DefragAudience:
    """Implements `defrag.run.Audience` for one EtcdDefrag."""

    events: EventSink
    ref: ObjectRef

    def event(self, severity: Severity, reason: str, message: str) -> None:
        """An Event on the object, and a line in the log."""
        self.events.post(self.ref, severity, reason, message)

    def turn(self, turn: MemberTurn) -> None:
        """A line in the log; the row itself is in the status."""
        log.info(
            "a member's turn",
            extra={
                "object": str(self.ref),
                "member": turn.row.name,
                "outcome": turn.row.outcome.value,
                "reason": turn.row.reason,
                "position": turn.position,
                "total": turn.total,
                "expected_seconds": round(turn.expected_seconds, 1),
            },
        )
