"""How a run ends: the member in doubt is waited out, NOSPACE disarmed if that is safe, the slot given back.

The terminal phase is written last, so that a process which dies before it leaves a run that another one
ends the same way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from etcdmaint.defrag.alarms import settle_alarms
from etcdmaint.defrag.context import RunContext, RunOver
from etcdmaint.defrag.holding import give_back
from etcdmaint.defrag.resume import prove_idle
from etcdmaint.defrag.run import Ending, MemberRow, Outcome, Phase, Severity
from etcdmaint.errors import NoDiskSpace, PermissionDenied
from etcdmaint.quantities import format_bytes

_OWN_WORD = frozenset({NoDiskSpace.reason, PermissionDenied.reason, "MemberGone"})


async def wait_out(ctx: RunContext, *, silently: bool = False) -> RunOver | None:
    """Wait until every member whose outcome is unknown is proven idle, or the deadline is over (D33).

    `silently`: nothing of it is written.
    """
    for member_id in sorted(ctx.at_stake):
        row = ctx.ledger.row(member_id)
        reason = "WaitingForMember"
        message = f"no further member is touched until {row.name} is proven idle"
        if silently:
            ctx.ledger.amend(reason=reason, message=message)
        else:
            await ctx.ledger.wait(reason, message)
        try:
            await ctx.until(partial(prove_idle, ctx, row), stoppable=False)
        except RunOver as over:
            return over
    return None


def sweep_stopped(ctx: RunContext, why: str) -> None:
    """Mark the members that have not had their turn (D34)."""
    for row in ctx.ledger.with_outcome(Outcome.PENDING):
        if row.in_flight:
            done = replace(
                row,
                outcome=Outcome.FAILED,
                reason="OutcomeUnknown",
                message="the run ended before it was known what became of it",
                finished_at=ctx.clock.now(),
            )
        else:
            done = replace(row, outcome=Outcome.SKIPPED, reason="SweepStopped", message=why)
        ctx.ledger.amend_row(done)


def _failure(rows: Collection[MemberRow]) -> tuple[str, str] | None:
    """Why the run failed by its members' rows, or None when it did not."""
    for row in rows:
        if row.outcome is Outcome.FAILED:
            reason = row.reason if row.reason in _OWN_WORD else "MemberFailed"
            return reason, f"member {row.name}: {row.reason}: {row.message}"
    for row in rows:
        if row.reason == NoDiskSpace.reason:
            return row.reason, f"member {row.name}: {row.message}"
    return None


async def end(ctx: RunContext, over: RunOver | None) -> Ending:
    """End a run that holds its cluster; `over` when it was cut short. Returns how it ended."""
    sweep_stopped(ctx, over.message if over else "a member before this one failed")
    alarm_left = await settle_alarms(ctx)
    ctx.ledger.note(await give_back(ctx))
    return await conclude(ctx, over, alarm_left=alarm_left)


async def refuse(ctx: RunContext, over: RunOver) -> Ending:
    """End a run that was not admitted: its cluster is not its own to touch."""
    sweep_stopped(ctx, over.message)
    return await conclude(ctx, over)


def tell_end(ctx: RunContext) -> None:
    """Say how the run has ended, and count it."""
    state = ctx.ledger.state
    if state.phase is Phase.COMPLETE:
        ctx.audience.event(Severity.NORMAL, "Complete", state.message)
    else:
        ctx.audience.event(Severity.WARNING, "DefragFailed", f"{state.reason}: {state.message}")
    ctx.instrumentation.run_finished(state.phase, state.reason)


async def conclude(ctx: RunContext, over: RunOver | None, *, alarm_left: bool = False) -> Ending:
    """Write the terminal phase, last of all, and say so."""
    ledger = ctx.ledger
    failure = (over.reason, over.message) if over else _failure(ledger.state.rows)
    now = ctx.clock.now()
    done = ledger.state.defragmented
    total = len(ledger.state.rows)
    summary = f"{done} of {total} members defragmented" if total else "nothing was touched"
    if done:
        summary += f", {format_bytes(ledger.state.reclaimed_bytes)} reclaimed"
    if failure is None:
        phase, reason = Phase.COMPLETE, "Complete"
        message = ". ".join((summary, *ledger.state.notes))
    else:
        phase, (reason, why) = Phase.FAILED, failure
        message = ". ".join((why, summary, *ledger.state.notes))
    await ledger.write(
        partial(tell_end, ctx), phase=phase, reason=reason, message=message, completed_at=now
    )
    if over is not None:
        return over.ending
    if failure is not None:
        return Ending.FAILED
    return Ending.ALARM_LEFT if alarm_left else Ending.DONE
