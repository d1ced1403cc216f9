"""Counts what happens: the event metrics, behind the small Protocols of those who report.

One object a subject, all on a registry that is handed in, so that two of them never meet in one
process by accident. State that exists whether or not anything happens (members, runs, clusters) is
`state`'s. This module must not know Kubernetes objects, nor decide what counts as a failure.
"""

from __future__ import annotations

import platform
from enum import StrEnum

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from etcdmaint.compaction.election import Result
from etcdmaint.observability import catalogue
from etcdmaint.observability.catalogue import Definition, Kind


def new_registry() -> CollectorRegistry:
    """A registry with the process', the platform's and the garbage collector's own metrics.

    `_created` series are switched off for the whole process: they double what is stored, and
    promtool takes them for gauges without a unit.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    prometheus_client.GCCollector(registry=registry)
    return registry


class EtcdRpcs:
    """Implements the etcd client's `RpcObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = _histogram(catalogue.ETCD_RPC_DURATION, registry)

    def rpc(self, method: str, code: str, seconds: float) -> None:
        """One RPC is over: `method` as `KV/Range` or `Range`, `code` gRPC's name of the status."""
        self._duration.labels(method.rpartition("/")[2], code).observe(seconds)


class RequestResult(StrEnum):
    """How a request to the Kubernetes API ended; a closed set, so that alerts can name them."""

    SUCCESS = "success"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    THROTTLED = "throttled"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    NO_ANSWER = "no_answer"

    @classmethod
    def of(cls, status: int | None) -> RequestResult:
        """From an HTTP status; None where no answer came."""
        if status is None:
            return cls.NO_ANSWER
        if status < 400:
            return cls.SUCCESS
        named = {401: cls.FORBIDDEN, 403: cls.FORBIDDEN, 404: cls.NOT_FOUND, 409: cls.CONFLICT}
        named[429] = cls.THROTTLED
        return named.get(status, cls.CLIENT_ERROR if status < 500 else cls.SERVER_ERROR)


class KubernetesRequests:
    """Counts the requests of kube/ to the Kubernetes API."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = _histogram(catalogue.KUBERNETES_REQUEST_DURATION, registry)
        self._conflicts = _counter(catalogue.STATUS_WRITE_CONFLICTS, registry)

    def request(self, verb: str, resource: str, status: int | None, seconds: float) -> None:
        """One request is over; `verb` as RBAC has it (`get`, `list`, …), `resource` the plural."""
        self._duration.labels(verb, resource, RequestResult.of(status)).observe(seconds)

    def status_conflict(self) -> None:
        """A compare-and-swap of a status was refused and will be tried again."""
        self._conflicts.inc()


class Defragmentations:
    """Implements the domain's `defrag.run.Instrumentation`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._runs = _counter(catalogue.RUNS_TERMINAL, registry)
        self._members = _counter(catalogue.MEMBERS_PROCESSED, registry)
        self._reclaimed = _counter(catalogue.RECLAIMED_BYTES, registry)
        self._duration = _histogram(catalogue.DEFRAG_DURATION, registry)
        self._overhead = _histogram(catalogue.SWEEP_OVERHEAD, registry)
        self._deferrals = _counter(catalogue.GATE_DEFERRALS, registry)
        self._transfers = _counter(catalogue.LEADERSHIP_TRANSFERS, registry)
        for phase, reason in catalogue.ENDINGS:
            self._runs.labels(catalogue.DEFRAGMENT, phase, reason)
        for outcome, reason in catalogue.MEMBER_ENDINGS:
            self._members.labels(outcome, reason)
        for reason in catalogue.DEFERRALS:
            self._deferrals.labels(reason)
        for result in catalogue.TRANSFER_RESULTS:
            self._transfers.labels(result)

    def run_finished(self, phase: str, reason: str) -> None:
        """A run reached its terminal phase."""
        self._runs.labels(catalogue.DEFRAGMENT, phase, reason).inc()

    def member_finished(self, outcome: str, reason: str, reclaimed_bytes: int) -> None:
        """A member's row got its outcome; a counter cannot take back what a member grew by."""
        self._members.labels(outcome, reason).inc()
        self._reclaimed.inc(max(0, reclaimed_bytes))

    def defragment_seconds(self, seconds: float) -> None:
        """How long one successful Defragment RPC took."""
        self._duration.observe(seconds)

    def sweep_overhead_seconds(self, seconds: float) -> None:
        """How long a run took from Running to its end, less its Defragment RPCs."""
        self._overhead.observe(seconds)

    def deferred(self, reason: str) -> None:
        """The gate deferred a run, for this reason, anew."""
        self._deferrals.labels(reason).inc()

    def leadership_transfer(self, result: str) -> None:
        """`moved`, `failed`."""
        self._transfers.labels(result).inc()


