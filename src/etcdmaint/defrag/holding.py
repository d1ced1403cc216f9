"""A run's hold on its cluster: it is let in, takes the slot, keeps it alive meanwhile, and gives it back.

It is given back only when no member can be defragmenting any more: whoever takes it next starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from etcdmaint.defrag.context import RunContext, RunOver
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.lock import Slot
from etcdmaint.defrag.queue import RunQueue, Ticket
from etcdmaint.defrag.run import Ending, Severity
from etcdmaint.defrag.versions import Action, find_hazards
from etcdmaint.errors import (
    EtcdError,
    SlotHeld,
    SlotLost,
    SpaceExceeded,
    StopRequested,
    UnsafeEtcdVersion,
)


async def admit(ctx: RunContext, queue: RunQueue, ticket: Ticket) -> Observation | None:
    """The gate, the releases, the time left, the queue, the slot, and the gate again (D61).

    None for a run that has begun: a member in flight may block. It is dealt with first, whether the
    run is paused or not, and every turn has a gate of its own.
    """
    observation: Observation | None = None
    if not (ctx.ledger.begun or ctx.dry_run):
        await _wait_in_line(ctx, queue, ticket)
    try:
        if ctx.ledger.begun:
            cluster = await ctx.reach(heed_pause=False)
            await cluster.refresh()
        else:
            observation = await ctx.gate()
            check_releases(ctx, observation)
            ctx.check_time(ctx.timing.sweep_seconds(ctx.in_use.values()), "the sweep")
    except BaseException:
        queue.stand_back(ticket)
        raise
    if ctx.dry_run:
        return observation
    queue.start(ticket, ctx.link.cluster.cluster_id)
    try:
        before = ctx.clock.monotonic()
        await take_slot(ctx)
        if observation is not None:
            await _have_sizes_told(ctx, ctx.clock.monotonic() - before)
            observation = await ctx.gate()
            if ctx.surroundings.stopping:
                # What is begun now would be left behind at once, Running beside another run (D3).
                raise StopRequested("asked to stop")
    except BaseException as error:
        queue.yield_turn(ticket)
        if not isinstance(error, SlotHeld):
            queue.stand_back(ticket)
        if not ctx.ledger.begun:
            await give_back(ctx)
        if isinstance(error, SlotLost):
            # Nothing has been touched under it: whoever has it now is waited for.
            raise SlotHeld(str(error), holder="") from error
        raise
    return observation


async def _wait_in_line(ctx: RunContext, queue: RunQueue, ticket: Ticket) -> None:
    """Hold no connection, and ask nobody, while it is plain that others go first."""
    try:
        queue.check(ticket)
    except SlotHeld:
        await ctx.link.close()
        raise


async def _have_sizes_told(ctx: RunContext, took: float) -> None:
    """Three commits, so that the sizes are not those of an idle hour ago (D23).

    A commit lets go of the pages that were freed before, unless the read transaction that it replaces
    is still open just then: so it may take a second one. And it tells what was free before it, so one
    more says so. The slot was the first write; `took`: seconds of that.
    """
    pause = max(ctx.timing.commit_interval / 3, 2 * took)
    await ctx.clock.sleep(pause)
    for _ in range(2):
        if ctx.slot is not None:
            await ctx.slot.mark(ctx.link.client(), None, ctx.clock.now())
            await ctx.clock.sleep(pause)


def check_releases(ctx: RunContext, observation: Observation) -> None:
    """Refuse etcd releases whose defragmentation loses data, warn of others (D17)."""
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


async def take_slot(ctx: RunContext) -> None:
    """Take the cluster's slot, or, where etcd takes no write and nobody has it, go without (D61, D64).

    Raises SlotHeld when somebody else has it.
    """
    slot = Slot(
        holder=ctx.fence.holder,
        epoch=ctx.fence.epoch,
        run=ctx.request.name,
        uid=ctx.request.uid,
        timeout=ctx.timing.rpc_timeout,
    )
    longest = max(map(ctx.timing.member_timeout, ctx.in_use.values() or (0,)))
    ctx.fence.assert_held()
    taken = True
    try:
        await slot.acquire(
            ctx.link.client(avoid=ctx.at_stake),
            math.ceil(longest + ctx.timing.slot_margin),
            ctx.clock.now(),
            is_active=ctx.surroundings.is_active,
            member=next((row.member_id for row in ctx.ledger.state.rows if row.in_flight), None),
            break_lock=ctx.break_lock,
        )
    except SpaceExceeded:
        taken = False
    finally:
        ctx.evidence = slot.previous or ctx.evidence
        # What is broken is the lock that its owner has looked at, not that of whoever comes later.
        ctx.break_lock = ctx.break_lock and not slot.looked
    ctx.slot = slot if taken else None


async def give_back(ctx: RunContext) -> str:
    """Give the slot back; the sentence that says why it stays until it expires, or ""."""
    slot = ctx.slot
    if slot is None:
        return ""
    if ctx.at_stake:
        names = ", ".join(ctx.ledger.row(member_id).name for member_id in sorted(ctx.at_stake))
        return f"the cluster's slot stays until it expires, since {names} may still be at it"
    ctx.slot = None
    try:
        await slot.release(ctx.link.client())
    except EtcdError:
        return "the cluster's slot could not be given back; it expires by itself"
    return ""


@contextlib.asynccontextmanager
async def slot_kept(ctx: RunContext) -> AsyncIterator[None]:
    """Keep the slot's lease alive meanwhile."""
    task = asyncio.create_task(_keep(ctx))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _keep(ctx: RunContext) -> None:
    pause = ctx.timing.gate_interval
    while True:
        await ctx.clock.sleep(pause)
        pause = ctx.timing.gate_interval
        slot = ctx.slot
        if slot is None:
            continue
        # A beat that fails is soon tried again, with another member; a lease that is lost shows at the
        # next check of the slot.
        with contextlib.suppress(EtcdError):
            await slot.beat(ctx.link.client(avoid=ctx.at_stake))
            pause = slot.ttl / 4
