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
CLUSTER_LABELS = ("namespace", "name", "kind")
_MEMBER_LABELS = (*CLUSTER_LABELS, "member_id")

# --- this process ---------------------------------------------------------------------------------

BUILD_INFO = Definition(
    "etcdmaint_build_info",
    Kind.GAUGE,
    "Always 1; the labels say which build runs, on which Python and kopf.",
    ("version", "revision", "python_version", "kopf_version"),
)
LEADER = Definition(
    "leader_election_master_status",
    Kind.GAUGE,
    "Whether this replica holds the leader Lease of that name: 1 leads, 0 stands by.",
    ("name",),
)
EVENT_LOOP_LAG = Definition(
    "etcdmaint_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "How much later than asked for the event loop woke up a task, sampled once a second.",
    (),
    _LAG_BUCKETS,
)
MAX_CONCURRENT_RUNS = Definition(
    "etcdmaint_max_concurrent_runs",
    Kind.GAUGE,
    "How many runs, on different etcd clusters, this process carries out at the same time at most.",
)
ACTIVE_RUNS = Definition(
    "etcdmaint_active_runs",
    Kind.GAUGE,
    "Runs that hold their etcd cluster's slot in this process now; those that wait are not among them.",
    ("operation",),
)

# --- calls to others ------------------------------------------------------------------------------

ETCD_RPC_DURATION = Definition(
    "etcdmaint_etcd_rpc_duration_seconds",
    Kind.HISTOGRAM,
    "Duration of the RPCs sent to etcd members, by method and gRPC status code; Defragment has "
    "etcdmaint_member_defrag_duration_seconds besides.",
    ("method", "code"),
    _RPC_BUCKETS,
)
KUBERNETES_REQUEST_DURATION = Definition(
    "etcdmaint_kubernetes_request_duration_seconds",
    Kind.HISTOGRAM,
    "Duration of this program's own requests to the Kubernetes API, by verb, resource and result; "
    "the watches and finalizer patches of kopf are not among them.",
    ("verb", "resource", "result"),
    _REQUEST_BUCKETS,
)
STATUS_WRITE_CONFLICTS = Definition(
    "etcdmaint_status_write_conflicts_total",
    Kind.COUNTER,
    "Status writes that the Kubernetes API refused because the object had changed meanwhile; each "
    "was tried again on the newer object.",
)

# --- defragmentation ------------------------------------------------------------------------------

RUNS_TERMINAL = Definition(
    "etcdmaint_runs_terminal_total",
    Kind.COUNTER,
    "Runs that reached their last phase, by phase and reason.",
    ("operation", "phase", "reason"),
)
MEMBERS_PROCESSED = Definition(
    "etcdmaint_members_processed_total",
    Kind.COUNTER,
    "Members that a run was done with, by outcome and reason.",
    ("outcome", "reason"),
)
RECLAIMED_BYTES = Definition(
    "etcdmaint_member_reclaimed_bytes_total",
    Kind.COUNTER,
    "Bytes that defragmentation gave back to the disks; a member that grew counts as nothing.",
)
DEFRAG_DURATION = Definition(
    "etcdmaint_member_defrag_duration_seconds",
    Kind.HISTOGRAM,
    "Duration of the Defragment RPCs that succeeded; meanwhile the member answered nobody.",
    (),
    _DEFRAGMENT_BUCKETS,
)
SWEEP_OVERHEAD = Definition(
    "etcdmaint_sweep_overhead_seconds",
    Kind.HISTOGRAM,
    "Time from Running to the end of a run, less its Defragment RPCs: gate, settling, transfer.",
    (),
    _OVERHEAD_BUCKETS,
)
GATE_DEFERRALS = Definition(
    "etcdmaint_gate_deferrals_total",
    Kind.COUNTER,
    "Times that the gate began to defer a run, by reason; checking again does not count anew.",
    ("reason",),
)
LEADERSHIP_TRANSFERS = Definition(
    "etcdmaint_leadership_transfers_total",
    Kind.COUNTER,
    "Attempts to move etcd's leadership off a member before its turn, by result.",
    ("result",),
)
RUNS = Definition(
    "etcdmaint_runs",
    Kind.GAUGE,
    "Run objects that exist, by phase.",
    ("operation", "phase"),
)
RUN_START = Definition(
    "etcdmaint_run_start_timestamp_seconds",
    Kind.GAUGE,
    "Since when a run that is not finished has been Running, as Unix time.",
    ("namespace", "name", "operation"),
)
LAST_SUCCESS = Definition(
    "etcdmaint_last_success_timestamp_seconds",
    Kind.GAUGE,
    "When the newest run on that cluster that still exists was completed, as Unix time; dry runs do not "
    "count.",
    (*CLUSTER_LABELS, "operation"),
)
ORPHANED_RUNS = Definition(
    "etcdmaint_orphaned_runs",
    Kind.GAUGE,
    "Unfinished runs that nothing in this process is working on, although it leads.",
)

