"""Every metric, once, as data: what is served, what is documented and what alerts may use.

The instruments in `metrics`, the scrape-time collectors in `state` and the generated reference all
read these definitions, so a name, a label or a help text exists in one place. This module must not
know who counts, nor how a scrape is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus' types that are in use here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric family: `buckets` are upper bounds in the unit that the name ends with."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, labels: str = "") -> Definition:
    return Definition(name, Kind.COUNTER, text, tuple(labels.split()))


def _gauge(name: str, text: str, labels: str = "") -> Definition:
    return Definition(name, Kind.GAUGE, text, tuple(labels.split()))


def _histogram(name: str, text: str, buckets: tuple[float, ...], labels: str = "") -> Definition:
    return Definition(name, Kind.HISTOGRAM, text, tuple(labels.split()), buckets)


def _doubling(first: float, count: int) -> tuple[float, ...]:
    return tuple(round(first * 2**step, 6) for step in range(count))


# etcd's own buckets of etcd_disk_backend_defrag_duration_seconds, and two more, so that the longest
# allowed turn (30 minutes) is told apart from one that never ended.
_DEFRAGMENT_BUCKETS = _doubling(0.1, 15)
_RPC_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OVERHEAD_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_AUDIT_BUCKETS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10800.0)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

DEFRAGMENT = "defragment"
"""The one value of the label `operation` so far."""

# Words of labels that are told at zero from the start: else the first failure of a kind makes a series
# that `increase()` sees nothing of. A word that is missing here is counted all the same.
ENDINGS: tuple[tuple[str, str], ...] = (
    ("Complete", "Complete"),
    ("Failed", "ClusterNotFound"),
    ("Failed", "DeadlineExceeded"),
    ("Failed", "ForeignDefragmentation"),
    ("Failed", "InvalidSpec"),
    ("Failed", "MemberFailed"),
    ("Failed", "MemberGone"),
    ("Failed", "NoDiskSpace"),
    ("Failed", "PermissionDenied"),
    ("Failed", "SlotLost"),
    ("Failed", "UnsafeEtcdVersion"),
)
MEMBER_ENDINGS: tuple[tuple[str, str], ...] = (
    ("Defragmented", ""),
    ("Defragmented", "AfterSizeUnavailable"),
    ("Defragmented", "InferredFromSize"),
    ("Skipped", "BelowThreshold"),
    ("Skipped", "NoDiskSpace"),
    ("Skipped", "SweepStopped"),
    ("Failed", "ConnectionLost"),
    ("Failed", "MemberGone"),
    ("Failed", "NoDiskSpace"),
    ("Failed", "OutcomeUnknown"),
    ("Failed", "PermissionDenied"),
    ("Failed", "RPCTimeout"),
)
DEFERRALS: tuple[str, ...] = (
    "CorruptAlarm",
    "LeaderDisagreement",
    "MemberBusy",
    "MemberUnreachable",
    "MembersDisagree",
    "NoLeader",
    "RaftLag",
    "SnapshotInProgress",
    "WaitingForMember",
)
TRANSFER_RESULTS: tuple[str, ...] = ("moved", "failed")
PUBLISH_RESULTS: tuple[str, ...] = ("created", "updated", "restored", "failed")
AUDIT_RESULTS: tuple[str, ...] = ("consistent", "inconsistent", "failed")

# The object that a cluster is reached by; one etcd may have several.
_CLUSTER = "namespace name kind"
_MEMBER = f"{_CLUSTER} member_id"

# --- this process ---------------------------------------------------------------------------------

BUILD_INFO = _gauge(
    "etcdmaint_build_info",
    "Always 1; the labels say which build runs, on which Python and kopf.",
    "version revision python_version kopf_version",
)
LEADER = _gauge(
    "leader_election_master_status",
    "Whether this replica holds the leader Lease of that name: 1 leads, 0 stands by.",
    "name",
)
EVENT_LOOP_LAG = _histogram(
    "etcdmaint_event_loop_lag_seconds",
    "How much later than asked for the event loop woke up a task, sampled once a second.",
    _LAG_BUCKETS,
)
MAX_CONCURRENT_RUNS = _gauge(
    "etcdmaint_max_concurrent_runs",
    "How many runs, on different etcd clusters, this process carries out at the same time at most.",
)
ACTIVE_RUNS = _gauge(
    "etcdmaint_active_runs",
    "Runs that hold their etcd cluster's slot in this process now; those that wait are not among them.",
    "operation",
)

# --- calls to others ------------------------------------------------------------------------------

ETCD_RPC_DURATION = _histogram(
    "etcdmaint_etcd_rpc_duration_seconds",
    "Duration of the RPCs sent to etcd members, by method and gRPC status code; Defragment has "
    "etcdmaint_member_defrag_duration_seconds besides.",
    _RPC_BUCKETS,
    "method code",
)
KUBERNETES_REQUEST_DURATION = _histogram(
    "etcdmaint_kubernetes_request_duration_seconds",
    "Duration of this program's own requests to the Kubernetes API, by verb, resource and result; "
    "the watches and finalizer patches of kopf are not among them.",
    _REQUEST_BUCKETS,
    "verb resource result",
)
STATUS_WRITE_CONFLICTS = _counter(
    "etcdmaint_status_write_conflicts_total",
    "Status writes that the Kubernetes API refused because the object had changed meanwhile; each "
    "was tried again on the newer object.",
)

# --- defragmentation ------------------------------------------------------------------------------

RUNS_TERMINAL = _counter(
    "etcdmaint_runs_terminal_total",
    "Runs that reached their last phase, by phase and reason.",
    "operation phase reason",
)
MEMBERS_PROCESSED = _counter(
    "etcdmaint_members_processed_total",
    "Members that a run was done with, by outcome and reason.",
    "outcome reason",
)
RECLAIMED_BYTES = _counter(
    "etcdmaint_member_reclaimed_bytes_total",
    "Bytes that defragmentation gave back to the disks; a member that grew counts as nothing.",
)
DEFRAG_DURATION = _histogram(
    "etcdmaint_member_defrag_duration_seconds",
    "Duration of the Defragment RPCs that succeeded; meanwhile the member answered nobody.",
    _DEFRAGMENT_BUCKETS,
)
SWEEP_OVERHEAD = _histogram(
    "etcdmaint_sweep_overhead_seconds",
    "Time from Running to the end of a run, less its Defragment RPCs: gate, settling, transfer.",
    _OVERHEAD_BUCKETS,
)
GATE_DEFERRALS = _counter(
    "etcdmaint_gate_deferrals_total",
    "Times that the gate began to defer a run, by reason; checking again does not count anew.",
    "reason",
)
LEADERSHIP_TRANSFERS = _counter(
    "etcdmaint_leadership_transfers_total",
    "Attempts to move etcd's leadership off a member before its turn, by result.",
    "result",
)
RUNS = _gauge("etcdmaint_runs", "Run objects that exist, by phase.", "operation phase")
RUN_START = _gauge(
    "etcdmaint_run_start_timestamp_seconds",
    "Since when a run that is not finished has been Running, as Unix time.",
    "namespace name operation",
)
LAST_SUCCESS = _gauge(
    "etcdmaint_last_success_timestamp_seconds",
    "When the newest run on that cluster that still exists was completed, as Unix time; dry runs do not "
    "count.",
    f"{_CLUSTER} operation",
)
ORPHANED_RUNS = _gauge(
    "etcdmaint_orphaned_runs",
    "Unfinished runs that nothing in this process is working on, although it leads.",
)

# --- clusters and members -------------------------------------------------------------------------

CLUSTER_REACHABLE = _gauge(
    "etcdmaint_cluster_reachable",
    "Whether every member of the etcd cluster behind this object could be reached: 1 or 0.",
    _CLUSTER,
)
CLUSTER_HEALTHY = _gauge(
    "etcdmaint_cluster_healthy",
    "Whether the etcd cluster behind this object has a leader, its members and no alarm: 1 or 0.",
    _CLUSTER,
)
MEMBER_REACHABLE = _gauge(
    "etcdmaint_member_reachable",
    "Whether this member answered when it was last measured: 1 or 0.",
    _MEMBER,
)
MEMBER_DB_SIZE = _gauge(
    "etcdmaint_member_db_size_bytes", "Size of the member's database file.", _MEMBER
)
MEMBER_DB_SIZE_IN_USE = _gauge(
    "etcdmaint_member_db_size_in_use_bytes",
    "Bytes of the database file that hold data; defragmentation gives the rest back.",
    _MEMBER,
)
MEMBER_QUOTA = _gauge(
    "etcdmaint_member_quota_bytes",
    "Size of the database file at which etcd takes no more writes; absent where none is set.",
    _MEMBER,
)

# --- compaction -----------------------------------------------------------------------------------

COMPACTION_ROUNDS = _counter(
    "etcdmaint_compaction_rounds_total",
    "Rounds of the compaction election that this process took part in, by result.",
    "cluster result",
)
COMPACTION_REVISION = _gauge(
    "etcdmaint_compaction_revision",
    "The newest revision known to be compacted away in the etcd cluster of that ID.",
    "cluster",
)
COMPACTION_CLOCK = _gauge(
    "etcdmaint_compaction_clock",
    "Version of the key compact_rev_key, the election's logical clock, as last seen.",
    "cluster",
)
COMPACTION_LAST_SUCCESS = _gauge(
    "etcdmaint_compaction_last_success_timestamp_seconds",
    "When the compacted revision last advanced, by whomever, as Unix time.",
    "cluster",
)
COMPACTION_INVALID_INTERVAL = _gauge(
    "etcdmaint_compaction_invalid_interval",
    "Always 1, for each object whose compaction interval cannot be read: it is not compacted.",
    _CLUSTER,
)

# --- what is stored -------------------------------------------------------------------------------

# Nothing here by resource, and no ratio: how well a resource compresses tells of its content.
_CONFIGURATION = "namespace name"

COMPRESSION_CONFIGURATIONS = _gauge(
    "etcdmaint_storage_compression_configurations",
    "StorageCompressionConfigurations that exist, by condition and its status.",
    "condition status",
)
COMPRESSION_PUBLISHES = _counter(
    "etcdmaint_storage_compression_publishes_total",
    "Times that the ConfigMap of a StorageCompressionConfiguration was written or could not be, by "
    "result; restored is one that somebody else had changed or deleted.",
    "result",
)
STORAGE_AUDITS = _counter(
    "etcdmaint_storage_audits_total",
    "Audits of what is stored that are over, by result; inconsistent ones read more than one revision.",
    "result",
)
STORAGE_AUDIT_DURATION = _histogram(
    "etcdmaint_storage_audit_duration_seconds",
    "Duration of the audits of what is stored, whatever their result; waiting for others is included.",
    _AUDIT_BUCKETS,
)
STORAGE_LAST_AUDIT = _gauge(
    "etcdmaint_storage_last_audit_timestamp_seconds",
    "When what is stored was last counted for this StorageCompressionConfiguration, as Unix time.",
    _CONFIGURATION,
)
STORAGE_VALUES = _gauge(
    "etcdmaint_storage_values",
    "Values that the last audit found, by the form in which they are stored.",
    f"{_CONFIGURATION} form",
)
STORAGE_VALUES_BYTES = _gauge(
    "etcdmaint_storage_values_bytes",
    "Size of those values, summed over the resources that have at least 100; absent where those have "
    "fewer than 100 of that form.",
    f"{_CONFIGURATION} form",
)

CATALOGUE: tuple[Definition, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Definition)
)
