"""What the sweep asks about the world, and whom it speaks to, for one EtcdDefrag.

Everything is read afresh at each look: the object, its cluster, who else acts on it, and whether the
installed CRD can be trusted to have kept what was asked for. This module must not know the sweep's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Protocol

from etcdmaint.api.defrag import EtcdDefrag
from etcdmaint.api.metadata import is_dry_run
from etcdmaint.api.vocabulary import ClusterKind
from etcdmaint.defrag.queue import RunQueue
from etcdmaint.defrag.run import Instrumentation, MemberTurn, Phase, RunGone, Severity, Target
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import ClusterNotFound, ClusterNotReady, CredentialsUnavailable, StopRequested
from etcdmaint.kube.client import Forbidden, Json, Unavailable
from etcdmaint.kube.cozystack import paused_by
from etcdmaint.kube.journal import persist, read_object
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ETCD_DEFRAGS, ObjectRef
from etcdmaint.kube.schema import DefragSchema
from etcdmaint.kube.status import phase_of, read_state

log = logging.getLogger(__name__)

_AWAIT_MEMBERS = 60.0
_FIRST_LOOKS = 2.0
_OLDER = "OlderCRD"


class StopSignal(Protocol):
    """Whether a run is to stop: its object is deleted, or is no longer to be worked on."""

    def is_set(self) -> bool:
        """Whether it is."""

    def wait(self, timeout: float) -> Awaitable[object]:
        """Is over once it is, or after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts(Parts):
    """What all runs of one process share."""

    schema: DefragSchema
    instrumentation: Instrumentation
    queue: RunQueue
    timing: Timing
    take_over: bool = False
    accept_older_crd: bool = False


@dataclass(frozen=True, slots=True)
class DefragSurroundings:
    """Implements `defrag.run.Surroundings` and `Audience` for one EtcdDefrag."""

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
        """The cluster as it is now; waits while the Kubernetes API is away, but not to stop (D38)."""
        asked = False

        async def attempt() -> Target:
            nonlocal asked
            if asked and self.stopping:
                raise StopRequested("asked to stop")
            asked = True
            try:
                return await self._look()
            except Forbidden as error:
                if error.status == 401:  # who we are is not known for the moment
                    raise
                raise ClusterNotReady(
                    "Forbidden", f"this operator lacks a right: {error}"
                ) from None

        return await persist(attempt, self.parts.fence, self.parts.clock, str(self.ref))

    async def _look(self) -> Target:
        obj = await read_object(self.parts.api, self.ref)
        annotations = obj["metadata"].get("annotations")
        begun = phase_of(obj) is Phase.RUNNING
        if is_dry_run(annotations) and not self.defrag.dry_run and not begun:
            raise StopRequested("somebody has made it a dry run meanwhile")
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
        before = read_state(obj).reason == _OLDER and phase_of(obj) is not Phase.RUNNING
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
        Raises StopRequested where it cannot be at once, and this run is to stop.
        """
        until = self.parts.clock.monotonic() + _AWAIT_MEMBERS
        while self.parts.clock.monotonic() < until:
            try:
                target = await self.look()
            except (ClusterNotReady, CredentialsUnavailable):
                if self.stopping:
                    raise StopRequested("asked to stop") from None
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
            return not phase_of(await read_object(self.parts.api, other)).terminal
        except RunGone:
            return False
        except (Unavailable, Forbidden):
            return True

    def event(self, severity: Severity, reason: str, message: str) -> None:
        """An Event on the object, and a line in the log."""
        self.parts.events.post(self.ref, severity, reason, message)

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
