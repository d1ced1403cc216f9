"""May the cluster be touched now? Judged from what etcd itself says, never from anybody's conditions.

Under NOSPACE every Pod of an etcd is NotReady, so a gate on readiness would refuse exactly the clusters
that need help (D10). `observe` looks, `judge` decides; the decision is pure.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etcdmaint.defrag.lock import SLOT_KEY
from etcdmaint.errors import ClusterNotHealthy, EtcdError, LearnerRefused, PermissionDenied
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import Alarm, AlarmKind, Member, MemberStatus, format_id

if TYPE_CHECKING:
    from etcdmaint.defrag.run import DesiredMember

START_LAG = 1000
"""Raft entries that a voter may be behind when a member's turn begins (D14)."""

SETTLED_LAG = 100
"""… and between two turns."""

_ALARM = re.compile(r"(?:memberID:(\d+))?\s*alarm:(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the members said at about one instant.

    `leader_committed` was sampled before the statuses, so that comparing with it errs on the safe side: it
    is the highest that any member knew to be committed, which is the leader's where there is one.
    `busy` has, for each member whose /metrics cannot be read, the error of a backend read, if it failed.
    """

    members: tuple[Member, ...]
    statuses: Mapping[int, MemberStatus | EtcdError]
    metrics: Mapping[int, MemberMetrics | None] = field(default_factory=dict)
    busy: Mapping[int, EtcdError] = field(default_factory=dict)
    leader_committed: int = 0
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def voters(self) -> tuple[Member, ...]:
        """All but the learners."""
        return tuple(member for member in self.members if not member.is_learner)

    def status(self, member_id: int) -> MemberStatus | None:
        """What the member said, None when it did not answer."""
        status = self.statuses.get(member_id)
        return status if isinstance(status, MemberStatus) else None

    @property
    def leader(self) -> int:
        """The member that the voters call leader; 0 when they do not agree."""
        views = {status.leader for m in self.voters if (status := self.status(m.id)) is not None}
        return views.pop() if len(views) == 1 else 0

    @property
    def alarms(self) -> frozenset[Alarm]:
        """Every armed alarm that any member names (D15). Member ID 0: etcd does not say whose."""
        found = set()
        for member in self.members:
            status = self.status(member.id)
            for text in status.errors if status else ():
                for match in _ALARM.finditer(text):
                    if match[2] in AlarmKind.__members__:
                        found.add(Alarm(int(match[1] or 0), AlarmKind[match[2]]))
        return frozenset(found)

    def name(self, member_id: int) -> str:
        """What people call the member."""
        if member_id in self.names:
            return self.names[member_id]
        named = {member.id: member.name for member in self.members}
        name = named.get(member_id)
        if not name:
            return format_id(member_id)
        # A record has one row for each name, and etcd lets two members have the same.
        twice = list(named.values()).count(name) > 1
        return f"{name}-{format_id(member_id)}" if twice else name


async def observe(
    cluster: ClusterClient,
    *,
    timeout: float,
    metrics_timeout: float | None = None,
    names: Mapping[int, str] | None = None,
) -> Observation:
    """Read the member list, every member's Status and, with `metrics_timeout`, its activity.

    Costs two Status RPCs a member, and one scrape of /metrics. Raises EtcdError when no member gives a
    member list; a member that does not answer is part of the observation.
    """
    await cluster.refresh()
    names = dict(names or {})
    first = await cluster.statuses(timeout)
    if any(isinstance(status, EtcdError) for status in first.values()):
        return Observation(members=cluster.members, statuses=first, names=names)
    # Sampled in the first round: what a member has applied by the second one can only be compared in its
    # favour if it really has it. Not "the leader's": in an election nobody might be it.
    told = [s.raft_index for s in first.values() if isinstance(s, MemberStatus)]
    statuses = await cluster.statuses(timeout)
    metrics: dict[int, MemberMetrics | None] = {}
    busy: dict[int, EtcdError] = {}
    if metrics_timeout is not None:
        metrics, busy = await _activity(cluster, timeout, metrics_timeout)
    return Observation(
        members=cluster.members,
        statuses=statuses,
        metrics=metrics,
        busy=busy,
        leader_committed=max(told, default=0),
        names=names,
    )


async def _activity(
    cluster: ClusterClient, timeout: float, metrics_timeout: float
) -> tuple[dict[int, MemberMetrics | None], dict[int, EtcdError]]:
    async with asyncio.TaskGroup() as group:
        tasks = {
            member.id: group.create_task(activity(cluster, member.id, timeout, metrics_timeout))
            for member in cluster.members
        }
    found = {member_id: task.result() for member_id, task in tasks.items()}
    return (
        {member_id: metrics for member_id, (metrics, _) in found.items()},
        {member_id: error for member_id, (_, error) in found.items() if error is not None},
    )


async def activity(
    cluster: ClusterClient, member_id: int, timeout: float, metrics_timeout: float
) -> tuple[MemberMetrics | None, EtcdError | None]:
    """The member's metrics; where they do not tell, the error of a read of its backend (D16)."""
    metrics = await cluster.metrics(member_id, timeout=metrics_timeout)
    if metrics is not None and metrics.defrag_inflight is not None:
        return metrics, None
    return metrics, await _read_backend(cluster, member_id, timeout)


async def _read_backend(cluster: ClusterClient, member_id: int, timeout: float) -> EtcdError | None:
    """Read one key from the member's own backend, which blocks while it defragments.

    None when it answered; a refusal for lack of rights is an answer.
    """
    try:
        await cluster.client(member_id).range(SLOT_KEY, serializable=True, timeout=timeout)
    except (PermissionDenied, LearnerRefused):
        return None
    except EtcdError as error:
        return error
    return None


def judge(
    observation: Observation,
    *,
    desired: Collection[DesiredMember] | None = None,
    lag: int = START_LAG,
) -> None:
    """Raise ClusterNotHealthy with the first thing that stands against touching a member (D10 to D16)."""
    statuses = _judge_presence(observation, desired)
    _judge_leader(observation, statuses)
    for alarm in observation.alarms:
        if alarm.kind is AlarmKind.CORRUPT:
            whose = observation.name(alarm.member_id) if alarm.member_id else "the cluster"
            raise ClusterNotHealthy("CorruptAlarm", f"the CORRUPT alarm is armed for {whose}")
    _judge_activity(observation, statuses)
    for member in observation.voters:
        behind = observation.leader_committed - statuses[member.id].raft_applied_index
        if behind > lag:
            name = observation.name(member.id)
            raise ClusterNotHealthy(
                "RaftLag",
                f"member {name} is {behind} raft entries behind, {lag} are allowed",
                member=name,
            )


def _judge_presence(
    observation: Observation, desired: Collection[DesiredMember] | None
) -> dict[int, MemberStatus]:
    """Every member's status, since each has answered."""
    statuses: dict[int, MemberStatus] = {}
    for member in observation.members:
        name = observation.name(member.id)
        if not member.started:
            raise ClusterNotHealthy(
                "MemberNotStarted", f"member {name} was added but has never started", member=name
            )
        status = observation.statuses.get(member.id)
        if isinstance(status, EtcdError):
            told = str(status)
            if name not in told:
                told = f"member {name}: {told}"
            raise ClusterNotHealthy(status.reason, told, member=name)
        if status is None:
            raise ClusterNotHealthy(
                "MemberUnreachable", f"member {name} was not asked", member=name
            )
        statuses[member.id] = status
    if desired is None:
        return statuses
    if len(desired) != len(observation.members):
        raise ClusterNotHealthy(
            "MembersDisagree",
            f"{len(desired)} members are desired, etcd lists {len(observation.members)}",
        )
    for wanted in desired:
        if not any(wanted.means(member.id, member.name) for member in observation.members):
            raise ClusterNotHealthy(
                "MembersDisagree",
                f"member {wanted.name} is desired, but etcd does not list it",
                member=wanted.name,
            )
    return statuses


def _judge_leader(observation: Observation, statuses: Mapping[int, MemberStatus]) -> None:
    views: dict[int, str] = {}
    terms: dict[int, str] = {}
    for member in observation.voters:
        status, name = statuses[member.id], observation.name(member.id)
        if status.leader == 0:
            raise ClusterNotHealthy("NoLeader", f"member {name} sees no leader", member=name)
        views.setdefault(status.leader, name)
        terms.setdefault(status.raft_term, name)
    if len(views) != 1:
        told = ", ".join(f"{name} says {observation.name(view)}" for view, name in views.items())
        raise ClusterNotHealthy("LeaderDisagreement", f"the members name different leaders: {told}")
    if len(terms) != 1:
        told = ", ".join(f"{name} is in {term}" for term, name in terms.items())
        raise ClusterNotHealthy(
            "TermDisagreement", f"the members are in different raft terms: {told}"
        )
    leader = next(iter(views))
    if leader not in {member.id for member in observation.voters}:
        raise ClusterNotHealthy(
            "LeaderUnknown", f"the leader {format_id(leader)} is no voter in the member list"
        )


def _judge_activity(observation: Observation, statuses: Mapping[int, MemberStatus]) -> None:
    for member in observation.members:
        name = observation.name(member.id)
        if statuses[member.id].downgrade_enabled:
            raise ClusterNotHealthy("DowngradeEnabled", "a downgrade of the cluster is under way")
        if member.id in observation.busy:
            raise ClusterNotHealthy(
                "MemberBusy",
                f"member {name} does not answer a read of its backend: {observation.busy[member.id]}",
                member=name,
            )
        metrics = observation.metrics.get(member.id)
        if metrics is None:
            continue
        if metrics.defrag_inflight:
            raise ClusterNotHealthy(
                "DefragmentationInFlight", f"member {name} is being defragmented", member=name
            )
        if metrics.snapshot_streams:
            raise ClusterNotHealthy(
                "SnapshotInProgress", f"member {name} is streaming a snapshot", member=name
            )
        if metrics.raft_snapshots_in_flight:
            raise ClusterNotHealthy(
                "RaftSnapshotInProgress",
                f"member {name} is sending or receiving a raft snapshot",
                member=name,
            )
