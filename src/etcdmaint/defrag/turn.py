"""The turn of one member: from the decision to its outcome.

Defragment can neither be cancelled nor asked for twice, so everything that can be checked is checked
before it is sent, and what is not known afterwards is called unknown.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import SETTLED_LAG, Observation, judge
from etcdmaint.defrag.holding import take_slot
from etcdmaint.defrag.lock import Slot
from etcdmaint.defrag.plan import AUTO_TRANSFER_SECONDS, expected_seconds, gone, transferee
from etcdmaint.defrag.rule import evaluate, lacking_room
from etcdmaint.defrag.run import (
    IN_FLIGHT,
    LeaderTransfer,
    MemberRow,
    MemberTurn,
    Outcome,
    Role,
    Severity,
)
from etcdmaint.errors import (
    EtcdError,
    LeaseNotFound,
    NoDiskSpace,
    RPCTimeout,
    SpaceExceeded,
    StopRequested,
)
from etcdmaint.etcd.client import MemberClient
from etcdmaint.quantities import format_bytes

RESTARTS_LIMIT = 5
"""From so many restarts on, another operator's self-heal may delete a member that is not ready (D18)."""


def judge_member(ctx: RunContext, observation: Observation, row: MemberRow) -> MemberRow:
    """The row with its sizes, and Skipped with the reason when the member is not to be touched."""
    now = ctx.clock.now()
    member = next(m for m in observation.members if m.id == row.member_id)
    if member.is_learner:
        return replace(
            row,
            role=Role.LEARNER,
            outcome=Outcome.SKIPPED,
            reason="Learner",
            message="etcd does not defragment a learner",
            finished_at=now,
        )
    sizes = ctx.sizes(observation, row.member_id)
    decision = evaluate(ctx.request.rule, sizes)
    row = replace(
        row,
        role=Role.LEADER if observation.leader == row.member_id else Role.FOLLOWER,
        db_size_before=sizes.db_size,
        db_size_in_use_before=sizes.db_size_in_use,
        quota_bytes=sizes.quota,
        message=decision.message,
    )
    if not decision.due:
        return replace(row, outcome=Outcome.SKIPPED, reason=decision.reason, finished_at=now)
    wanted = ctx.desired(row.member_id, row.name)
    restarts = wanted.restarts if wanted else 0
    if restarts >= RESTARTS_LIMIT:
        return replace(
            row,
            outcome=Outcome.SKIPPED,
            reason="RestartCountTooHigh",
            message=f"its container has restarted {restarts} times: should it turn not ready, the "
            "operator of this cluster would delete it",
            finished_at=now,
        )
    volume = ctx.target.volume_size if ctx.target else None
    lacking = lacking_room(sizes, volume) if volume else None
    if lacking is not None:
        return replace(
            row,
            outcome=Outcome.SKIPPED,
            reason=NoDiskSpace.reason,
            message=lacking,
            finished_at=now,
        )
    return row


class _DecideAgain(Exception):
    """The cluster is not any more as it was when this turn was decided on."""


async def take_turn(ctx: RunContext, observation: Observation, row: MemberRow) -> None:
    """Defragment this member now: transfer, intent, last checks, the RPC, and its outcome.

    Without an outcome when the cluster has changed since `observation`: the turn is to be decided anew.
    """
    expected = expected_seconds(row.db_size_in_use_before or 0, ctx.turns)
    if row.role is Role.LEADER:
        observation, sentence = await _leave_leader(ctx, observation, row, expected)
        row = replace(row, message=f"{row.message}; {sentence}")
    decided = row
    row = replace(row, reason=IN_FLIGHT, started_at=ctx.clock.now())
    turn = MemberTurn(
        row=row,
        position=sum(r.outcome is not Outcome.PENDING for r in ctx.ledger.state.rows) + 1,
        total=len(ctx.ledger.state.rows),
        expected_seconds=expected,
        timeout_seconds=ctx.timing.member_timeout(row.db_size_in_use_before or 0),
        endpoint=str(ctx.link.cluster.endpoint(row.member_id)),
    )
    ctx.ledger.amend_row(row)
    try:
        await ctx.ledger.write(
            reason="Defragmenting", message=f"member {row.name} is being defragmented"
        )
        client = await _ready(ctx, observation, turn)
        ctx.audience.turn(turn)
        if ctx.gate_is_old:
            # A terminal that stood still, or a process that was stopped and goes on.
            client = await _ready(ctx, observation, turn)
        ctx.fence.assert_held()
    except BaseException as error:
        # Nothing was sent: the intent is taken back. All but a stop is followed by another write.
        ctx.ledger.amend_row(decided)
        if isinstance(error, StopRequested):
            await ctx.ledger.write(reason="Stopped", message=f"stopped before member {row.name}")
        if isinstance(error, _DecideAgain):
            return
        raise
    done = await _defragment(ctx, client, turn)
    await record_outcome(ctx, done)
    ctx.audience.turn(replace(turn, row=done))


