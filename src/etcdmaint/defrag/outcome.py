"""What becomes of a member: touched or not, and why not; then what came of it, measured, recorded, told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.rule import evaluate, lacking_room
from etcdmaint.defrag.run import MemberRow, Outcome, Role, Severity
from etcdmaint.errors import EtcdError, NoDiskSpace, RPCTimeout
from etcdmaint.quantities import format_bytes

RESTARTS_LIMIT = 5
"""From so many restarts on, another operator's self-heal may delete a member that is not ready (D18)."""


def judge_member(ctx: RunContext, observation: Observation, row: MemberRow) -> MemberRow:
    """The row with its sizes, and Skipped with the reason when the member is not to be touched."""

    def skipped(reason: str, message: str) -> MemberRow:
        return replace(
            row,
            outcome=Outcome.SKIPPED,
            reason=reason,
            message=message,
            finished_at=ctx.clock.now(),
        )

    if all(member.id != row.member_id for member in observation.voters):
        row = replace(row, role=Role.LEARNER)
        return skipped("Learner", "etcd does not defragment a learner")
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
        return skipped(decision.reason, decision.message)
    wanted = ctx.desired(row.member_id, row.name)
    if wanted is not None and wanted.restarts >= RESTARTS_LIMIT:
        return skipped(
            "RestartCountTooHigh",
            f"its container has restarted {wanted.restarts} times: should it turn not ready, the "
            "operator of this cluster would delete it",
        )
    volume = ctx.target.volume_size if ctx.target else None
    if volume and (lacking := lacking_room(sizes, volume)):
        return skipped(NoDiskSpace.reason, lacking)
    return row


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


def failed(ctx: RunContext, row: MemberRow, error: EtcdError, seconds: float) -> MemberRow:
    """The row as Failed, with what the error means for its member (D33, D34)."""
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


async def record_gone(ctx: RunContext, row: MemberRow) -> None:
    """A member that the run counts on is not there any more (D39)."""
    gone = replace(
        row,
        outcome=Outcome.FAILED,
        reason="MemberGone",
        message="the member was removed while the run went on",
        finished_at=ctx.clock.now(),
    )
    await record_outcome(ctx, gone)


async def record_outcome(ctx: RunContext, row: MemberRow) -> None:
    """Make a member's outcome durable and tell it."""
    ctx.ledger.amend_row(row)
    if row.outcome is Outcome.DEFRAGMENTED:
        severity, reason = Severity.NORMAL, "MemberDefragmented"
        message, told = f"member {row.name} is done", f"member {row.name}: {row.message}"
    else:
        severity, reason = Severity.WARNING, "MemberFailed"
        message = f"member {row.name}: {row.message}"
        told = f"member {row.name}: {row.reason}: {row.message}"
    await ctx.ledger.write(
        partial(ctx.audience.event, severity, reason, told), reason=reason, message=message
    )
