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
from etcdmaint.defrag.run import Phase, RecordRefused, RunGone, RunRequest, Severity
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.errors import InvalidInput, LeadershipLost, StopRequested
from etcdmaint.kube.client import Forbidden, Json
from etcdmaint.kube.journal import DefragJournal
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.status import member_at_stake, phase_of, read_state, rows_lack_ids
from etcdmaint.kube.surroundings import DefragSurroundings, RunParts, StopSignal

log = logging.getLogger(__name__)

_AFTER_A_FAULT = 15.0
_TRY_AGAIN = 5.0


class _Deleted:
    """The signal of an object that is on its way out."""

    def is_set(self) -> bool:
        """It is to stop."""
        return True

    async def wait(self, timeout: float) -> None:
        """There is nothing to wait for."""


_DELETED = _Deleted()


@dataclass(slots=True)
class Runner:
    """Runs EtcdDefrags to their end."""

    parts: RunParts
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    _active: dict[str, asyncio.Event] = field(default_factory=dict)
    """The UIDs of runs under way, each with what is set when it is left."""

    @property
    def active(self) -> frozenset[str]:
        """The UIDs of the EtcdDefrags that are being carried out."""
        return frozenset(self._active)

    async def drain(self, timeout: float) -> bool:
        """Ask every run to stop after its member in flight; whether all have within the seconds."""
        self.draining.set()
        try:
            async with asyncio.timeout(timeout):
                while self._active:
                    await next(iter(self._active.values())).wait()
        except TimeoutError:
            return False
        return True

    async def run(self, ref: ObjectRef, stop: StopSignal) -> None:
        """Carry the run on until it is over, or is asked to stop. Raises nothing but cancellation."""
        with self._registered(ref.uid):
            while not (stop.is_set() or self.draining.is_set()):
                if await self._attempt(ref, stop) is not None:
                    return

    async def settle(self, ref: ObjectRef) -> bool:
        """For an object that is deleted: wait until no member can be at it any more (D7).

        Whoever carried the run on has been asked to stop, here or in an earlier process. False when
        this process ends first, or may not act any more: then the object is somebody else's to let go.
        """
        while (under_way := self._active.get(ref.uid)) is not None:
            await under_way.wait()
        with self._registered(ref.uid):
            while not self.draining.is_set():
                settled = await self._attempt(ref, _DELETED)
                if settled is not None:
                    return settled
                await self.parts.clock.sleep(_TRY_AGAIN)
        return False

    async def _attempt(self, ref: ObjectRef, stop: StopSignal) -> bool | None:
        """Whether the run is done with (True) or out of our hands (False); None: it is to be tried on."""
        try:
            return True if await self._once(ref, stop) else None
        except RunGone as gone:
            log.info("the run is gone", extra={"object": str(ref), "why": str(gone)})
            return True
        except LeadershipLost:
            log.warning("stops working on it: no leader any more", extra={"object": str(ref)})
            return False
        except StopRequested:
            await stop.wait(_TRY_AGAIN)
            return None
        except (RecordRefused, Forbidden) as error:
            log.warning(
                "lacks a right to carry out a run", extra={"object": str(ref), "why": str(error)}
            )
            await stop.wait(_AFTER_A_FAULT)
            return None
        except Exception:  # the outermost shell of a run: nobody would take it up again
            log.exception("a fault while carrying out a run", extra={"object": str(ref)})
            await stop.wait(_AFTER_A_FAULT)
            return None

    @contextmanager
    def _registered(self, uid: str) -> Iterator[None]:
        left = self._active[uid] = asyncio.Event()
        try:
            yield
        finally:
            del self._active[uid]
            left.set()

    async def _once(self, ref: ObjectRef, stop: StopSignal) -> bool:
        """Whether there is nothing left to do, or only for another process."""
        parts = self.parts
        journal = DefragJournal(parts.api, ref, parts.fence, parts.clock)
        obj = await journal.read()
        deleted = bool(obj["metadata"].get("deletionTimestamp"))
        if phase_of(obj).terminal or (deleted and not member_at_stake(obj)):
            return True
        try:
            defrag = parse_defrag(obj)
        except InvalidInput as error:
            await self._refuse(ref, journal, obj, error)
            return True
        # Nothing of a deleted object is begun: a member that is at it is waited for, and no more.
        stop = _DELETED if deleted else stop
        surroundings = DefragSurroundings(parts, ref, defrag, stop, self.draining)
        sweep = Sweep(
            self._request(ref, defrag, obj),
            surroundings=surroundings,
            journal=journal,
            fence=parts.fence,
            audience=surroundings,
            clock=parts.clock,
            instrumentation=parts.instrumentation,
            queue=parts.queue,
            timing=parts.timing,
            observer=parts.observer,
        )
        ids = await surroundings.member_ids() if rows_lack_ids(obj) else None
        result = await sweep.run(read_state(obj, ids))
        over = result.state.phase.terminal
        log.info(
            "a run has ended" if over else "a run is left for later",
            extra={
                "object": str(ref),
                "ending": result.ending.value,
                "phase": result.state.phase.value,
                "reason": result.state.reason,
            },
        )
        # A deleted one is looked at again: only its own record says that no member is at stake.
        return over or (surroundings.stopping and not deleted)

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
            leader_transfer=spec.leader_transfer,
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