async def _ready(ctx: RunContext, observation: Observation, turn: MemberTurn) -> MemberClient:
    """The member's client, once nothing stands against its turn and the slot names it: the last checks."""
    member_id = turn.row.member_id
    latest = observation

    async def attempt() -> MemberClient:
        nonlocal latest
        if ctx.slot is None:
            # Nobody can see us: two who start at the same moment part ways by chance (D64).
            pause = random.uniform(0, ctx.timing.slotless_pause)  # noqa: S311 - no secret
            await ctx.clock.sleep(pause)
        if ctx.slot is None or ctx.gate_is_old:
            latest = await ctx.gate()
        _check_decided(latest, turn.row)
        ctx.check_time(turn.timeout_seconds, f"member {turn.row.name}")
        if ctx.slot is None:
            # Should etcd take writes again, others may be about to take the slot.
            await take_slot(ctx)
        client = ctx.link.cluster.client(member_id)
        asked = ctx.link.client(prefer=latest.leader)
        if ctx.slot is not None:
            await _mark(ctx, ctx.slot, asked, latest, member_id)
        await ctx.assert_ours(asked)
        return client

    return await ctx.until(attempt, grace=ctx.timing.rpc_timeout)


def _check_decided(observation: Observation, row: MemberRow) -> None:
    """Raise when the member has gone, or has become leader since its turn was decided on (D30, D39)."""
    leads = observation.leader == row.member_id
    if gone((row.member_id,), observation) or (leads and row.role is not Role.LEADER):
        raise _DecideAgain


async def _mark(
    ctx: RunContext, slot: Slot, client: MemberClient, observation: Observation, member_id: int
) -> None:
    """The slot names the member, with its metrics from before the RPC, and its lease is fresh."""
    metrics = observation.metrics.get(member_id)
    ctx.fence.assert_held()
    # The whole TTL from now on: no beat may come through while the leader is blocked. A lease that has
    # expired shows as a slot that is lost.
    with contextlib.suppress(LeaseNotFound):
        await slot.beat(client)
    with contextlib.suppress(SpaceExceeded):
        # Where NOSPACE has come up meanwhile the slot stays ours, but cannot be written.
        await slot.mark(
            client,
            member_id,
            ctx.clock.now(),
            defrag_count=metrics.defrag_count if metrics else None,
            process_start=metrics.process_start if metrics else None,
        )


async def _defragment(ctx: RunContext, client: MemberClient, turn: MemberTurn) -> MemberRow:
    """The RPC; the row with its outcome."""
    row = turn.row
    if row.member_id in ctx.counts:
        ctx.counts[row.member_id] += 1
    began = ctx.clock.monotonic()
    failure: EtcdError | None = None
    try:
        await client.defragment(timeout=turn.timeout_seconds)
    except EtcdError as error:
        failure = error
    seconds = ctx.clock.monotonic() - began
    ctx.rpc_seconds += seconds
    if failure is not None:
        return _failed(ctx, row, failure, seconds)
    ctx.turns.append((row.db_size_in_use_before or 0, seconds))
    ctx.instrumentation.defragment_seconds(seconds)
    return await measure_outcome(ctx, row, f"in {seconds:.1f} s")


async def record_outcome(ctx: RunContext, row: MemberRow) -> None:
    """Make a member's outcome durable and tell it."""
    ctx.ledger.amend_row(row)
    if row.outcome is Outcome.DEFRAGMENTED:
        await ctx.ledger.write(reason="MemberDefragmented", message=f"member {row.name} is done")
        ctx.audience.event(
            Severity.NORMAL, "MemberDefragmented", f"member {row.name}: {row.message}"
        )
    else:
        await ctx.ledger.write(reason="MemberFailed", message=f"member {row.name}: {row.message}")
        ctx.audience.event(
            Severity.WARNING, "MemberFailed", f"member {row.name}: {row.reason}: {row.message}"
        )


