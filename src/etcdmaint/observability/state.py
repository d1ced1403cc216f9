"""Shows what exists: gauges of clusters, members and runs, made anew at every scrape.

They are read from a snapshot in memory, so a deleted object leaves no series behind and a scrape
costs no request to anybody. This module must not know where the snapshot comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from etcdmaint.defrag.run import Phase
from etcdmaint.observability import catalogue
from etcdmaint.observability.catalogue import Definition, Kind

# Told at zero too: "none failed" must differ from "not scraped".
_PHASES = tuple(phase for phase in Phase if phase is not Phase.NEW)


class ObjectKey(NamedTuple):
    """The object by which an etcd cluster is reached."""

    namespace: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class MemberGauges:
    """One member as last measured; sizes in bytes, None where not known (a quota: or not set)."""

    member_id: int
    reachable: bool
    db_size: int | None = None
    db_size_in_use: int | None = None
    quota: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterGauges:
    """One cluster as last measured; None where that could not be judged."""

    key: ObjectKey
    reachable: bool | None
    healthy: bool | None
    members: tuple[MemberGauges, ...] = ()


@dataclass(frozen=True, slots=True)
class RunGauges:
    """One run object; times are Unix seconds."""

    namespace: str
    name: str
    phase: str
    cluster: ObjectKey | None = None
    started: float | None = None
    completed: float | None = None
    dry_run: bool = False
    operation: str = catalogue.DEFRAGMENT


@dataclass(frozen=True, slots=True)
class FormGauges:
    """Values of one form; bytes None where they are not to be told."""

    form: str
    values: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigurationGauges:
    """One StorageCompressionConfiguration: its conditions' statuses, and what was last counted."""

    namespace: str
    name: str
    conditions: Mapping[str, str]
    audited: float | None = None
    forms: tuple[FormGauges, ...] = ()


class Snapshot(Protocol):
    """What this process knows, without asking anybody; called in the event loop at each scrape."""

    def clusters(self) -> Iterable[ClusterGauges]:
        """Every cluster that is measured."""

    def runs(self) -> Iterable[RunGauges]:
        """Every run object that was seen and is not deleted."""

    def configurations(self) -> Iterable[ConfigurationGauges]:
        """Every StorageCompressionConfiguration."""

    def active_runs(self) -> int:
        """How many runs this process is carrying out."""

    def orphaned_runs(self) -> int:
        """How many unfinished runs nothing here works on, though this process leads."""


class _Families(dict[str, GaugeMetricFamily]):
    """Those of one scrape, in the order of their first sample."""

    def add(self, definition: Definition, labels: Iterable[str], value: float | None) -> None:
        assert definition.kind is Kind.GAUGE, definition
        name = definition.name
        if name not in self:
            self[name] = GaugeMetricFamily(name, definition.help, labels=definition.labels)
        if value is not None:
            self[name].add_metric(list(labels), float(value))


class StateCollector(Collector):
    """Makes the gauges of a snapshot at each scrape."""

    def __init__(self, snapshot: Snapshot, registry: CollectorRegistry) -> None:
        self._snapshot = snapshot
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: registering must not read a snapshot that may not be there yet."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families as of now."""
        families = _Families()
        self._collect_clusters(families)
        self._collect_runs(families)
        self._collect_configurations(families)
        yield from families.values()

    def _collect_clusters(self, families: _Families) -> None:
        for cluster in self._snapshot.clusters():
            families.add(catalogue.CLUSTER_REACHABLE, cluster.key, cluster.reachable)
            families.add(catalogue.CLUSTER_HEALTHY, cluster.key, cluster.healthy)
            for member in cluster.members:
                member_labels = (*cluster.key, f"{member.member_id:016x}")
                families.add(catalogue.MEMBER_REACHABLE, member_labels, member.reachable)
                families.add(catalogue.MEMBER_DB_SIZE, member_labels, member.db_size)
                families.add(catalogue.MEMBER_DB_SIZE_IN_USE, member_labels, member.db_size_in_use)
                families.add(catalogue.MEMBER_QUOTA, member_labels, member.quota)

    def _collect_runs(self, families: _Families) -> None:
        runs = tuple(self._snapshot.runs())
        phases = Counter((run.operation, run.phase) for run in runs)
        for operation, phase in {*phases, *((catalogue.DEFRAGMENT, phase) for phase in _PHASES)}:
            families.add(catalogue.RUNS, (operation, phase), phases[operation, phase])
        succeeded: dict[tuple[str, ...], float] = {}
        for run in runs:
            if run.phase == Phase.RUNNING:
                labels = (run.namespace, run.name, run.operation)
                families.add(catalogue.RUN_START, labels, run.started)
            elif run.phase != Phase.COMPLETE or run.dry_run or run.completed is None:
                continue
            elif run.cluster is not None:
                ref = (*run.cluster, run.operation)
                succeeded[ref] = max(run.completed, succeeded.get(ref, 0.0))
        for cluster_labels, completed in succeeded.items():
            families.add(catalogue.LAST_SUCCESS, cluster_labels, completed)
        families.add(catalogue.ACTIVE_RUNS, (catalogue.DEFRAGMENT,), self._snapshot.active_runs())
        families.add(catalogue.ORPHANED_RUNS, (), self._snapshot.orphaned_runs())

    def _collect_configurations(self, families: _Families) -> None:
        configurations = tuple(self._snapshot.configurations())
        counts = Counter(pair for each in configurations for pair in each.conditions.items())
        for (condition, status), count in counts.items():
            families.add(catalogue.COMPRESSION_CONFIGURATIONS, (condition, status), count)
        for each in configurations:
            key = (each.namespace, each.name)
            families.add(catalogue.STORAGE_LAST_AUDIT, key, each.audited)
            for form in each.forms:
                families.add(catalogue.STORAGE_VALUES, (*key, form.form), form.values)
                families.add(catalogue.STORAGE_VALUES_BYTES, (*key, form.form), form.bytes)
