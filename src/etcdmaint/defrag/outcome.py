"""What became of a member: measured, recorded, told; and the cluster caught up before the next one."""

from __future__ import annotations

from dataclasses import replace

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import SETTLED_LAG, judge
from etcdmaint.defrag.run import MemberRow, Outcome, Severity
from etcdmaint.errors import EtcdError, NoDiskSpace, RPCTimeout
from etcdmaint.quantities import format_bytes


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


async def settled(ctx: RunContext) -> None:
    """Raise unless every voter has caught up in several samples in a row (D14)."""
    await ctx.reach()
    for sample in range(ctx.timing.settle_samples):
        if sample:
            await ctx.clock.sleep(ctx.timing.quick_interval)
        judge(await ctx.observe(activity=False), lag=SETTLED_LAG)
