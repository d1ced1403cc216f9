"""The turn of one member: from the decision to its outcome.

Defragment can neither be cancelled nor asked for twice, so everything that can be checked is checked
before it is sent, and what is not known afterwards is called unknown.
"""

from __future__ import annotations

import random
from dataclasses import replace

from etcdmaint.defrag.context import RunContext, RunOver
from etcdmaint.defrag.health import SETTLED_LAG, Observation, judge, observe
from etcdmaint.defrag.plan import AUTO_TRANSFER_SECONDS, expected_seconds, transferee
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
    ClusterNotHealthy,
    EtcdError,
    NoDiskSpace,
    RPCTimeout,
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
    restarts = _restarts(ctx, row)
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


def _restarts(ctx: RunContext, row: MemberRow) -> int:
    desired = ctx.target.desired if ctx.target else None
    return next(
        (m.restarts for m in desired or () if row.member_id == m.member_id or row.name == m.name), 0
    )


async def take_turn(ctx: RunContext, observation: Observation, row: MemberRow) -> None:
    """Defragment this member now: transfer, intent, last checks, the RPC, and its outcome."""
    expected = expected_seconds(row.db_size_in_use_before or 0, ctx.turns)
    if row.role is Role.LEADER:
        observation, sentence = await _leave_leader(ctx, observation, row, expected)
        row = replace(row, message=f"{row.message}; {sentence}")
    row = replace(row, reason=IN_FLIGHT, started_at=ctx.clock.now())
    ctx.ledger.amend_row(row)
    before_write = ctx.clock.monotonic()
    await ctx.ledger.write(
        reason="Defragmenting", message=f"member {row.name} is being defragmented"
    )
    try:
        if ctx.clock.monotonic() - before_write > ctx.timing.note_after:
            # The store was away for a while: what the gate saw is not fresh any more.
            observation = await ctx.until(ctx.gate)
        client = await _mark(ctx, observation, row)
    except (StopRequested, RunOver):
        # Nothing was sent: the intent is taken back.
        ctx.ledger.amend_row(replace(row, reason="", started_at=None))
        await ctx.ledger.write(reason="Stopped", message=f"stopped before member {row.name}")
        raise
    timeout = ctx.timing.member_timeout(row.db_size_in_use_before or 0)
    turn = MemberTurn(
        row=row,
        position=sum(r.outcome is not Outcome.PENDING for r in ctx.ledger.state.rows) + 1,
        total=len(ctx.ledger.state.rows),
        expected_seconds=expected,
        timeout_seconds=timeout,
        endpoint=str(ctx.link.cluster.endpoint(row.member_id)),
    )
    ctx.audience.turn(turn)
    ctx.fence.assert_held()
    began = ctx.clock.monotonic()
    try:
        await client.defragment(timeout=timeout)
    except EtcdError as error:
        seconds = ctx.clock.monotonic() - began
        ctx.rpc_seconds += seconds
        done = _failed(ctx, row, error, seconds)
    else:
        seconds = ctx.clock.monotonic() - began
        ctx.rpc_seconds += seconds
        ctx.turns.append((row.db_size_in_use_before or 0, seconds))
        if row.member_id in ctx.counts:
            ctx.counts[row.member_id] += 1
        ctx.instrumentation.defragment_seconds(seconds)
        done = await measure_outcome(ctx, row, f"in {seconds:.1f} s")
    await record_outcome(ctx, done)
    ctx.audience.turn(replace(turn, row=done))


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
    name = observation.name(target)
    leader = ctx.link.cluster.client(row.member_id)
    try:
        await ctx.assert_ours(leader)
        await leader.move_leader(target, timeout=ctx.timing.transfer_timeout)
        await _verify_leader(ctx, target)
    except (EtcdError, ClusterNotHealthy) as error:
        ctx.instrumentation.leadership_transfer("failed")
        ctx.audience.event(
            Severity.WARNING,
            "LeadershipTransferFailed",
            f"leadership could not be moved from {row.name} to {name}, so {row.name} is defragmented "
            f"in place: {error}",
        )
        sentence = f"leadership could not be moved to {name}: {error}"
    else:
        ctx.instrumentation.leadership_transfer("moved")
        ctx.audience.event(
            Severity.NORMAL, "LeadershipTransferred", f"leadership moved from {row.name} to {name}"
        )
        sentence = f"leadership moved to {name}: {predicted}"
    return await ctx.until(ctx.gate, grace=ctx.timing.transfer_timeout), sentence


async def _verify_leader(ctx: RunContext, target: int) -> None:
    """Every voter calls the new leader its leader, within the transfer's own time limit."""
    began = ctx.clock.monotonic()
    while True:
        observation = await observe(ctx.link.cluster, timeout=ctx.timing.rpc_timeout)
        if observation.leader == target:
            return
        if ctx.clock.monotonic() - began > ctx.timing.transfer_timeout:
            raise ClusterNotHealthy(
                "LeaderDisagreement", "the members do not all name the new leader"
            )
        await ctx.clock.sleep(ctx.timing.quick_interval)


async def _mark(ctx: RunContext, observation: Observation, row: MemberRow) -> MemberClient:
    """The slot names the member, and everything is still ours: the last step before the RPC."""
    metrics = observation.metrics.get(row.member_id)

    async def mark() -> MemberClient:
        client = ctx.link.cluster.client(row.member_id)
        asked = ctx.link.client(prefer=observation.leader)
        if ctx.slot is not None:
            ctx.fence.assert_held()
            await ctx.slot.mark(
                asked,
                row.member_id,
                ctx.clock.now(),
                defrag_count=metrics.defrag_count if metrics else None,
                process_start=metrics.process_start if metrics else None,
            )
        await ctx.assert_ours(asked)
        return client

    if ctx.slot is None:
        # Nobody can see us: two who start at the same moment part ways by chance (D64).
        await ctx.clock.sleep(random.uniform(0, ctx.timing.slotless_pause))  # noqa: S311 - no secret
        ctx.check_foreign(await ctx.until(ctx.gate))
    return await ctx.until(mark, grace=ctx.timing.rpc_timeout)


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
    for sample in range(ctx.timing.settle_samples):
        if sample:
            await ctx.clock.sleep(ctx.timing.quick_interval)
        observation = await observe(
            ctx.link.cluster,
            timeout=ctx.timing.rpc_timeout,
            names=ctx.target.member_names if ctx.target else None,
        )
        judge(observation, lag=SETTLED_LAG)
