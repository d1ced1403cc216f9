"""What every step of one run shares: its parts, its patience, and the check before each act.

The steps themselves are in `sweep` (the life of a run), `turn` (one member), `resume` (a member found in
flight) and `ending`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from etcdmaint.clock import Clock
from etcdmaint.defrag.health import Observation, judge, observe
from etcdmaint.defrag.ledger import Ledger
from etcdmaint.defrag.link import Link
from etcdmaint.defrag.lock import Slot
from etcdmaint.defrag.rule import MemberSizes, effective_quota
from etcdmaint.defrag.run import (
    Audience,
    Ending,
    Fence,
    Instrumentation,
    RunRequest,
    Surroundings,
    Target,
)
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import (
    ClusterNotFound,
    ClusterNotHealthy,
    ClusterNotReady,
    CredentialsUnavailable,
    EtcdError,
    EtcdmaintError,
    ForeignDefragmentation,
    PermissionDenied,
    SlotHeld,
    StopRequested,
)
from etcdmaint.etcd.client import MemberClient

T = TypeVar("T")

DEFERRING = (
    ClusterNotFound,
    ClusterNotHealthy,
    ClusterNotReady,
    CredentialsUnavailable,
    SlotHeld,
    EtcdError,
)


class RunOver(Exception):
    """Ends the run as failed; caught in `sweep` only."""

    def __init__(self, ending: Ending, reason: str, message: str) -> None:
        super().__init__(message)
        self.ending = ending
        self.reason = reason
        self.message = message


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The parts of one run."""

    request: RunRequest
    surroundings: Surroundings
    fence: Fence
    audience: Audience
    clock: Clock
    timing: Timing
    instrumentation: Instrumentation
    ledger: Ledger
    link: Link
    slot: Slot | None = None
    target: Target | None = None
    began: float = 0.0
    rpc_seconds: float = 0.0
    in_use: dict[int, int] = field(default_factory=dict)
    turns: list[tuple[int, float]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """Without a slot: how many defragmentations each member had when the run began, plus ours (D64)."""

    @property
    def remaining(self) -> float:
        """Seconds until the deadline (D4)."""
        elapsed = self.request.age + self.clock.monotonic() - self.began
        return self.timing.deadline(self.in_use.values()) - elapsed

    async def look(self) -> Target:
        """How to reach the cluster, read afresh; a stop button counts as not ready (D9)."""
        try:
            self.target = await self.surroundings.look()
        except ClusterNotFound as error:
            age = self.request.age + self.clock.monotonic() - self.began
            if age >= self.timing.missing_grace:
                raise RunOver(Ending.FAILED, error.reason, str(error)) from None
            raise
        if self.target.paused:
            raise ClusterNotReady("Paused", self.target.paused)
        return self.target

    async def gate(self) -> Observation:
        """Look at everything and raise unless the cluster may be touched now (D10 to D16)."""
        target = await self.look()
        cluster = await self.link.follow(target)
        observation = await observe(
            cluster,
            timeout=self.timing.rpc_timeout,
            metrics_timeout=self.timing.metrics_timeout,
            names=target.member_names,
        )
        judge(observation, desired=target.desired)
        for member in observation.members:
            status = observation.status(member.id)
            if status is not None and not member.is_learner:
                self.in_use[member.id] = status.db_size_in_use
        return observation

    async def until(
        self, attempt: Callable[[], Awaitable[T]], *, grace: float = 0.0, stoppable: bool = True
    ) -> T:
        """Try until it works, the deadline is over, the patience is at its end, or a stop is asked for.

        `grace` seconds are granted on top of the request's patience. Not `stoppable`: only the deadline
        ends it, since a member is at stake.
        """
        began = self.clock.monotonic()
        while True:
            if stoppable and self.surroundings.stopping:
                raise StopRequested("asked to stop")
            try:
                return await attempt()
            except DEFERRING as error:
                failure: EtcdmaintError = error
            if isinstance(failure, PermissionDenied):
                raise RunOver(Ending.FAILED, failure.reason, str(failure))
            waited = self.clock.monotonic() - began
            if self.remaining <= 0:
                raise RunOver(
                    Ending.FAILED,
                    "DeadlineExceeded",
                    f"the deadline is over, still waiting: {failure.reason}: {failure}",
                )
            patience = self.request.patience
            if stoppable and patience is not None and waited >= patience + grace:
                raise RunOver(_ending(failure), failure.reason, str(failure))
            if not self.ledger.begun or waited >= self.timing.note_after:
                await self.ledger.wait(failure.reason, str(failure))
            ceiling = self.timing.queue_interval if isinstance(failure, SlotHeld) else None
            pause = min(self.timing.pace(waited, ceiling=ceiling), max(0.01, self.remaining))
            if stoppable:
                await self.surroundings.nap(pause)
            else:
                await self.clock.sleep(pause)

    async def assert_ours(self, client: MemberClient) -> None:
        """Directly before an RPC that changes etcd: the Lease and the slot are still ours (D37)."""
        self.fence.assert_held()
        if self.slot is not None:
            await self.slot.verify(client)
            self.fence.assert_held()

    def check_foreign(self, observation: Observation) -> None:
        """Without a slot: end the run when somebody else has defragmented a member (D64)."""
        for member_id, metrics in observation.metrics.items():
            if metrics is None or metrics.defrag_count is None:
                continue
            known = self.counts.setdefault(member_id, metrics.defrag_count)
            if self.slot is None and metrics.defrag_count > known:
                name = observation.name(member_id)
                raise RunOver(
                    Ending.HELD,
                    ForeignDefragmentation.reason,
                    f"member {name} was defragmented by somebody else meanwhile",
                )

    def sizes(self, observation: Observation, member_id: int) -> MemberSizes:
        """The member's own numbers and its quota (D21, D23)."""
        status = observation.status(member_id)
        if status is None:
            raise ClusterNotHealthy(
                "MemberUnreachable", f"member {observation.name(member_id)} did not answer"
            )
        target = self.target or Target(seeds=())
        metrics = observation.metrics.get(member_id)
        name = observation.name(member_id)
        option = next(
            (
                wanted.quota_bytes
                for wanted in target.desired or ()
                if wanted.member_id == member_id or wanted.name == name
            ),
            None,
        )
        quota = effective_quota(
            status.db_size_quota, metrics.quota if metrics else None, option, target.quota_bytes
        )
        return MemberSizes(status.db_size, status.db_size_in_use, quota)


def _ending(failure: EtcdmaintError) -> Ending:
    if isinstance(failure, SlotHeld):
        return Ending.HELD
    if isinstance(failure, ClusterNotHealthy | ClusterNotReady):
        return Ending.DEFERRED
    return Ending.FAILED
