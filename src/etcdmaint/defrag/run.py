"""One run of a defragmentation as data, and what it needs from outside.

A run is asked for by an EtcdDefrag object or by a person at a terminal; `sweep` must not know which.
So the record of it, the questions it asks and the ways in which it speaks are named here, and each way
in brings its own adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

# A run's own words, which its object has as well: handed on to whoever speaks of runs.
from etcdmaint.api.vocabulary import LeaderTransfer as LeaderTransfer
from etcdmaint.api.vocabulary import Outcome as Outcome
from etcdmaint.api.vocabulary import Phase as Phase
from etcdmaint.api.vocabulary import Role as Role
from etcdmaint.defrag.rule import Rule
from etcdmaint.errors import EtcdmaintError
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.endpoint import Endpoint

IN_FLIGHT = "InFlight"
"""The reason of a Pending row whose Defragment may have been sent (D32)."""

OUTCOME_UNKNOWN = frozenset(
    {"RPCTimeout", "ConnectionLost", "RPCFailed", "NotEtcd", "OutcomeUnknown"}
)
"""Reasons of a Failed row whose member may still be at it (D33): all that do not prove the contrary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """What is recorded of one member; sizes in bytes, None while unknown."""

    name: str
    member_id: int
    role: Role | None = None
    outcome: Outcome = Outcome.PENDING
    reason: str = ""
    message: str = ""
    db_size_before: int | None = None
    db_size_in_use_before: int | None = None
    quota_bytes: int | None = None
    db_size_after: int | None = None
    reclaimed_bytes: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a Defragment may have been sent and its outcome is not known yet."""
        return self.outcome is Outcome.PENDING and self.reason == IN_FLIGHT

    @property
    def in_doubt(self) -> bool:
        """Whether the member may be defragmenting, for all that the record says."""
        unknown = self.outcome is Outcome.FAILED and self.reason in OUTCOME_UNKNOWN
        return unknown or self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The whole record of a run: what a resumed run starts from (D2).

    `reason` and `message` say why the run stands where it stands: what it waits for while it is Pending
    or Running, how it ended when it is over. `notes` are sentences worth keeping with the result: an
    alarm that stays armed and why (D41), a release to be wary of (D17).
    """

    phase: Phase = Phase.NEW
    reason: str = ""
    message: str = ""
    rows: tuple[MemberRow, ...] = ()
    notes: tuple[str, ...] = ()
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def defragmented(self) -> int:
        """How many members were defragmented."""
        return sum(row.outcome is Outcome.DEFRAGMENTED for row in self.rows)

    @property
    def reclaimed_bytes(self) -> int:
        """The sum over the members whose size afterwards is known; may be negative."""
        return sum(row.reclaimed_bytes or 0 for row in self.rows)


class Ending(StrEnum):
    """How a call of the sweep ended; the command line's exit code follows from it."""

    DONE = "Done"
    FAILED = "Failed"
    DEFERRED = "Deferred"
    UNSAFE = "Unsafe"
    HELD = "Held"
    ALARM_LEFT = "AlarmLeft"
    STOPPED = "Stopped"
    """Asked to stop; the record is as it was and a later call goes on from it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a call of the sweep gives back."""

    state: RunState
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is asked for.

    `name` is what people call the run (`team-a/etcd-now`), `uid` tells it from an earlier one of the same
    name. `age` is how many seconds ago it was asked for, when the sweep starts. `patience` is how many
    seconds the gate may defer it each time, None for as long as the deadline allows. `created` orders
    runs that wait for one cluster.
    """

    name: str
    uid: str
    rule: Rule
    leader_transfer: LeaderTransfer = LeaderTransfer.ALWAYS
    dry_run: bool = False
    allow_unsafe_version: str = ""
    created: str = ""
    cluster_ref: str = ""
    age: float = 0.0
    patience: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredMember:
    """A member that whoever manages the cluster says there must be."""

    name: str
    member_id: int | None = None
    quota_bytes: int | None = None
    restarts: int = 0

    def means(self, member_id: int, name: str) -> bool:
        """Whether it is this member: by its ID, or by its name as long as the ID is not known."""
        return self.member_id == member_id if self.member_id else self.name == name


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How to reach the cluster, and what is known about it beside etcd itself.

    `desired` None: nobody manages the members, etcd's own list is the truth. `paused`: the sentence that
    says who stopped it, or None (D9). `member_names`: what a member is called where people look for it,
    by member ID; else etcd's own name for it is used. `kubernetes_prefix`: below which keys a Kubernetes
    API server would have its objects.
    """

    seeds: tuple[Endpoint, ...]
    access: Access = field(default_factory=Access)
    metrics_port: int | None = None
    volume_size: int | None = None
    quota_bytes: int | None = None
    desired: tuple[DesiredMember, ...] | None = None
    paused: str | None = None
    member_names: Mapping[int, str] = field(default_factory=dict)
    kubernetes_prefix: str = "/registry"


