"""What `etcdmaint status` knows of a cluster, put together from what its members said.

Pure: it takes answers and errors, and gives figures with their sources. What nobody could tell
stays None, so that no reader takes a guess for a fact. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.lock import SlotValue
from etcdmaint.defrag.rule import DEFAULT_QUOTA_BYTES
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import AlarmKind, Member, MemberStatus, format_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A member's quota in bytes (None: it has none), and whether status, metrics or default say so."""

    size: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """One member. `status` is None where it did not answer, and `error` says why."""

    name: str
    member_id: int
    endpoint: str
    role: str
    status: MemberStatus | None
    quota: Quota | None
    lag: int | None
    alarms: tuple[AlarmKind, ...]
    defragmenting: bool | None
    error: EtcdError | None

    @property
    def reclaimable(self) -> int | None:
        """Bytes that a defragmentation would give back at most."""
        if self.status is None:
            return None
        return max(0, self.status.db_size - self.status.db_size_in_use)

    @property
    def reclaimable_percent(self) -> float | None:
        """The same as a share of the file."""
        free = self.reclaimable
        if free is None or self.status is None:
            return None
        return round(100 * free / self.status.db_size, 1) if self.status.db_size else 0.0

    @property
    def trouble(self) -> str:
        """Why there are no figures, as one sentence; empty when there are."""
        if self.status is not None:
            return ""
        if self.defragmenting:
            return f"{self.name} does not answer because it is being defragmented ({self.endpoint})"
        return f"{self.name} gives no status: {self.error or 'it was never started'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """The cluster. `slot_error` says why it is not known whether somebody holds it, `read_error` why
    no linearizable read is answered; None where one is."""

    cluster_id: int
    members: tuple[MemberReport, ...]
    cluster_alarms: tuple[AlarmKind, ...]
    slot: SlotValue | None
    slot_error: EtcdError | None
    read_error: EtcdError | None = None

    @property
    def complete(self) -> bool:
        """Whether every member told its figures."""
        return all(member.status is not None for member in self.members)

    def name(self, member_id: int) -> str:
        """What people call a member."""
        names = {member.member_id: member.name for member in self.members}
        return names.get(member_id, format_id(member_id))


def build_report(
    *,
    cluster_id: int,
    observation: Observation,
    endpoints: Mapping[int, str],
    slot: SlotValue | None,
    slot_error: EtcdError | None,
    read_error: EtcdError | None = None,
) -> ClusterReport:
    """Put the answers together."""
    lead = observation.status(observation.leader)
    return ClusterReport(
        cluster_id=cluster_id,
        members=tuple(
            _member(member, observation, endpoints.get(member.id, ""), lead)
            for member in sorted(observation.members, key=lambda member: member.name)
        ),
        # etcd does not always say whose alarm it is, but it holds for the whole cluster anyway.
        cluster_alarms=tuple(sorted({a.kind for a in observation.alarms if not a.member_id})),
        slot=slot,
        slot_error=slot_error,
        read_error=read_error,
    )


def _member(
    member: Member, observation: Observation, endpoint: str, lead: MemberStatus | None
) -> MemberReport:
    status = observation.status(member.id)
    metrics = observation.metrics.get(member.id)
    error = observation.statuses.get(member.id)
    inflight = metrics.defrag_inflight if metrics else None
    return MemberReport(
        name=observation.name(member.id),
        member_id=member.id,
        endpoint=endpoint,
        role=_role(member, status),
        status=status,
        quota=quota_of(status, metrics),
        lag=max(0, lead.raft_index - status.raft_applied_index) if lead and status else None,
        alarms=tuple(sorted(a.kind for a in observation.alarms if a.member_id == member.id)),
        defragmenting=None if inflight is None else inflight > 0,
        error=error if isinstance(error, EtcdError) else None,
    )


def _role(member: Member, status: MemberStatus | None) -> str:
    if member.is_learner:
        return "learner"
    if not member.started:
        return "unstarted"
    if status is None:
        return ""
    return "leader" if status.leader == member.id else "follower"


def quota_of(status: MemberStatus | None, metrics: MemberMetrics | None) -> Quota | None:
    """The member's quota by D21, as far as the member itself can tell; None: it told nothing."""
    for source, value in (
        ("status", status.db_size_quota if status else None),
        ("metrics", metrics.quota if metrics else None),
    ):
        if value:
            return Quota(size=int(value) if value > 0 else None, source=source)
    return Quota(size=DEFAULT_QUOTA_BYTES, source="default") if status else None


def as_document(report: ClusterReport) -> dict[str, Any]:
    """For -o json and -o yaml: sizes in bytes, IDs as etcd prints them, null for the unknown."""
    slot = report.slot
    return {
        "clusterID": format_id(report.cluster_id),
        "members": [_member_document(member) for member in report.members],
        "alarms": [
            {"memberID": format_id(member.member_id), "alarm": str(kind)}
            for member in report.members
            for kind in member.alarms
        ]
        + [{"memberID": None, "alarm": str(kind)} for kind in report.cluster_alarms],
        "slot": {
            "known": report.slot_error is None,
            "holder": slot.holder if slot else None,
            "run": slot.run if slot else None,
            "since": slot.since if slot else None,
            "memberID": format_id(slot.member) if slot and slot.member is not None else None,
            "error": str(report.slot_error) if report.slot_error else None,
        },
        "reads": {
            "answered": report.read_error is None,
            "error": str(report.read_error) if report.read_error else None,
        },
    }


# By the names that a status has for them; None where there is no status.
_FIGURES = {
    "version": "version",
    "dbSize": "db_size",
    "dbSizeInUse": "db_size_in_use",
    "raftTerm": "raft_term",
    "raftIndex": "raft_index",
    "raftAppliedIndex": "raft_applied_index",
}


def _member_document(member: MemberReport) -> dict[str, Any]:
    status, quota = member.status, member.quota
    return {
        "name": member.name,
        "memberID": format_id(member.member_id),
        "endpoint": member.endpoint or None,
        "role": member.role or None,
        **{name: getattr(status, figure, None) for name, figure in _FIGURES.items()},
        "reclaimable": member.reclaimable,
        "reclaimablePercent": member.reclaimable_percent,
        "quota": quota.size if quota else None,
        "quotaSource": quota.source if quota else None,
        "lag": member.lag,
        "alarms": [str(kind) for kind in member.alarms],
        "defragmenting": member.defragmenting,
        "error": (
            {"reason": member.error.reason, "message": member.trouble}
            if member.trouble and member.error
            else None
        ),
    }
