"""The life of one run: admitted, swept member by member, ended; resumable at every point.

This is the one entry for whoever wants a cluster defragmented. It must not know who asked: what it needs
from outside it asks of the Protocols in `run`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

from etcdmaint.clock import Clock
from etcdmaint.defrag.context import RunContext, RunOver
from etcdmaint.defrag.ending import end, refuse, tell_end, wait_out
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.holding import admit, check_releases, give_back, slot_kept
from etcdmaint.defrag.ledger import Ledger
from etcdmaint.defrag.link import Connect, Link
from etcdmaint.defrag.outcome import judge_member, record_gone
from etcdmaint.defrag.plan import gone, next_member
from etcdmaint.defrag.queue import RunQueue, Ticket
from etcdmaint.defrag.resume import resolve_in_flight
from etcdmaint.defrag.run import (
    Audience,
    Ending,
    Fence,
    Instrumentation,
    Journal,
    MemberRow,
    NoInstrumentation,
    Outcome,
    Phase,
    RecordRefused,
    RunGone,
    RunRequest,
    RunResult,
    RunState,
    Severity,
    Surroundings,
)
from etcdmaint.defrag.timing import Timing
from etcdmaint.defrag.turn import take_turn
from etcdmaint.errors import ClusterNotHealthy, EtcdError, SlotLost, StopRequested
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import Member


class Sweep:
    """One run. `run` may be called once."""

    def __init__(
        self,
        request: RunRequest,
        *,
        surroundings: Surroundings,
        journal: Journal,
        fence: Fence,
        audience: Audience,
        clock: Clock,
        instrumentation: Instrumentation | None = None,
        queue: RunQueue | None = None,
        timing: Timing | None = None,
        observer: RpcObserver | None = None,
        break_lock: bool = False,
        connect: Connect = ClusterClient.connect,
    ) -> None:
        timing = timing or Timing()
        counts = instrumentation or NoInstrumentation()
        self._queue = queue or RunQueue()
        self._ctx = RunContext(
            request=request,
            surroundings=surroundings,
            fence=fence,
            audience=audience,
            clock=clock,
            timing=timing,
            instrumentation=counts,
            ledger=Ledger(RunState(), journal, audience, counts),
            link=Link(timing.dial_timeout, observer, connect),
            break_lock=break_lock,
        )

    async def run(self, state: RunState | None = None) -> RunResult:
        """Carry the run on from `state` until it has ended or is asked to stop.

        Raises LeadershipLost when this process may not act any more and RunGone when the object that
        asked for the run is not there: in both cases nothing more was done. The slot then waits for a
        successor, or, when the run is gone and no member can be at it, is given back. So it is where the
        record may not be written; then this returns once that was done, with the run to be carried on.
        """
        ctx = self._ctx
        ctx.ledger.state = ctx.ledger.durable = state = state or RunState()
        if state.phase.terminal:
            return RunResult(state, _ended(state))
        ctx.began = ctx.clock.monotonic()
        ctx.in_use = {
            row.member_id: row.db_size_in_use_before or row.db_size_before or 0
            for row in state.rows
        }
        # A run that has begun may have a member in flight: nobody goes before it.
        created = "" if ctx.ledger.begun else ctx.request.created
        ticket = self._queue.arrive(ctx.request.name, created, ctx.request.cluster_ref)
        refused = False
        try:
            if state.phase is Phase.NEW:
                await ctx.ledger.write(
                    phase=Phase.PENDING, reason="Accepted", message="waits for its first look"
                )
            ending = await self._live(ticket)
        except StopRequested:
            await give_back(ctx)
            ending = Ending.STOPPED
        except RecordRefused:
            # Rights that are withheld from us are no reason for the cluster to wait.
            refused = True
            await give_back(ctx)
        except RunGone:
            await give_back(ctx)
            raise
        finally:
            self._queue.leave(ticket)
            await ctx.link.close()
        if refused:
            await self._record_at_last()
            return RunResult(ctx.ledger.durable, _ended(ctx.ledger.durable))
        return RunResult(ctx.ledger.state, ending)

    async def _record_at_last(self) -> None:
        """Make durable what is known by now: without it, a later call would have to find it out again.

        Nobody who deletes the object is kept waiting for that, unless its record has a member that may
        be at it: it cannot go before that is known, and to find it out takes the cluster each time.
        """
        ctx = self._ctx
        while not ctx.surroundings.stopping or any(row.in_doubt for row in ctx.ledger.durable.rows):
            try:
                await ctx.ledger.persist()
            except RecordRefused:
                await ctx.clock.sleep(ctx.timing.gate_interval)
            else:
                return

    async def _live(self, ticket: Ticket) -> Ending:
        ctx = self._ctx
        try:
            # A member that may be at it is seen to before anything stops this run (D7).
            observation = await ctx.until(
                partial(admit, ctx, self._queue, ticket), stoppable=not ctx.at_stake
            )
        except RunOver as refused:
            return await refuse(ctx, refused)
        if ctx.dry_run:
            assert observation is not None
            return await self._rehearse(observation)
        async with slot_kept(ctx):
            began = ctx.clock.monotonic()
            try:
                if observation is not None:
                    await self._begin(observation)
                await self._sweep()
                over = await wait_out(ctx)
                await self._look_back()
            except RunOver as cut_short:
                over = cut_short
            except SlotLost as lost:
                over = RunOver(Ending.HELD, lost.reason, str(lost))
            except RecordRefused:
                # The cluster is kept for a member that may be at it, though nobody can be told.
                await wait_out(ctx, silently=True)
                raise
            ending = await end(ctx, over)
            took = ctx.clock.monotonic() - began
            ctx.instrumentation.sweep_overhead_seconds(took - ctx.rpc_seconds)
            return ending

    async def _begin(self, observation: Observation) -> None:
        """Running, with a row for every member, is stamped once gate and slot are passed (D1)."""
        ctx = self._ctx
        rows = tuple(self._new_row(observation, member) for member in observation.members)
        members = f"{len(rows)} members, one at a time" if len(rows) > 1 else "one member"
        try:
            await ctx.ledger.write(
                partial(ctx.audience.event, Severity.NORMAL, "Running", members),
                phase=Phase.RUNNING,
                reason="Running",
                message=members,
                rows=rows,
                started_at=ctx.clock.now(),
            )
        except RecordRefused as refused:
            # Nothing has been touched. It is admitted anew, if it is still wanted by then.
            ctx.ledger.take_back(refused.reason, str(refused))
            raise

    def _new_row(self, observation: Observation, member: Member) -> MemberRow:
        """A voter's has its sizes from the start: a successor reckons the run's deadline with them."""
        row = MemberRow(name=observation.name(member.id), member_id=member.id)
        if member.is_learner:
            return row
        sizes = self._ctx.sizes(observation, member.id)
        return replace(
            row, db_size_before=sizes.db_size, db_size_in_use_before=sizes.db_size_in_use
        )

    async def _sweep(self) -> None:
        """Every member's turn, in an order made anew before each (D30)."""
        ctx = self._ctx
        for row in ctx.ledger.state.rows:
            if row.in_flight:
                await resolve_in_flight(ctx, row)
        while ctx.ledger.with_outcome(Outcome.PENDING) and not ctx.ledger.with_outcome(
            Outcome.FAILED
        ):
            if ctx.ledger.with_outcome(Outcome.DEFRAGMENTED):
                await ctx.until(ctx.settled, grace=ctx.timing.settle_limit)
            observation = await ctx.until(ctx.gate)
            ctx.check_time(0, "the rest")
            check_releases(ctx, observation)
            await self._next_turn(observation)

    async def _look_back(self) -> None:
        """Without a slot: whether somebody else defragmented a member during the last turn (D64)."""
        ctx = self._ctx
        if ctx.slot is None:
            with contextlib.suppress(EtcdError, ClusterNotHealthy):
                ctx.check_foreign(await ctx.observe())

    async def _next_turn(self, observation: Observation) -> None:
        """The rows of members that are not touched, and the turn of the first that is."""
        ctx = self._ctx
        waiting = {row.member_id for row in ctx.ledger.with_outcome(Outcome.PENDING)}
        for missing in gone(waiting, observation):
            await record_gone(ctx, ctx.ledger.row(missing))
            return
        while waiting:
            member_id = next_member(waiting, observation)
            assert member_id is not None
            waiting.discard(member_id)
            row = judge_member(ctx, observation, ctx.ledger.row(member_id))
            if row.outcome is Outcome.PENDING:
                await take_turn(ctx, observation, row)
                return
            ctx.ledger.amend_row(row)

    async def _rehearse(self, observation: Observation) -> Ending:
        """A dry run: every member's decision, and nothing else (D8)."""
        ctx = self._ctx
        rows = []
        for member in observation.members:
            row = MemberRow(name=observation.name(member.id), member_id=member.id)
            row = judge_member(ctx, observation, row)
            if row.outcome is Outcome.PENDING:
                row = replace(row, outcome=Outcome.SKIPPED, reason="WouldDefragment")
            rows.append(row)
        due = sum(row.reason == "WouldDefragment" for row in rows)
        summary = f"dry run: {due} of {len(rows)} members would be defragmented"
        message = ". ".join((summary, *ctx.ledger.state.notes))
        now = ctx.clock.now()
        await ctx.ledger.write(
            partial(tell_end, ctx),
            phase=Phase.COMPLETE,
            reason="Complete",
            message=message,
            rows=tuple(rows),
            started_at=now,
            completed_at=now,
        )
        return Ending.DONE


def _ended(state: RunState) -> Ending:
    """How a run stands, by its record alone."""
    if not state.phase.terminal:
        return Ending.STOPPED
    return Ending.DONE if state.phase is Phase.COMPLETE else Ending.FAILED
