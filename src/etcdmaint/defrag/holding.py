"""A run's hold on its cluster: the slot is taken, kept alive meanwhile, and given back.

It is given back only when no member can be defragmenting any more: whoever takes it next starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.lock import Slot
from etcdmaint.errors import EtcdError, SpaceExceeded


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
            break_lock=ctx.break_lock,
        )
    except SpaceExceeded:
        taken = False
    finally:
        ctx.evidence = slot.previous or ctx.evidence
        # What is broken is the lock that its owner has looked at, not that of whoever comes later.
        ctx.break_lock = False
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
