"""When the NOSPACE alarm may be disarmed, and doing it (D40, D41).

Disarming too early makes the next write raise it again; so every member that counts must be well under
its quota by its own fresh word. CORRUPT is never disarmed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from etcdmaint.defrag.health import Observation, usage
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.types import Alarm, AlarmKind
from etcdmaint.quantities import format_bytes

DISARM_BELOW = Fraction(9, 10)


@dataclass(frozen=True, slots=True)
class AlarmVerdict:
    """`disarm`: the alarms to disarm, by member. `kept`: why one stays armed, or ""."""

    disarm: tuple[Alarm, ...] = ()
    kept: str = ""


@dataclass(frozen=True, slots=True)
class AlarmReport:
    """What was done: `disarmed` by member ID, `failed` with a sentence each, `left` what is still armed."""

    disarmed: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()
    left: str = ""


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
        if usage(status.db_size, quota) > DISARM_BELOW:
            limit = int(DISARM_BELOW * (quota or 0))
            return AlarmVerdict(
                kept=f"NOSPACE stays armed: member {name} has {format_bytes(status.db_size)}, "
                f"{format_bytes(status.db_size - limit)} over 90 % of its quota of "
                f"{format_bytes(quota or 0)}"
            )
    return AlarmVerdict(disarm=armed)


async def disarm(
    client: MemberClient,
    alarms: Collection[Alarm],
    name: Callable[[int], str],
    *,
    assert_ours: Callable[[MemberClient], Awaitable[None]],
    timeout: float,
) -> AlarmReport:
    """Disarm each alarm by its member's ID and list them again; one failure does not stop the others."""
    disarmed: list[int] = []
    failed: list[str] = []
    for alarm in alarms:
        try:
            await assert_ours(client)
            await client.disarm(alarm.member_id, alarm.kind, timeout=timeout)
        except EtcdError as error:
            failed.append(f"member {name(alarm.member_id)}: {error}")
        else:
            disarmed.append(alarm.member_id)
    try:
        again = [a for a in await client.alarms(timeout=timeout) if a.kind is AlarmKind.NOSPACE]
    except EtcdError as error:
        return AlarmReport(
            tuple(disarmed), tuple(failed), f"whether NOSPACE is gone is not known: {error}"
        )
    left = ", ".join(name(alarm.member_id) for alarm in again)
    return AlarmReport(
        tuple(disarmed), tuple(failed), f"NOSPACE is still armed for {left}" if left else ""
    )
