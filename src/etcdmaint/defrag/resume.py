"""A member that an earlier process left in flight: is it idle, and was it defragmented? (D33, D36)

Never a second RPC while the first may run. Idle is proven by the member's own metric or by a read of its
backend; what became of it by evidence, in an order that prefers etcd's own count over an inference.
"""

from __future__ import annotations

from dataclasses import replace

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation, read_backend
from etcdmaint.defrag.lock import SlotValue
from etcdmaint.defrag.rule import still_due
from etcdmaint.defrag.run import MemberRow, Outcome
from etcdmaint.defrag.turn import measure_outcome, record_outcome
from etcdmaint.errors import ClusterNotHealthy
from etcdmaint.etcd.metrics import MemberMetrics


async def prove_idle(ctx: RunContext, row: MemberRow) -> MemberMetrics | None:
    """Return once the member is proven idle in several samples; raise ClusterNotHealthy until then."""
    cluster = ctx.link.cluster
    metrics = None
    for sample in range(ctx.timing.idle_samples):
        if sample:
            await ctx.clock.sleep(ctx.timing.idle_interval)
        metrics = await cluster.metrics(row.member_id, timeout=ctx.timing.metrics_timeout)
        if metrics is not None and metrics.defrag_inflight is not None:
            if metrics.defrag_inflight:
                raise ClusterNotHealthy(
                    "WaitingForMember",
                    f"member {row.name} is still being defragmented",
                    member=row.name,
                )
            continue
        await cluster.refresh()
        error = await read_backend(cluster, row.member_id, ctx.timing.rpc_timeout)
        if error is not None:
            raise ClusterNotHealthy(
                "WaitingForMember",
                f"member {row.name} may still be at it: {error}",
                member=row.name,
            )
    return metrics


def never_sent(ctx: RunContext, row: MemberRow, previous: SlotValue | None) -> bool:
    """Whether the slot proves that the RPC was not sent: the slot names the member before that."""
    return (
        previous is not None
        and previous.uid == ctx.request.uid
        and previous.member != row.member_id
    )


def counted(
    row: MemberRow, previous: SlotValue | None, metrics: MemberMetrics | None
) -> bool | None:
    """Whether etcd's own count proves that it ran (True) or did not (False); None: no proof (D36 a)."""
    if (
        previous is None
        or metrics is None
        or previous.member != row.member_id
        or previous.defrag_count is None
        or metrics.defrag_count is None
        or previous.process_start is None
        or previous.process_start != metrics.process_start
    ):
        return None
    return metrics.defrag_count > previous.defrag_count


async def resolve_in_flight(ctx: RunContext, row: MemberRow) -> None:
    """Deal with a row in flight: Defragmented, due again, or gone."""
    previous = ctx.slot.previous if ctx.slot else None
    if never_sent(ctx, row, previous):
        await _due_again(ctx, row, "the earlier process stopped before it had asked the member")
        return

    async def attempt() -> MemberMetrics | None:
        target = await ctx.surroundings.look()
        cluster = await ctx.link.follow(target)
        await cluster.refresh()
        if row.member_id not in {member.id for member in cluster.members}:
            return None
        return await prove_idle(ctx, row)

    metrics = await ctx.until(attempt, stoppable=False)
    if row.member_id not in {member.id for member in ctx.link.cluster.members}:
        await record_outcome(
            ctx,
            replace(
                row,
                outcome=Outcome.FAILED,
                reason="MemberGone",
                message="the member was removed while it was in flight",
                finished_at=ctx.clock.now(),
            ),
        )
        return
    ran = counted(row, previous, metrics)
    if ran is None:
        observation = await ctx.until(lambda: _sizes(ctx), stoppable=False)
        due = still_due(ctx.request.rule, ctx.sizes(observation, row.member_id))
        if due:
            await _due_again(ctx, row, "it is still due by the rule")
        else:
            await record_outcome(
                ctx,
                await measure_outcome(
                    ctx, row, "while nobody watched, by its size", reason="InferredFromSize"
                ),
            )
    elif ran:
        await record_outcome(ctx, await measure_outcome(ctx, row, "while nobody watched"))
    else:
        await _due_again(ctx, row, "the member counts no defragmentation since it was asked")


async def _sizes(ctx: RunContext) -> Observation:
    cluster = ctx.link.cluster
    await cluster.refresh()
    statuses = await cluster.statuses(ctx.timing.rpc_timeout)
    metrics = {
        m.id: await cluster.metrics(m.id, timeout=ctx.timing.metrics_timeout)
        for m in cluster.members
    }
    return Observation(members=cluster.members, statuses=statuses, metrics=metrics)


async def _due_again(ctx: RunContext, row: MemberRow, why: str) -> None:
    ctx.ledger.amend_row(replace(row, reason="", message=why, started_at=None))
    await ctx.ledger.write(reason="Resumed", message=f"member {row.name} is due again: {why}")
