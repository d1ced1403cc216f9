"""The turn of one member: transfer, intent, last checks, the RPC.

Defragment can neither be cancelled nor asked for twice, so everything that can be checked is checked
before it is sent, and what is not known afterwards is called unknown.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.holding import take_slot
from etcdmaint.defrag.lock import Slot
from etcdmaint.defrag.outcome import failed, measure_outcome, record_outcome
from etcdmaint.defrag.plan import AUTO_TRANSFER_SECONDS, expected_seconds, gone, transferee
from etcdmaint.defrag.run import (
    IN_FLIGHT,
    LeaderTransfer,
    MemberRow,
    MemberTurn,
    Outcome,
    Role,
    Severity,
)
from etcdmaint.errors import EtcdError, LeaseNotFound, SpaceExceeded, StopRequested
from etcdmaint.etcd.client import MemberClient


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
    # That it was proven idle before says nothing about this time.
    ctx.idle.discard(row.member_id)
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
            if ctx.slot is not None:
                # Who goes without one may have asked a member meanwhile (D61).
                latest = await ctx.gate()
                _check_decided(latest, turn.row)
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
        await client.defragment(turn.timeout_seconds, last_check=ctx.fence.assert_held)
    except EtcdError as error:
        failure = error
    seconds = ctx.clock.monotonic() - began
    ctx.rpc_seconds += seconds
    if failure is not None:
        return failed(ctx, row, failure, seconds)
    ctx.turns.append((row.db_size_in_use_before or 0, seconds))
    ctx.instrumentation.defragment_seconds(seconds)
    return await measure_outcome(ctx, row, f"in {seconds:.1f} s")


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
        await leader.move_leader(
            target, timeout=ctx.timing.transfer_timeout, last_check=ctx.fence.assert_held
        )
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
