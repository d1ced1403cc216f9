"""The closed sets of words that stand in specs and statuses, and that the domain speaks as well.

No imports but enum: whoever speaks these words need not pay for the models.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a run stands (D1): the last two are absorbing, the first is never written."""

    NEW = ""
    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"

    @property
    def terminal(self) -> bool:
        """Whether nothing may change any more."""
        return self in (Phase.COMPLETE, Phase.FAILED)


class Outcome(StrEnum):
    """What became of a member in a run."""

    PENDING = "Pending"
    SKIPPED = "Skipped"
    DEFRAGMENTED = "Defragmented"
    FAILED = "Failed"


class Role(StrEnum):
    """A member's role in its cluster."""

    LEADER = "leader"
    FOLLOWER = "follower"
    LEARNER = "learner"


class LeaderTransfer(StrEnum):
    """Whether leadership is moved off the leader before its turn (D31)."""

    ALWAYS = "Always"
    AUTO = "Auto"
    NEVER = "Never"


class ClusterKind(StrEnum):
    """What a clusterRef may point at."""

    ETCD_CLUSTER = "EtcdCluster"
    ETCD_CONNECTION = "EtcdConnection"


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class DefragCondition(StrEnum):
    """Condition types of an EtcdDefrag."""

    PROGRESSING = "Progressing"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConnectionCondition(StrEnum):
    """Condition types of an EtcdConnection."""

    REACHABLE = "Reachable"
    HEALTHY = "Healthy"
    COMPACTING = "Compacting"


class CompressionStage(StrEnum):
    """How far KEP-6264 has come: which fields the published file may have."""

    ALPHA = "alpha"
    BETA = "beta"


class CompressionCondition(StrEnum):
    """Condition types of a StorageCompressionConfiguration."""

    VALID = "Valid"
    PUBLISHED = "Published"
    SUPPORTED = "Supported"
    AUDITED = "Audited"
    CONVERGED = "Converged"
    DAMAGED = "Damaged"
