"""When the NOSPACE alarm may be disarmed, and doing it (D40, D41).

Disarming too early makes the next write raise it again; so every member that counts must be well under
its quota by its own fresh word. CORRUPT is never disarmed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.run import Severity
from etcdmaint.errors import ClusterNotHealthy, EtcdError, SlotLost
from etcdmaint.etcd.types import Alarm, AlarmKind
from etcdmaint.quantities import format_bytes


@dataclass(frozen=True, slots=True)
class AlarmVerdict:
    """`disarm`: the alarms to disarm, by member. `kept`: why one stays armed, or ""."""

    disarm: tuple[Alarm, ...] = ()
    kept: str = ""


def judge_alarms(
    alarms: Collection[Alarm], observation: Observation, quotas: Mapping[int, int | None]
) -> AlarmVerdict:
    """Decide about NOSPACE from a fresh observation; an unreadable voter counts as over."""
    armed = tuple(
        sorted((a for a in alarms if a.kind is AlarmKind.NOSPACE), key=lambda a: a.member_id)
    )
    if not armed:
        return AlarmVerdict()
    if any(alarm.kind is AlarmKind.CORRUPT for alarm in {*alarms, *observation.alarms}):
        return AlarmVerdict(kept="NOSPACE stays armed, since CORRUPT is armed too")
    for member in observation.members:
        name = observation.name(member.id)
        status = observation.status(member.id)
        if status is None:
            if member.is_learner:
                continue
            return AlarmVerdict(
                kept=f"NOSPACE stays armed: the size of member {name} cannot be read"
            )
        quota = quotas.get(member.id)
        if quota and status.db_size > (limit := quota * 9 // 10):
            return AlarmVerdict(
                kept=f"NOSPACE stays armed: member {name} has {format_bytes(status.db_size)}, "
                f"{format_bytes(status.db_size - limit)} over 90 % of its quota of "
                f"{format_bytes(quota)}"
            )
    return AlarmVerdict(disarm=armed)


async def settle_alarms(ctx: RunContext) -> bool:
    """Disarm NOSPACE when that is safe (D40); whether one is still armed (D41)."""
    try:
        return await _settle(ctx)
    except (EtcdError, ClusterNotHealthy) as error:
        ctx.ledger.note(f"whether an alarm is armed could not be read at the end: {error}")
        return False
    except SlotLost as lost:
        ctx.ledger.note(f"NOSPACE stays armed: {lost}")
        return True


async def _settle(ctx: RunContext) -> bool:
    await ctx.reach_somehow()
    observation = await ctx.observe()
    client = ctx.link.client(prefer=observation.leader)
    alarms: Collection[Alarm]
    try:
        alarms = await client.alarms(timeout=ctx.timing.rpc_timeout)
    except EtcdError:
        # The alarm RPC is a raft proposal and needs a quorum; Status knows the alarms without one.
        alarms = observation.alarms
    quotas = {
        member.id: ctx.sizes(observation, member.id).quota
        for member in observation.members
        if observation.status(member.id) is not None
    }
    verdict = judge_alarms(alarms, observation, quotas)
    if not verdict.disarm:
        ctx.ledger.note(verdict.kept)
        return bool(verdict.kept)
    disarmed: list[str] = []
    failed = False
    for alarm in verdict.disarm:
        name = observation.name(alarm.member_id)
        try:
            await ctx.assert_ours(client)
            await client.disarm(alarm.member_id, alarm.kind, timeout=ctx.timing.rpc_timeout)
            disarmed.append(name)
        except EtcdError as error:
            # One that fails does not stop the others.
            failed = True
            ctx.audience.event(Severity.WARNING, "AlarmDisarmFailed", f"member {name}: {error}")
            ctx.ledger.note(f"NOSPACE could not be disarmed: member {name}: {error}")
    if disarmed:
        names = ", ".join(disarmed)
        ctx.audience.event(Severity.NORMAL, "AlarmDisarmed", f"NOSPACE disarmed for {names}")
        ctx.ledger.note(f"NOSPACE was disarmed for {names}")
    try:
        again = await client.alarms(timeout=ctx.timing.rpc_timeout)
    except EtcdError as error:
        ctx.ledger.note(f"whether NOSPACE is gone is not known: {error}")
        return True
    left = [observation.name(a.member_id) for a in again if a.kind is AlarmKind.NOSPACE]
    if left:
        ctx.ledger.note(f"NOSPACE is still armed for {', '.join(left)}")
    return failed or bool(left)
