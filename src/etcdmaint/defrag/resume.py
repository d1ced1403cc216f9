"""A member that an earlier process left in flight: is it idle, and was it defragmented? (D33, D36)

Never a second RPC while the first may run. Idle is proven by the member's own metric or by a read of its
backend; what became of it by evidence, in an order that prefers etcd's own count over an inference.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation, activity
from etcdmaint.defrag.lock import SlotValue
from etcdmaint.defrag.outcome import measure_outcome, record_gone, record_outcome
from etcdmaint.defrag.rule import still_due
from etcdmaint.defrag.run import MemberRow
from etcdmaint.errors import ClusterNotHealthy, EtcdError
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import AlarmKind


async def prove_idle(ctx: RunContext, row: MemberRow) -> MemberMetrics | None:
    """Return once the member is proven idle in several samples, or has been removed.

    Raises ClusterNotHealthy until then. The metrics are of the last sample, where they can be read.
    """
    metrics = None
    try:
        cluster = await ctx.reach_somehow()
        for sample in range(ctx.timing.idle_samples):
            if sample:
                await ctx.clock.sleep(ctx.timing.idle_interval)
            await cluster.refresh()
            if _removed(ctx, row):
                break
            metrics, error = await activity(
                cluster, row.member_id, ctx.timing.rpc_timeout, ctx.timing.metrics_timeout
            )
            if error is not None:
                raise error
            if metrics is not None and metrics.defrag_inflight:
                raise ClusterNotHealthy("", "it is still being defragmented")
    except (EtcdError, ClusterNotHealthy) as error:
        raise ClusterNotHealthy(
            "WaitingForMember", f"member {row.name} may still be at it: {error}", member=row.name
        ) from error
    ctx.idle.add(row.member_id)
    return metrics


def _removed(ctx: RunContext, row: MemberRow) -> bool:
    return row.member_id not in {member.id for member in ctx.link.cluster.members}


def never_sent(row: MemberRow, previous: SlotValue | None, observation: Observation) -> bool:
    """Whether the slot proves that the RPC was not sent: it names the member before that.

    Not under NOSPACE, when it cannot be written.
    """
    if previous is None or previous.member == row.member_id:
        return False
    return all(alarm.kind is not AlarmKind.NOSPACE for alarm in observation.alarms)


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
    metrics = await ctx.until(partial(prove_idle, ctx, row), stoppable=False)
    if _removed(ctx, row):
        await record_gone(ctx, row)
        return
    ran = counted(row, ctx.evidence, metrics)
    if ran:
        await record_outcome(ctx, await measure_outcome(ctx, row, "while nobody watched"))
        return
    if ran is False:
        await _due_again(ctx, row, "the member counts no defragmentation since it was asked")
        return

    async def ask() -> Observation:
        status = await ctx.link.cluster.client(row.member_id).status(timeout=ctx.timing.rpc_timeout)
        return Observation(
            members=ctx.link.cluster.members,
            statuses={row.member_id: status},
            metrics={row.member_id: metrics},
        )

    observation = await ctx.until(ask, stoppable=False)
    if never_sent(row, ctx.evidence, observation):
        await _due_again(ctx, row, "the earlier process stopped before it had asked the member")
    elif still_due(ctx.request.rule, ctx.sizes(observation, row.member_id)):
        await _due_again(ctx, row, "it is still due by the rule")
    else:
        how = "while nobody watched, by its size"
        done = await measure_outcome(ctx, row, how, reason="InferredFromSize")
        await record_outcome(ctx, done)


async def _due_again(ctx: RunContext, row: MemberRow, why: str) -> None:
    ctx.ledger.amend_row(replace(row, reason="", message=why, started_at=None))
    await ctx.ledger.write(reason="Resumed", message=f"member {row.name} is due again: {why}")
