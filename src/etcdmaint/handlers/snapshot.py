"""What this replica knows, in the words of the metrics: read at each scrape, at no cost to anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from etcdmaint.api.compression import StorageCompressionStatus
from etcdmaint.kube.connections import ConnectionMonitor
from etcdmaint.kube.inventory import KnownRun, RunInventory
from etcdmaint.kube.measurement import Measurement
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.storage_compression import CompressionMonitor
from etcdmaint.observability.state import (
    ClusterGauges,
    ConfigurationGauges,
    FormGauges,
    MemberGauges,
    ObjectKey,
    RunGauges,
)


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """Implements `observability.state.Snapshot`."""

    connections: ConnectionMonitor
    inventory: RunInventory
    active: Callable[[], int]
    orphans: Callable[[], Mapping[str, float]]
    compressions: CompressionMonitor

    def clusters(self) -> Iterable[ClusterGauges]:
        """Every EtcdConnection that was measured."""
        for ref, measurement in self.connections.measurements():
            if measurement is not None:
                yield _cluster(ref, measurement)

    def runs(self) -> Iterable[RunGauges]:
        """Every EtcdDefrag."""
        return [_run(known) for known in self.inventory.runs()]

    def configurations(self) -> Iterable[ConfigurationGauges]:
        """Every StorageCompressionConfiguration."""
        return [_configuration(ref, status) for ref, status in self.compressions.statuses()]

    def active_runs(self) -> int:
        """How many are being carried out."""
        return self.active()

    def orphaned_runs(self) -> int:
        """How many nobody works on."""
        return len(self.orphans())


def _cluster(ref: ObjectRef, measurement: Measurement) -> ClusterGauges:
    return ClusterGauges(
        key=ObjectKey(ref.namespace, ref.name, ref.resource.kind),
        reachable=measurement.reachable.status,
        healthy=measurement.healthy.status,
        members=tuple(
            MemberGauges(
                member_id=member.member_id,
                reachable=member.member_id in measurement.answered,
                db_size=member.db_size,
                db_size_in_use=member.db_size_in_use,
                quota=member.quota,
            )
            for member in measurement.members
        ),
    )


def _run(known: KnownRun) -> RunGauges:
    return RunGauges(
        namespace=known.ref.namespace,
        name=known.ref.name,
        phase=known.phase.value,
        cluster=ObjectKey(known.ref.namespace, known.cluster, known.cluster_kind),
        dry_run=known.dry_run,
        started=_seconds(known.started_at),
        completed=_seconds(known.completed_at),
    )


def _configuration(ref: ObjectRef, status: StorageCompressionStatus) -> ConfigurationGauges:
    audit = status.last_audit
    return ConfigurationGauges(
        namespace=ref.namespace,
        name=ref.name,
        conditions={str(each.get("type")): str(each.get("status")) for each in status.conditions},
        audited=_seconds(audit.completed_at) if audit is not None else None,
        forms=tuple(
            FormGauges(each.form, each.values, each.bytes)
            for each in (audit.forms if audit is not None else ())
        ),
    )


def _seconds(when: datetime | None) -> float | None:
    return when.timestamp() if when is not None else None