# --- clusters and members -------------------------------------------------------------------------

CLUSTER_REACHABLE = Definition(
    "etcdmaint_cluster_reachable",
    Kind.GAUGE,
    "Whether every member of the etcd cluster behind this object could be reached: 1 or 0.",
    CLUSTER_LABELS,
)
CLUSTER_HEALTHY = Definition(
    "etcdmaint_cluster_healthy",
    Kind.GAUGE,
    "Whether the etcd cluster behind this object has a leader, its members and no alarm: 1 or 0.",
    CLUSTER_LABELS,
)
MEMBER_REACHABLE = Definition(
    "etcdmaint_member_reachable",
    Kind.GAUGE,
    "Whether this member answered when it was last measured: 1 or 0.",
    _MEMBER_LABELS,
)
MEMBER_DB_SIZE = Definition(
    "etcdmaint_member_db_size_bytes",
    Kind.GAUGE,
    "Size of the member's database file.",
    _MEMBER_LABELS,
)
MEMBER_DB_SIZE_IN_USE = Definition(
    "etcdmaint_member_db_size_in_use_bytes",
    Kind.GAUGE,
    "Bytes of the database file that hold data; defragmentation gives the rest back.",
    _MEMBER_LABELS,
)
MEMBER_QUOTA = Definition(
    "etcdmaint_member_quota_bytes",
    Kind.GAUGE,
    "Size of the database file at which etcd takes no more writes; absent where none is set.",
    _MEMBER_LABELS,
)

# --- compaction -----------------------------------------------------------------------------------

COMPACTION_ROUNDS = Definition(
    "etcdmaint_compaction_rounds_total",
    Kind.COUNTER,
    "Rounds of the compaction election that this process took part in, by result.",
    ("cluster", "result"),
)
COMPACTION_REVISION = Definition(
    "etcdmaint_compaction_revision",
    Kind.GAUGE,
    "The newest revision known to be compacted away in the etcd cluster of that ID.",
    ("cluster",),
)
COMPACTION_CLOCK = Definition(
    "etcdmaint_compaction_clock",
    Kind.GAUGE,
    "Version of the key compact_rev_key, the election's logical clock, as last seen.",
    ("cluster",),
)
COMPACTION_LAST_SUCCESS = Definition(
    "etcdmaint_compaction_last_success_timestamp_seconds",
    Kind.GAUGE,
    "When the compacted revision last advanced, by whomever, as Unix time.",
    ("cluster",),
)
COMPACTION_INVALID_INTERVAL = Definition(
    "etcdmaint_compaction_invalid_interval",
    Kind.GAUGE,
    "Always 1, for each object whose compaction interval cannot be read: it is not compacted.",
    CLUSTER_LABELS,
)

# --- what is stored -------------------------------------------------------------------------------

# Nothing here by resource, and no ratio: how well a resource compresses tells of its content.
_CONFIGURATION_LABELS = ("namespace", "name")

COMPRESSION_CONFIGURATIONS = Definition(
    "etcdmaint_storage_compression_configurations",
    Kind.GAUGE,
    "StorageCompressionConfigurations that exist, by condition and its status.",
    ("condition", "status"),
)
COMPRESSION_PUBLISHES = Definition(
    "etcdmaint_storage_compression_publishes_total",
    Kind.COUNTER,
    "Times that the ConfigMap of a StorageCompressionConfiguration was written or could not be, by "
    "result; restored is one that somebody else had changed or deleted.",
    ("result",),
)
STORAGE_AUDITS = Definition(
    "etcdmaint_storage_audits_total",
    Kind.COUNTER,
    "Audits of what is stored that are over, by result; inconsistent ones read more than one revision.",
    ("result",),
)
STORAGE_AUDIT_DURATION = Definition(
    "etcdmaint_storage_audit_duration_seconds",
    Kind.HISTOGRAM,
    "Duration of the audits of what is stored, whatever their result; waiting for others is included.",
    (),
    _AUDIT_BUCKETS,
)
STORAGE_LAST_AUDIT = Definition(
    "etcdmaint_storage_last_audit_timestamp_seconds",
    Kind.GAUGE,
    "When what is stored was last counted for this StorageCompressionConfiguration, as Unix time.",
    _CONFIGURATION_LABELS,
)
STORAGE_VALUES = Definition(
    "etcdmaint_storage_values",
    Kind.GAUGE,
    "Values that the last audit found, by the form in which they are stored.",
    (*_CONFIGURATION_LABELS, "form"),
)
STORAGE_VALUES_BYTES = Definition(
    "etcdmaint_storage_values_bytes",
    Kind.GAUGE,
    "Size of those values, summed over the resources that have at least 100; absent where those have "
    "fewer than 100 of that form.",
    (*_CONFIGURATION_LABELS, "form"),
)

CATALOGUE: tuple[Definition, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Definition)
)