class RunGone(EtcdmaintError):
    """The object that asked for the run is not there any more."""

    reason = "RunGone"


class RecordRefused(EtcdmaintError):
    """The record may not be written, and waiting for the right to write it has come to nothing yet."""

    reason = "Forbidden"


class Surroundings(Protocol):
    """What the sweep asks of the world before the run and before every member."""

    async def look(self) -> Target:
        """Read afresh how to reach the cluster.

        Raises ClusterNotFound, ClusterNotReady or CredentialsUnavailable, which defer the run, and
        RunGone.
        """

    async def is_active(self, run: str, uid: str) -> bool:
        """Whether another run of ours that left its mark on the slot is still to be finished."""

    @property
    def stopping(self) -> bool:
        """Whether to stop after the member in flight: the object is deleted, or the process ends."""

    async def nap(self, seconds: float) -> None:
        """Sleep so long, but not a moment longer once `stopping` is true (D7)."""


class Journal(Protocol):
    """Where the record of the run is kept."""

    async def record(self, state: RunState) -> None:
        """Return only when the state is durable; wait for the store as long as it takes.

        Raises RunGone when the object is not there any more, LeadershipLost when waiting has outlasted
        this process's right to write, RecordRefused when that right is withheld for long.
        """


class Fence(Protocol):
    """Whether this process may still act, and who it is in the cluster's slot (D37, D60 to D63)."""

    @property
    def holder(self) -> str:
        """Who holds the slot: the same for all replicas of one operator."""

    @property
    def epoch(self) -> str:
        """Tells this process from its predecessors."""

    def assert_held(self) -> None:
        """Raise LeadershipLost unless this process may act at this instant."""


class Severity(StrEnum):
    """Of an event, as Kubernetes has them."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTurn:
    """The turn of one member, told just before its Defragment is sent and again when it is over."""

    row: MemberRow
    position: int
    total: int
    expected_seconds: float
    timeout_seconds: float
    endpoint: str


class Audience(Protocol):
    """Who is told what happens. Both return at once and never raise."""

    def event(self, severity: Severity, reason: str, message: str) -> None:
        """One sentence for each transition."""

    def turn(self, turn: MemberTurn) -> None:
        """A member's turn begins (its row is in flight) or has ended (its row has an outcome)."""


class Instrumentation(Protocol):
    """Who counts."""

    def run_finished(self, phase: str, reason: str) -> None:
        """A run reached its terminal phase."""

    def member_finished(self, outcome: str, reason: str, reclaimed_bytes: int) -> None:
        """A member's row got its outcome."""

    def defragment_seconds(self, seconds: float) -> None:
        """How long one successful Defragment RPC took."""

    def sweep_overhead_seconds(self, seconds: float) -> None:
        """How long a run took from Running to its end, less its Defragment RPCs."""

    def deferred(self, reason: str) -> None:
        """The gate deferred a run, for this reason, anew."""

    def leadership_transfer(self, result: str) -> None:
        """`moved`, `failed`."""


class NoInstrumentation:
    """Counts nothing: for the command line."""

    def _ignore(self, *_: object, **__: object) -> None:
        """Whatever it is."""

    run_finished = member_finished = defragment_seconds = _ignore
    sweep_overhead_seconds = deferred = leadership_transfer = _ignore
