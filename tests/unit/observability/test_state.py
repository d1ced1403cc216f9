"""Gauges are made from what exists at the moment of the scrape, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

from etcdmaint.observability.state import (
    ClusterGauges,
    ConfigurationGauges,
    FormGauges,
    MemberGauges,
    ObjectKey,
    RunGauges,
    StateCollector,
)

KEY = ObjectKey("team-a", "etcd", "EtcdConnection")
LABELS = {"namespace": "team-a", "name": "etcd", "kind": "EtcdConnection"}


@dataclass
class Known:
    known_clusters: tuple[ClusterGauges, ...] = ()
    known_runs: tuple[RunGauges, ...] = ()
    active: int = 0
    orphaned: int = 0
    known_configurations: tuple[ConfigurationGauges, ...] = ()

    def configurations(self) -> tuple[ConfigurationGauges, ...]:
        return self.known_configurations

    def clusters(self) -> tuple[ClusterGauges, ...]:
        return self.known_clusters

    def runs(self) -> tuple[RunGauges, ...]:
        return self.known_runs

    def active_runs(self) -> int:
        return self.active

    def orphaned_runs(self) -> int:
        return self.orphaned


def collected(known: Known) -> CollectorRegistry:
    registry = CollectorRegistry()
    StateCollector(known, registry)
    return registry


def test_a_members_sizes_are_told_by_cluster_and_hex_id() -> None:
    member = MemberGauges(0xABC, True, db_size=300, db_size_in_use=100, quota=2 << 30)
    registry = collected(Known((ClusterGauges(KEY, True, True, (member,)),)))
    labels = LABELS | {"member_id": "0000000000000abc"}
    value = registry.get_sample_value
    assert value("etcdmaint_member_db_size_bytes", labels) == 300
    assert value("etcdmaint_member_db_size_in_use_bytes", labels) == 100
    assert value("etcdmaint_member_quota_bytes", labels) == 2 << 30
    assert value("etcdmaint_member_reachable", labels) == 1
    assert value("etcdmaint_cluster_reachable", LABELS) == 1
    assert value("etcdmaint_cluster_healthy", LABELS) == 1


def test_what_is_not_known_has_no_series_rather_than_a_zero() -> None:
    member = MemberGauges(0xABC, False)
    registry = collected(Known((ClusterGauges(KEY, False, None, (member,)),)))
    labels = LABELS | {"member_id": "0000000000000abc"}
    value = registry.get_sample_value
    assert value("etcdmaint_member_db_size_bytes", labels) is None
    assert value("etcdmaint_member_quota_bytes", labels) is None
    assert value("etcdmaint_member_reachable", labels) == 0
    assert value("etcdmaint_cluster_healthy", LABELS) is None
    assert value("etcdmaint_cluster_reachable", LABELS) == 0


def test_a_deleted_cluster_leaves_no_series_behind() -> None:
    known = Known((ClusterGauges(KEY, True, True, (MemberGauges(1, True, 1, 1),)),))
    registry = collected(known)
    assert b"team-a" in generate_latest(registry)
    known.known_clusters = ()
    assert b"team-a" not in generate_latest(registry)


def test_runs_are_counted_by_phase_and_phases_without_any_are_zero() -> None:
    runs = (
        RunGauges("a", "one", "Pending"),
        RunGauges("a", "two", "Pending"),
        RunGauges("b", "one", "Failed"),
    )
    value = collected(Known(known_runs=runs, active=1, orphaned=2)).get_sample_value
    for phase, count in {"Pending": 2, "Running": 0, "Complete": 0, "Failed": 1}.items():
        labels = {"operation": "defragment", "phase": phase}
        assert value("etcdmaint_runs", labels) == count
    assert value("etcdmaint_active_runs", {"operation": "defragment"}) == 1
    assert value("etcdmaint_orphaned_runs") == 2


def test_only_a_running_run_has_a_start() -> None:
    runs = (
        RunGauges("a", "done", "Complete", started=1.0, completed=2.0),
        RunGauges("a", "busy", "Running", started=5.0),
    )
    value = collected(Known(known_runs=runs)).get_sample_value
    labels = {"namespace": "a", "operation": "defragment"}
    assert value("etcdmaint_run_start_timestamp_seconds", labels | {"name": "busy"}) == 5.0
    assert value("etcdmaint_run_start_timestamp_seconds", labels | {"name": "done"}) is None


def test_the_last_success_of_a_cluster_is_its_newest() -> None:
    runs = (
        RunGauges("a", "new", "Complete", cluster=KEY, completed=9.0),
        RunGauges("a", "old", "Complete", cluster=KEY, completed=3.0),
        RunGauges("a", "failed", "Failed", cluster=KEY, completed=11.0),
        RunGauges("a", "rehearsed", "Complete", cluster=KEY, completed=12.0, dry_run=True),
    )
    labels = LABELS | {"operation": "defragment"}
    name = "etcdmaint_last_success_timestamp_seconds"
    assert collected(Known(known_runs=runs)).get_sample_value(name, labels) == 9.0


def test_configurations_are_counted_by_condition_and_their_values_by_form() -> None:
    """R138: nothing by resource; a sum of bytes that may not be told has no series."""
    forms = (FormGauges("protobuf", 120, 4096), FormGauges("deflate", 3))
    conditions = {"Valid": "True", "Published": "False"}
    one = ConfigurationGauges("team-a", "etcd", conditions, audited=1.5, forms=forms)
    other = ConfigurationGauges("team-b", "etcd", {"Valid": "True"})
    value = collected(Known(known_configurations=(one, other))).get_sample_value
    name = "etcdmaint_storage_compression_configurations"
    assert value(name, {"condition": "Valid", "status": "True"}) == 2
    assert value(name, {"condition": "Published", "status": "False"}) == 1
    labels = {"namespace": "team-a", "name": "etcd"}
    assert value("etcdmaint_storage_last_audit_timestamp_seconds", labels) == 1.5
    assert value("etcdmaint_storage_values", labels | {"form": "deflate"}) == 3
    assert value("etcdmaint_storage_values_bytes", labels | {"form": "protobuf"}) == 4096
    assert value("etcdmaint_storage_values_bytes", labels | {"form": "deflate"}) is None
