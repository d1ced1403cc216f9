"""Which EtcdDefrags exist, as far as this process has seen: fed by watching, corrected by listing.

From it follow what /metrics shows of runs, which finished objects are due to go (D5), and whether an
unfinished one is worked on by nobody. Pure bookkeeping: it asks nobody and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from etcdmaint.api.metadata import is_dry_run, object_key, part_of
from etcdmaint.api.vocabulary import ClusterKind
from etcdmaint.defrag.run import Phase
from etcdmaint.kube.client import read_time
from etcdmaint.kube.resources import ETCD_DEFRAGS, ObjectRef


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The little that is kept of an EtcdDefrag."""

    ref: ObjectRef
    phase: Phase
    cluster: str
    cluster_kind: str
    started_at: datetime | None
    completed_at: datetime | None
    ttl: int | None
    deleting: bool
    dry_run: bool

    @property
    def due(self) -> datetime | None:
        """When it is to be deleted; None while it is not finished, or is kept."""
        if self.ttl is None or self.completed_at is None or not self.phase.terminal:
            return None
        return self.completed_at + timedelta(seconds=self.ttl)


class RunInventory:
    """Every EtcdDefrag by UID."""

    def __init__(self) -> None:
        self._known: dict[str, KnownRun] = {}
        self._unattended: dict[str, float] = {}

    def seen(self, obj: Mapping[str, Any]) -> None:
        """The object exists, as it is."""
        known = read_run(obj)
        if known.ref.uid:
            self._known[known.ref.uid] = known

    def gone(self, uid: str) -> None:
        """The object is deleted."""
        self._known.pop(uid, None)

    def replace(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """These are all that exist."""
        self._known.clear()
        for obj in objects:
            self.seen(obj)

    def runs(self) -> Collection[KnownRun]:
        """All of them."""
        return self._known.values()

    def due(self, now: datetime) -> tuple[KnownRun, ...]:
        """Those whose time to live is over."""
        return tuple(run for run in self._known.values() if run.due is not None and run.due <= now)

    def next_due(self) -> datetime | None:
        """When the next one is due."""
        return min((run.due for run in self._known.values() if run.due is not None), default=None)

    def unattended(self, active: Collection[str], now: float) -> dict[str, float]:
        """Unfinished ones that nobody works on, by UID, and for how many seconds that has been so.

        `active` are the UIDs under way, `now` is the monotonic clock's.
        """
        idle = {
            uid
            for uid, run in self._known.items()
            if not run.phase.terminal and not run.deleting and uid not in active
        }
        self._unattended = {uid: self._unattended.get(uid, now) for uid in idle}
        return {uid: now - since for uid, since in self._unattended.items()}


def read_run(obj: Mapping[str, Any]) -> KnownRun:
    """What is worth keeping of an EtcdDefrag, whatever state it is in; never raises."""
    namespace, name = object_key(obj)
    metadata, spec, status = (part_of(obj, key) for key in ("metadata", "spec", "status"))
    reference = part_of(spec, "clusterRef")
    ttl = spec.get("ttlSecondsAfterFinished")
    phase = status.get("phase")
    return KnownRun(
        ref=ObjectRef(ETCD_DEFRAGS, namespace, name, str(metadata.get("uid") or "")),
        phase=Phase(phase) if phase in tuple(Phase) else Phase.NEW,
        cluster=str(reference.get("name") or ""),
        cluster_kind=str(reference.get("kind") or ClusterKind.ETCD_CLUSTER.value),
        started_at=read_time(status.get("startedAt")),
        completed_at=read_time(status.get("completedAt")),
        ttl=ttl if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0 else None,
        deleting=bool(metadata.get("deletionTimestamp")),
        dry_run=spec.get("dryRun") is True or is_dry_run(metadata.get("annotations")),
    )