class ProcessState:
    """What this replica is and does: build, leadership, load."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        version: str,
        revision: str,
        kopf_version: str,
        lease_name: str,
        max_concurrent_runs: int,
    ) -> None:
        _gauge(catalogue.BUILD_INFO, registry).labels(
            version, revision, platform.python_version(), kopf_version
        ).set(1)
        self._leader = _gauge(catalogue.LEADER, registry).labels(lease_name)
        self._lag = _histogram(catalogue.EVENT_LOOP_LAG, registry)
        _gauge(catalogue.MAX_CONCURRENT_RUNS, registry).set(max_concurrent_runs)

    def leading(self, leads: bool) -> None:
        """Whether this replica holds the leader Lease from now on."""
        self._leader.set(1 if leads else 0)

    def loop_lag(self, seconds: float) -> None:
        """The event loop woke a task up so much too late."""
        self._lag.observe(max(0.0, seconds))


class Compactions:
    """Counts the rounds of the compaction election, by etcd cluster ID in hex."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rounds = _counter(catalogue.COMPACTION_ROUNDS, registry)
        self._revision = _gauge(catalogue.COMPACTION_REVISION, registry)
        self._clock = _gauge(catalogue.COMPACTION_CLOCK, registry)
        self._last_success = _gauge(catalogue.COMPACTION_LAST_SUCCESS, registry)
        self._invalid = _gauge(catalogue.COMPACTION_INVALID_INTERVAL, registry)

    def refused(self, namespace: str, name: str, kind: str) -> None:
        """This object's compaction interval cannot be read."""
        self._invalid.labels(namespace, name, kind).set(1)

    def accepted(self, namespace: str, name: str, kind: str) -> None:
        """It can, or the object is gone."""
        self._invalid.remove(namespace, name, kind)

    def started(self, cluster: str) -> None:
        """A compactor takes part for this cluster from now on: its rates begin at zero."""
        for result in Result:
            self._rounds.labels(cluster, result)

    def round(self, cluster: str, result: str, clock: int) -> None:
        """One round is over; `clock` is the version of compact_rev_key as known after it."""
        self._rounds.labels(cluster, Result(result)).inc()
        self._clock.labels(cluster).set(clock)

    def known(self, cluster: str, revision: int) -> None:
        """The compacted revision, moved on nobody knows when."""
        self._revision.labels(cluster).set(revision)

    def advanced(self, cluster: str, revision: int, timestamp: float) -> None:
        """The compacted revision moved on, by whomever, at that Unix time."""
        self._revision.labels(cluster).set(revision)
        self._last_success.labels(cluster).set(timestamp)

    def stopped(self, cluster: str) -> None:
        """No compactor takes part for this cluster any more: its series go."""
        for result in Result:
            self._rounds.remove(cluster, result)
        for gauge in (self._revision, self._clock, self._last_success):
            gauge.remove(cluster)


class StorageCompression:
    """Counts what becomes of StorageCompressionConfigurations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._publishes = _counter(catalogue.COMPRESSION_PUBLISHES, registry)
        self._audits = _counter(catalogue.STORAGE_AUDITS, registry)
        self._duration = _histogram(catalogue.STORAGE_AUDIT_DURATION, registry)
        for result in catalogue.PUBLISH_RESULTS:
            self._publishes.labels(result)
        for result in catalogue.AUDIT_RESULTS:
            self._audits.labels(result)

    def published(self, result: str) -> None:
        """A ConfigMap was written, or could not be."""
        self._publishes.labels(result).inc()

    def audited(self, result: str, seconds: float) -> None:
        """An audit is over."""
        self._audits.labels(result).inc()
        self._duration.observe(seconds)


def _counter(definition: Definition, registry: CollectorRegistry) -> Counter:
    assert definition.kind is Kind.COUNTER, definition
    return Counter(definition.name, definition.help, definition.labels, registry=registry)


def _gauge(definition: Definition, registry: CollectorRegistry) -> Gauge:
    assert definition.kind is Kind.GAUGE, definition
    return Gauge(definition.name, definition.help, definition.labels, registry=registry)


def _histogram(definition: Definition, registry: CollectorRegistry) -> Histogram:
    assert definition.kind is Kind.HISTOGRAM, definition
    return Histogram(
        definition.name,
        definition.help,
        definition.labels,
        buckets=definition.buckets,
        registry=registry,
    )