async def _leave_leader(
    ctx: RunContext, observation: Observation, row: MemberRow, expected: float
) -> tuple[Observation, str]:
    """Move leadership off the member before its turn, where that is wanted and possible (D31)."""
    wanted = ctx.request.leader_transfer
    if wanted is LeaderTransfer.NEVER:
        return observation, "leadership stays: leaderTransfer is Never"
    if len(observation.voters) == 1:
        return observation, "leadership stays: there is one voter"
    predicted = f"a turn of {expected:.1f} s is predicted"
    if wanted is LeaderTransfer.AUTO and expected <= AUTO_TRANSFER_SECONDS:
        return observation, f"leadership stays: {predicted}"
    defragmented = {r.member_id for r in ctx.ledger.with_outcome(Outcome.DEFRAGMENTED)}
    target = transferee(observation, defragmented)
    assert target is not None
    why = "it leads all the same"
    try:
        leader = ctx.link.cluster.client(row.member_id)
        await ctx.assert_ours(leader)
        await leader.move_leader(target, timeout=ctx.timing.transfer_timeout)
    except EtcdError as error:
        why = str(error)
    # The gate verifies it on all members. What they say now counts, not what the RPC said.
    observation = await ctx.until(ctx.gate, grace=ctx.timing.transfer_timeout)
    if observation.leader == row.member_id:
        name = observation.name(target)
        ctx.instrumentation.leadership_transfer("failed")
        ctx.audience.event(
            Severity.WARNING,
            "LeadershipTransferFailed",
            f"leadership could not be moved from {row.name} to {name}, so {row.name} is defragmented "
            f"in place: {why}",
        )
        return observation, f"leadership could not be moved to {name}: {why}; {predicted}"
    name = observation.name(observation.leader)
    ctx.instrumentation.leadership_transfer("moved")
    ctx.audience.event(
        Severity.NORMAL, "LeadershipTransferred", f"leadership moved from {row.name} to {name}"
    )
    return observation, f"leadership moved to {name}: {predicted}"


def _failed(ctx: RunContext, row: MemberRow, error: EtcdError, seconds: float) -> MemberRow:
    message = str(error)
    if isinstance(error, NoDiskSpace):
        message = f"{message}; the member exits at its next write, make room on its disk first"
    if isinstance(error, RPCTimeout):
        message = f"no answer within {seconds:.0f} s; the member may still be at it"
    return replace(
        row,
        outcome=Outcome.FAILED,
        reason=error.reason,
        message=message,
        finished_at=ctx.clock.now(),
    )


async def measure_outcome(
    ctx: RunContext, row: MemberRow, how: str, *, reason: str = ""
) -> MemberRow:
    """The row as Defragmented, with the size that the member has now (D35)."""
    began = ctx.clock.monotonic()
    after: int | None = None
    while after is None and ctx.clock.monotonic() - began < ctx.timing.answer_limit:
        try:
            client = ctx.link.cluster.client(row.member_id)
            after = (await client.status(timeout=ctx.timing.rpc_timeout)).db_size
        except EtcdError:
            await ctx.clock.sleep(ctx.timing.quick_interval)
    row = replace(row, outcome=Outcome.DEFRAGMENTED, reason=reason, finished_at=ctx.clock.now())
    if after is None:
        return replace(
            row,
            reason="AfterSizeUnavailable",
            message=f"{row.message}; done {how}, its size afterwards could not be read",
        )
    before = row.db_size_before
    reclaimed = None if before is None else before - after
    return replace(
        row,
        db_size_after=after,
        reclaimed_bytes=reclaimed,
        message=f"{row.message}; done {how}, now {format_bytes(after)}",
    )


async def settled(ctx: RunContext) -> None:
    """Raise unless every voter has caught up in several samples in a row (D14)."""
    await ctx.reach()
    for sample in range(ctx.timing.settle_samples):
        if sample:
            await ctx.clock.sleep(ctx.timing.quick_interval)
        judge(await ctx.observe(activity=False), lag=SETTLED_LAG)
