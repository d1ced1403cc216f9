"""What every step of one run shares: its parts, its patience, and the check before each act.

The steps themselves are in `sweep` (the life of a run), `holding` (how it is let in, and the slot), `turn`
and `outcome` (one member), `resume` (a member found in flight), `alarms` and `ending`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from etcdmaint.clock import Clock
from etcdmaint.defrag.health import SETTLED_LAG, Observation, judge, observe
from etcdmaint.defrag.ledger import Ledger
from etcdmaint.defrag.link import Link
from etcdmaint.defrag.lock import Slot, SlotValue
from etcdmaint.defrag.rule import MemberSizes, effective_quota
from etcdmaint.defrag.run import (
    Audience,
    DesiredMember,
    Ending,
    Fence,
    Instrumentation,
    RunGone,
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
from etcdmaint.etcd.cluster import ClusterClient

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
    """Ends the run as failed."""

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
    break_lock: bool = False
    slot: Slot | None = None
    evidence: SlotValue | None = None
    """What an earlier process of this run had left in the slot (D36)."""
    target: Target | None = None
    began: float = 0.0
    gated: float = 0.0
    """When the gate was passed last."""
    told: float = -math.inf
    """When the record was last written because of a wait."""
    rpc_seconds: float = 0.0
    in_use: dict[int, int] = field(default_factory=dict)
    """The most that each voter was seen to have in use: timeouts follow from it, and the deadline."""
    turns: list[tuple[int, float]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    """How many defragmentations each member had when the run began, plus ours (D64)."""
    idle: set[int] = field(default_factory=set)
    """Members in doubt that were proven idle."""

    @property
    def age(self) -> float:
        """Seconds since the run was asked for."""
        return self.request.age + self.clock.monotonic() - self.began

    @property
    def remaining(self) -> float:
        """Seconds until the deadline (D4)."""
        return self.timing.deadline(self.in_use.values()) - self.age

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be touched; a run that has begun is none, whatever it is called since."""
        return self.request.dry_run and not self.ledger.begun

    @property
    def gate_is_old(self) -> bool:
        """Whether what the gate saw is not fresh enough any more to touch a member by it."""
        return self.clock.monotonic() - self.gated > self.timing.gate_keeps

    @property
    def at_stake(self) -> frozenset[int]:
        """The members that may be defragmenting, for all that is known."""
        return frozenset(r.member_id for r in self.ledger.state.rows if r.in_doubt) - self.idle

    def check_time(self, needed: float, what: str) -> None:
        """End the run unless so many seconds are left until the deadline (D4)."""
        if self.remaining < needed:
            raise RunOver(
                Ending.FAILED,
                "DeadlineExceeded",
                f"{max(0.0, self.remaining):.0f} s are left until the deadline, {what} may need "
                f"{needed:.0f} s",
            )

    async def look(self, *, heed_pause: bool = True) -> Target:
        """How to reach the cluster, read afresh; a stop button counts as not ready (D9)."""
        try:
            self.target = await self.surroundings.look()
        except ClusterNotFound as error:
            if self.age >= self.timing.missing_grace:
                raise RunOver(Ending.FAILED, error.reason, str(error)) from None
            raise
        if self.target.paused and heed_pause:
            raise ClusterNotReady("Paused", self.target.paused)
        return self.target

    async def reach(self, *, heed_pause: bool = True) -> ClusterClient:
        """The cluster, by the way that is known now."""
        target = await self.look(heed_pause=heed_pause)
        return await self.link.follow(target, stay=self.ledger.begun)

    async def reach_somehow(self) -> ClusterClient:
        """The cluster, where it must be looked after: by the old way where there is no new one (D7)."""
        try:
            self.target = await self.surroundings.look()
            return await self.link.follow(self.target, stay=True)
        except (*DEFERRING, StopRequested, RunGone):
            if not self.link.connected:
                raise
            return self.link.cluster

    async def observe(self, *, activity: bool = True) -> Observation:
        """What the members say now, without judging it."""
        return await observe(
            self.link.cluster,
            timeout=self.timing.rpc_timeout,
            metrics_timeout=self.timing.metrics_timeout if activity else None,
            names=self.target.member_names if self.target else None,
        )

    async def gate(self) -> Observation:
        """Look at everything and raise unless the cluster may be touched now (D10 to D16)."""
        # Should it refuse, what it saw before does not count any more.
        self.gated = -math.inf
        await self.reach()
        observation = await self.observe()
        judge(observation, desired=self.target.desired if self.target else None)
        for member in observation.voters:
            status = observation.status(member.id)
            if status is not None:
                known = self.in_use.get(member.id, 0)
                self.in_use[member.id] = max(known, status.db_size_in_use)
        self.check_foreign(observation)
        self.gated = self.clock.monotonic()
        return observation

    async def settled(self) -> None:
        """Raise unless every voter has caught up in several samples in a row (D14)."""
        await self.reach()
        for sample in range(self.timing.settle_samples):
            if sample:
                await self.clock.sleep(self.timing.quick_interval)
            judge(await self.observe(activity=False), lag=SETTLED_LAG)

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
                # Where a member is at stake, its object may be gone by now: it is waited for all the same.
                stale = self.clock.monotonic() - self.told >= self.timing.tell_again and stoppable
                if await self.ledger.wait(failure.reason, str(failure), stale=stale):
                    self.told = self.clock.monotonic()
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
            known = metrics.defrag_count
            if self.ledger.begun:
                known = self.counts.get(member_id, known)
            # A member that has restarted counts from zero.
            self.counts[member_id] = min(known, metrics.defrag_count)
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
        metrics = observation.metrics.get(member_id)
        wanted = self.desired(member_id, observation.name(member_id))
        quota = effective_quota(
            status.db_size_quota,
            metrics.quota if metrics else None,
            wanted.quota_bytes if wanted else None,
            self.target.quota_bytes if self.target else None,
        )
        return MemberSizes(status.db_size, status.db_size_in_use, quota)

    def desired(self, member_id: int, name: str) -> DesiredMember | None:
        """What whoever manages the members says of this one."""
        desired = self.target.desired if self.target else None
        return next((wanted for wanted in desired or () if wanted.means(member_id, name)), None)


def _ending(failure: EtcdmaintError) -> Ending:
    if isinstance(failure, SlotHeld):
        return Ending.HELD
    if isinstance(failure, ClusterNotHealthy | ClusterNotReady):
        return Ending.DEFERRED
    return Ending.FAILED
