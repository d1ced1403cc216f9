"""What is told about an etcd cluster between runs: its members, whether they answer, whether it is well.

Pure: from the members' answers to a status, and whether that status is worth a write. The status lives
in an etcd that is to stay small, so sizes are rounded by patience: exact values are on /metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from etcdmaint.api.connection import ConnectionMember, EtcdConnectionStatus, connection_status
from etcdmaint.api.vocabulary import ConnectionCondition, Role
from etcdmaint.defrag.health import Observation, judge
from etcdmaint.errors import ClusterNotHealthy, EtcdError, EtcdmaintError
from etcdmaint.etcd.types import AlarmKind, Member, MemberStatus
from etcdmaint.kube.client import Json
from etcdmaint.kube.verdict import Verdict, with_verdicts

_STALE = timedelta(minutes=10)
_MOVED_SHARE = 20
_MOVED_BYTES = 16 << 20
_MEASURED = ("clusterID", "measuredAt", "members", "conditions")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One look at a cluster; `members` empty when nobody could be asked."""

    reachable: Verdict
    healthy: Verdict
    members: tuple[ConnectionMember, ...] = ()
    answered: frozenset[int] = frozenset()
    cluster_id: int | None = None


def failed(error: EtcdmaintError) -> Measurement:
    """Nobody could be asked, and why."""
    return Measurement(
        Verdict(False, error.reason, str(error)),
        Verdict(None, "NotMeasured", "nothing is known while the cluster is not reachable"),
    )


def measured(
    cluster_id: int,
    members: Sequence[Member],
    statuses: Mapping[int, MemberStatus | EtcdError],
    *,
    endpoints: Mapping[int, str],
    quota_bytes: int | None,
    defragmenting: Collection[int] = (),
    trouble: EtcdmaintError | None = None,
) -> Measurement:
    """Make sense of one Status a member; `quota_bytes` is used where a member does not say.

    `defragmenting`: members that are silent because it is their turn. `trouble`: what the health probe
    met (H2).
    """
    observation = Observation(members=tuple(members), statuses=statuses)
    rows = tuple(
        _row(member, observation, endpoints.get(member.id), quota_bytes) for member in members
    )
    return Measurement(
        reachable=_reachable(observation, defragmenting, trouble),
        healthy=_healthy(observation),
        members=rows,
        answered=frozenset(m.id for m in members if observation.status(m.id) is not None),
        cluster_id=cluster_id,
    )


def write_measurement(
    obj: Mapping[str, Any], measurement: Measurement, now: datetime
) -> Json | None:
    """The part of the status to merge in, or None when what stands there is good enough."""
    old = connection_status(obj)
    verdicts = {
        ConnectionCondition.REACHABLE: measurement.reachable,
        ConnectionCondition.HEALTHY: measurement.healthy,
    }
    new = EtcdConnectionStatus(
        # A cluster that cannot be asked is still the one that it was.
        cluster_id=measurement.cluster_id or old.cluster_id,
        measured_at=now,
        members=measurement.members if measurement.cluster_id else old.members,
        conditions=tuple(with_verdicts(old.conditions, verdicts, obj, now)),
    )
    if not _worth_writing(old, new, now):
        return None
    wire = new.to_wire()
    return {key: wire.get(key) for key in _MEASURED}


def _worth_writing(old: EtcdConnectionStatus, new: EtcdConnectionStatus, now: datetime) -> bool:
    if old.measured_at is None or now - old.measured_at >= _STALE:
        return True
    if (old.conditions, old.cluster_id) != (new.conditions, new.cluster_id):
        return True
    if len(old.members) != len(new.members):
        return True
    before = {member.member_id: member for member in old.members}
    return any(_changed(before.get(member.member_id), member) for member in new.members)


def _changed(old: ConnectionMember | None, new: ConnectionMember) -> bool:
    if old is None:
        return True
    sizes = {"db_size": None, "db_size_in_use": None}
    if old.model_copy(update=sizes) != new.model_copy(update=sizes):
        return True
    return _moved(old.db_size, new.db_size) or _moved(old.db_size_in_use, new.db_size_in_use)


def _moved(old: int | None, new: int | None) -> bool:
    if old is None or new is None:
        return old != new
    by = abs(new - old)
    return by >= _MOVED_BYTES or (by > 0 and by * _MOVED_SHARE >= old)


def _reachable(
    observation: Observation, defragmenting: Collection[int], trouble: EtcdmaintError | None
) -> Verdict:
    silent = {
        member.id: fault
        for member in observation.members
        if isinstance(fault := observation.statuses.get(member.id), EtcdError)
        and member.id not in defragmenting
    }
    if not silent and trouble is not None:
        return Verdict(False, trouble.reason, f"no linearizable read is answered: {trouble}")
    if not silent:
        return Verdict(True, "AllMembersAnswer", f"{len(observation.members)} members answer")
    first = next(iter(silent.values()))
    told = []
    for member_id, fault in silent.items():
        name = observation.name(member_id)
        told.append(str(fault) if name in str(fault) else f"member {name}: {fault}")
    return Verdict(False, first.reason, "; ".join(told))


def _healthy(observation: Observation) -> Verdict:
    try:
        judge(observation)
    except ClusterNotHealthy as error:
        return Verdict(False, error.reason, str(error))
    full = [alarm for alarm in observation.alarms if alarm.kind is AlarmKind.NOSPACE]
    if full:
        whose = ", ".join(
            sorted(observation.name(a.member_id) if a.member_id else "the cluster" for a in full)
        )
        return Verdict(False, "NoSpaceAlarm", f"the NOSPACE alarm is armed for {whose}")
    leader = observation.name(observation.leader)
    return Verdict(True, "Healthy", f"{leader} leads, no alarm is armed")


def _row(
    member: Member, observation: Observation, endpoint: str | None, quota_bytes: int | None
) -> ConnectionMember:
    status = observation.status(member.id)
    if status is None:
        return ConnectionMember(member_id=member.id, name=member.name or None, endpoint=endpoint)
    role = Role.LEADER if status.leader == member.id else Role.FOLLOWER
    quota = status.db_size_quota or quota_bytes or None
    return ConnectionMember(
        member_id=member.id,
        name=member.name or None,
        endpoint=endpoint,
        role=Role.LEARNER if member.is_learner else role,
        version=status.version,
        db_size=status.db_size,
        db_size_in_use=status.db_size_in_use,
        quota=quota if quota is not None and quota > 0 else None,
    )
