"""The life of one run: admitted, swept member by member, ended; resumable at every point.

This is the one entry for whoever wants a cluster defragmented. It must not know who asked: what it needs
from outside it asks of the Protocols in `run`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from etcdmaint.clock import Clock
from etcdmaint.defrag.context import RunContext, RunOver
from etcdmaint.defrag.ending import end, wait_out
from etcdmaint.defrag.health import Observation, observe
from etcdmaint.defrag.ledger import Ledger
from etcdmaint.defrag.link import Link
from etcdmaint.defrag.lock import Slot, read_slot
from etcdmaint.defrag.plan import gone, next_member
from etcdmaint.defrag.queue import RunQueue
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
    RunRequest,
    RunResult,
    RunState,
    Severity,
    Surroundings,
)
from etcdmaint.defrag.timing import Timing
from etcdmaint.defrag.turn import judge_member, settled, take_turn
from etcdmaint.defrag.versions import Action, find_hazards
from etcdmaint.errors import EtcdError, SlotHeld, SpaceExceeded, StopRequested, UnsafeEtcdVersion
from etcdmaint.etcd.client import RpcObserver


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
    ) -> None:
        timing = timing or Timing()
        counts = instrumentation or NoInstrumentation()
        self._queue = queue or RunQueue()
        self._break_lock = break_lock
        self._ctx = RunContext(
            request=request,
            surroundings=surroundings,
            fence=fence,
            audience=audience,
            clock=clock,
            timing=timing,
            instrumentation=counts,
            ledger=Ledger(RunState(), journal, audience, counts),
            link=Link(timing.dial_timeout, observer),
        )

    async def run(self, state: RunState | None = None) -> RunResult:
        """Carry the run on from `state` until it has ended or is asked to stop.

        Raises LeadershipLost when this process may not act any more and RunGone when the object that
        asked for the run is not there: in both cases nothing more was done.
        """
        ctx = self._ctx
        ctx.ledger.state = state = state or RunState()
        if state.phase.terminal:
            return RunResult(state, Ending.DONE if state.phase is Phase.COMPLETE else Ending.FAILED)
        ctx.began = ctx.clock.monotonic()
        ctx.in_use = {row.member_id: row.db_size_in_use_before or 0 for row in state.rows}
        ticket = self._queue.arrive(ctx.request.name, ctx.request.created, ctx.request.cluster_ref)
        self._ticket = ticket
        try:
            if state.phase is Phase.NEW:
                await ctx.ledger.write(
                    phase=Phase.PENDING, reason="Accepted", message="waits for its first look"
                )
            ending = await self._live()
        except StopRequested:
            await self._let_go()
            ending = Ending.STOPPED
        finally:
            self._queue.leave(ticket)
            await ctx.link.close()
        return RunResult(ctx.ledger.state, ending)

    async def _live(self) -> Ending:
        ctx = self._ctx
        try:
            observation = await ctx.until(self._admit)
        except RunOver as refused:
            return await end(ctx, refused)
        if ctx.request.dry_run:
            assert observation is not None
            return await self._rehearse(observation)
        async with self._slot_kept():
            began, rpc_before = ctx.clock.monotonic(), ctx.rpc_seconds
            try:
                if not ctx.ledger.begun:
                    assert observation is not None
                    await self._begin(observation)
                await self._sweep()
                over = await wait_out(ctx)
                await self._look_back()
            except RunOver as cut_short:
                over = cut_short
            ending = await end(ctx, over)
            took = ctx.clock.monotonic() - began
            ctx.instrumentation.sweep_overhead_seconds(took - (ctx.rpc_seconds - rpc_before))
            return ending

    async def _admit(self) -> Observation | None:
        """The gate, the releases, the time left, the queue, the slot, and the gate again (D61)."""
        ctx = self._ctx
        observation: Observation | None = None
        if not (ctx.ledger.begun or ctx.request.dry_run):
            await self._wait_in_line()
        try:
            if ctx.ledger.begun:
                # A member in flight may block: it is dealt with first, and every turn has its own gate.
                cluster = await ctx.link.follow(await ctx.look())
                await cluster.refresh()
            else:
                observation = await ctx.gate()
                self._check_releases(observation)
                self._check_time_left()
        except BaseException:
            self._queue.stand_back(self._ticket)
            raise
        if ctx.request.dry_run:
            return observation
        self._queue.start(self._ticket, ctx.link.cluster.cluster_id)
        try:
            await self._take_slot()
            if observation is not None:
                # The slot was a write: once it is committed, the sizes are not those of an idle hour ago.
                await ctx.clock.sleep(ctx.timing.commit_interval)
                observation = await ctx.gate()
                ctx.check_foreign(observation)
        except BaseException as error:
            self._queue.yield_turn(self._ticket)
            if not isinstance(error, SlotHeld):
                self._queue.stand_back(self._ticket)
            await self._let_go()
            raise
        return observation

    async def _wait_in_line(self) -> None:
        """Hold no connection, and ask nobody, while it is plain that others go first."""
        try:
            self._queue.check(self._ticket)
        except SlotHeld:
            await self._ctx.link.close()
            raise

    async def _take_slot(self) -> None:
        ctx = self._ctx
        in_use = ctx.in_use.values() or (0,)
        ttl = int(max(map(ctx.timing.member_timeout, in_use)) + ctx.timing.slot_margin)
        slot = Slot(
            holder=ctx.fence.holder,
            epoch=ctx.fence.epoch,
            run=ctx.request.name,
            uid=ctx.request.uid,
            timeout=ctx.timing.rpc_timeout,
        )
        in_flight = next((row.member_id for row in ctx.ledger.state.rows if row.in_flight), None)
        client = ctx.link.client(avoid=in_flight)
        ctx.fence.assert_held()
        try:
            await slot.acquire(
                client,
                ttl,
                ctx.clock.now(),
                is_active=ctx.surroundings.is_active,
                break_lock=self._break_lock,
            )
        except SpaceExceeded:
            # etcd takes no write: a slot that is there is respected, else the run goes without (D64).
            held = await read_slot(client, timeout=ctx.timing.rpc_timeout)
            other = slot.blocked_by(held)
            if other is not None and not self._break_lock:
                raise SlotHeld(
                    f"the cluster is held by {other.holder}", holder=other.holder
                ) from None
            ctx.slot = None
        else:
            ctx.slot = slot

    async def _let_go(self) -> None:
        """Give the slot back, unless a member is in flight that a successor must find marked."""
        ctx = self._ctx
        if ctx.slot is None or any(row.in_flight for row in ctx.ledger.state.rows):
            return
        slot, ctx.slot = ctx.slot, None
        with contextlib.suppress(EtcdError):
            await slot.release(ctx.link.client())

    @contextlib.asynccontextmanager
    async def _slot_kept(self) -> AsyncIterator[None]:
        """Keep the slot's lease alive meanwhile."""
        task = asyncio.create_task(self._keep_slot())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_slot(self) -> None:
        ctx = self._ctx
        while True:
            slot = ctx.slot
            pause = slot.ttl / 4 if slot else ctx.timing.gate_interval
            await ctx.clock.sleep(pause)
            if slot is None:
                continue
            in_flight = next(
                (row.member_id for row in ctx.ledger.state.rows if row.in_flight), None
            )
            # A beat that fails is tried again; a lease that is lost shows at the next check of the slot.
            with contextlib.suppress(EtcdError):
                await slot.beat(ctx.link.client(avoid=in_flight))

    async def _begin(self, observation: Observation) -> None:
        """Running, with a row for every member, is stamped once gate and slot are passed (D1)."""
        ctx = self._ctx
        rows = tuple(
            MemberRow(name=observation.name(member.id), member_id=member.id)
            for member in observation.members
        )
        members = f"{len(rows)} members, one at a time" if len(rows) > 1 else "one member"
        await ctx.ledger.write(
            phase=Phase.RUNNING,
            reason="Running",
            message=members,
            rows=rows,
            started_at=ctx.clock.now(),
        )
        ctx.audience.event(Severity.NORMAL, "Running", members)

    async def _sweep(self) -> None:
        """Every member's turn, in an order made anew before each (D30)."""
        ctx = self._ctx
        for row in ctx.ledger.state.rows:
            if row.in_flight:
                await resolve_in_flight(ctx, row)
        touched = False
        while ctx.ledger.with_outcome(Outcome.PENDING) and not ctx.ledger.with_outcome(
            Outcome.FAILED
        ):
            if touched:
                await ctx.until(lambda: settled(ctx), grace=ctx.timing.settle_limit)
            observation = await ctx.until(ctx.gate)
            ctx.check_foreign(observation)
            touched = await self._next_turn(observation)

    async def _look_back(self) -> None:
        """Without a slot: whether somebody else defragmented a member during the last turn (D64)."""
        ctx = self._ctx
        if ctx.slot is not None:
            return
        with contextlib.suppress(EtcdError):
            observation = await observe(
                ctx.link.cluster,
                timeout=ctx.timing.rpc_timeout,
                metrics_timeout=ctx.timing.metrics_timeout,
            )
            ctx.check_foreign(observation)

    async def _next_turn(self, observation: Observation) -> bool:
        """The next member's turn; whether one was defragmented."""
        ctx = self._ctx
        waiting = {row.member_id for row in ctx.ledger.with_outcome(Outcome.PENDING)}
        for missing in gone(waiting, observation):
            ctx.ledger.amend_row(
                replace(
                    ctx.ledger.row(missing),
                    outcome=Outcome.FAILED,
                    reason="MemberGone",
                    message="the member was removed while the run went on",
                    finished_at=ctx.clock.now(),
                )
            )
            return False
        while waiting:
            member_id = next_member(waiting, observation)
            assert member_id is not None
            waiting.discard(member_id)
            row = judge_member(ctx, observation, ctx.ledger.row(member_id))
            if row.outcome is Outcome.PENDING:
                await take_turn(ctx, observation, row)
                return True
            ctx.ledger.amend_row(row)
        return False

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
        message = f"dry run: {due} of {len(rows)} members would be defragmented"
        now = ctx.clock.now()
        await ctx.ledger.write(
            phase=Phase.COMPLETE,
            reason="Complete",
            message=message,
            rows=tuple(rows),
            started_at=now,
            completed_at=now,
        )
        ctx.audience.event(Severity.NORMAL, "Complete", message)
        ctx.instrumentation.run_finished(Phase.COMPLETE, "Complete")
        return Ending.DONE

    def _check_releases(self, observation: Observation) -> None:
        """Refuse etcd releases whose defragmentation loses data, warn of others (D17)."""
        ctx = self._ctx
        for member in observation.members:
            status = observation.status(member.id)
            if status is None:
                continue
            for action, sentence in find_hazards(status.version):
                allowed = ctx.request.allow_unsafe_version == status.version
                if action is Action.REFUSE and not allowed:
                    raise RunOver(Ending.UNSAFE, UnsafeEtcdVersion.reason, sentence)
                if sentence not in ctx.ledger.state.notes:
                    ctx.ledger.note(sentence)
                    ctx.audience.event(Severity.WARNING, UnsafeEtcdVersion.reason, sentence)

    def _check_time_left(self) -> None:
        """A run that cannot finish within its deadline does not begin (D4)."""
        ctx = self._ctx
        needed = ctx.timing.sweep_seconds(ctx.in_use.values())
        if ctx.remaining < needed:
            raise RunOver(
                Ending.FAILED,
                "DeadlineExceeded",
                f"{ctx.remaining:.0f} s are left until the deadline, the sweep may need {needed:.0f} s",
            )
