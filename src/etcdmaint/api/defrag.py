"""EtcdDefrag: the wish for one defragmentation, and the record of it.

The spec means what the EtcdDefrag page says. The status is our own record, but anybody may have
written to it, so it is read with tolerance: a row that cannot be understood is no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, model_validator

from etcdmaint.api.fields import Count, Int64, MemberId, ObjectName, Size, Time
from etcdmaint.api.metadata import Resource, allowed_unsafe_version, is_dry_run
from etcdmaint.api.schema import OBJECTS, OR_NONE, Spec, Status, parse, readable, status_of
from etcdmaint.api.vocabulary import ClusterKind, LeaderTransfer, Outcome, Phase, Role
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import format_bytes, parse_percent

DEFAULT_FREE_SPACE_ABOVE: Final = 200 << 20
DEFAULT_MIN_RECLAIM: Final = 32 << 20


class ClusterRef(Spec):
    """The cluster to work on, in the object's own namespace."""

    name: ObjectName
    kind: Annotated[ClusterKind, Field(strict=False)] = ClusterKind.ETCD_CLUSTER


class RuleSpec(Spec):
    """When a member is worth defragmenting (D20); what was left out has its default already."""

    all: bool = False
    free_space_above: Size = DEFAULT_FREE_SPACE_ABOVE
    quota_usage_above: Annotated[Fraction, BeforeValidator(parse_percent)] | None = None
    min_reclaim: Size = Field(
        default_factory=lambda given: min(
            DEFAULT_MIN_RECLAIM, given.get("free_space_above", DEFAULT_FREE_SPACE_ABOVE)
        )
    )

    @model_validator(mode="after")
    def _contradicts_itself(self) -> RuleSpec:
        given = self.model_fields_set
        if self.all and given - {"all"}:
            raise InvalidInput(
                "all", "true excludes freeSpaceAbove, quotaUsageAbove and minReclaim"
            )
        if "min_reclaim" not in given:
            return self
        if "quota_usage_above" not in given:
            raise InvalidInput("minReclaim", "has a meaning only together with quotaUsageAbove")
        if self.min_reclaim > self.free_space_above:
            left_out = "" if "free_space_above" in given else ", which is left out and thus"
            raise InvalidInput(
                "minReclaim",
                f"{format_bytes(self.min_reclaim)} exceeds freeSpaceAbove{left_out} "
                f"{format_bytes(self.free_space_above)}",
            )
        return self


class EtcdDefragSpec(Spec):
    """What is asked for; immutable once created."""

    cluster_ref: ClusterRef
    rule: RuleSpec = Field(default_factory=RuleSpec)
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    leader_transfer: Annotated[LeaderTransfer, Field(strict=False)] = LeaderTransfer.ALWAYS
    dry_run: bool = False


class MemberRow(Status):
    """What is recorded of one member; sizes in bytes, None while unknown."""

    name: Annotated[str, Field(min_length=1)]
    member_id: Annotated[MemberId | None, OR_NONE] = None
    role: Annotated[Role | None, Field(strict=False), OR_NONE] = None
    outcome: Annotated[Outcome | None, Field(strict=False), OR_NONE] = None
    reason: Annotated[str | None, OR_NONE] = None
    message: Annotated[str | None, OR_NONE] = None
    db_size_before: Annotated[Int64 | None, OR_NONE] = None
    db_size_in_use_before: Annotated[Int64 | None, OR_NONE] = None
    quota_bytes: Annotated[Int64 | None, OR_NONE] = None
    db_size_after: Annotated[Int64 | None, OR_NONE] = None
    reclaimed_bytes: Annotated[Int64 | None, OR_NONE] = None
    started_at: Annotated[Time | None, OR_NONE] = None
    finished_at: Annotated[Time | None, OR_NONE] = None


class EtcdDefragStatus(Status):
    """The record of the run; conditions as they are: `conditions.set_condition` edits them."""

    phase: Annotated[Phase | None, Field(strict=False), OR_NONE] = None
    started_at: Annotated[Time | None, OR_NONE] = None
    completed_at: Annotated[Time | None, OR_NONE] = None
    defragmented: Annotated[Count | None, OR_NONE] = None
    reclaimed_bytes: Annotated[Int64 | None, OR_NONE] = None
    reclaimed: Annotated[str | None, OR_NONE] = None
    members: Annotated[tuple[MemberRow, ...], readable(MemberRow, "name")] = ()
    conditions: Annotated[tuple[dict[str, Any], ...], OBJECTS] = ()


class EtcdDefrag(Resource):
    """One EtcdDefrag as the API server has it."""

    spec: EtcdDefragSpec

    @property
    def created(self) -> datetime:
        """When it was created, by the API server's clock."""
        return self.metadata.creation_timestamp

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be touched: asked for by the spec or by the annotation (D8)."""
        return self.spec.dry_run or is_dry_run(self.metadata.annotations)

    @property
    def allow_unsafe_version(self) -> str:
        """The etcd version that somebody takes the risk for (D17), "" for none."""
        return allowed_unsafe_version(self.metadata.annotations)


def parse_defrag(obj: Mapping[str, Any]) -> EtcdDefrag:
    """Read an EtcdDefrag, whatever was stored under that name.

    Raises InvalidInput and nothing else, with the path of the field at fault (D52).
    """
    return parse(EtcdDefrag, obj)


def defrag_status(obj: Mapping[str, Any]) -> EtcdDefragStatus:
    """Only the status, also of an object whose spec is refused; never raises."""
    return status_of(EtcdDefragStatus, obj)
