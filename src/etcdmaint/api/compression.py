"""StorageCompressionConfiguration: KEP-6264's configuration file as an object, and what became of it.

Of the entries only the types are checked here: whether they make a policy is judged by the very code
that reads the file, in compression/. The status says what is stored by form, and by design has no place
for what would tell how well a resource compresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from etcdmaint.api.defrag import ClusterRef
from etcdmaint.api.fields import AS_TUPLE, Count, Int64, MemberId, Time, parse_interval
from etcdmaint.api.metadata import Resource
from etcdmaint.api.schema import OBJECTS, OR_NONE, Spec, Status, parse, readable, status_of
from etcdmaint.api.vocabulary import CompressionStage
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import kind, parse_bytes, quoted

DEFAULT_AUDIT_INTERVAL: Final = 24 * 3600.0
DEFAULT_AUDIT_RATE: Final = 20 << 20
MIN_AUDIT_INTERVAL: Final = 60.0
MAX_AUDIT_INTERVAL: Final = 8760 * 3600.0
MIN_AUDIT_RATE: Final = 64 << 10
MAX_AUDIT_RATE: Final = 1 << 40
MAX_ENTRIES: Final = 256
MAX_SELECTORS: Final = 64
"""… of one entry."""


def _audit_interval(value: object) -> float:
    limits = (MIN_AUDIT_INTERVAL, MAX_AUDIT_INTERVAL)
    return parse_interval(value, limits, "from 1m to 8760h")


def _audit_rate(value: object) -> int:
    rate = parse_bytes(value)  # type: ignore[arg-type]  # it refuses every other type
    if not MIN_AUDIT_RATE <= rate <= MAX_AUDIT_RATE:
        raise InvalidInput("", f"{quoted(value)} is not from 64Ki to 1Ti")
    return rate


def _min_size(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInput("", f"must be a number of bytes such as 512 or 1Ki, not {kind(value)}")
    return value


class EntrySpec(Spec):
    """One entry of the file, as it was written: nothing that was left out is filled in."""

    resources: Annotated[tuple[str, ...], AS_TUPLE, Field(min_length=1, max_length=MAX_SELECTORS)]
    algorithm: str
    min_size: Annotated[int | str, BeforeValidator(_min_size)] | None = None
    rewrite: str | None = None


class AuditSpec(Spec):
    """Seconds between two audits, 0 for off, and bytes a second."""

    interval: Annotated[float, BeforeValidator(_audit_interval)] = DEFAULT_AUDIT_INTERVAL
    bytes_per_second: Annotated[int, BeforeValidator(_audit_rate)] = DEFAULT_AUDIT_RATE


class StorageCompressionSpec(Spec):
    """The policy, for which etcd it is, and how what is stored there is counted."""

    cluster_ref: ClusterRef | None = None
    stage: Annotated[CompressionStage, Field(strict=False)] = CompressionStage.ALPHA
    resources: Annotated[tuple[EntrySpec, ...], AS_TUPLE, Field(max_length=MAX_ENTRIES)] = ()
    audit: AuditSpec = Field(default_factory=AuditSpec)


class ApiServerStatus(Status):
    """What the API server says of itself."""

    version: Annotated[str | None, OR_NONE] = None
    emulation: Annotated[str | None, OR_NONE] = None
    min_compatibility: Annotated[str | None, OR_NONE] = None


class FormCount(Status):
    """How many values have a form; bytes where they may be told."""

    form: Annotated[str, Field(min_length=1)]
    values: Count = 0
    bytes: Annotated[Count | None, OR_NONE] = None


class EncryptionCount(Status):
    """How many values name this provider and key."""

    provider: str
    key_name: str
    values: Count = 0

    @property
    def names(self) -> tuple[str, str]:
        """Which row it is."""
        return self.provider, self.key_name


class ResourceCount(Status):
    """How many values a resource has, by form; never how large they are."""

    resource: Annotated[str, Field(min_length=1)]
    values: Count = 0
    damaged: Annotated[Count | None, OR_NONE] = None
    forms: dict[str, Count] = Field(default_factory=dict)


class AuditStatus(Status):
    """What was found when everything was last counted."""

    cluster_id: Annotated[MemberId | None, OR_NONE] = None
    started_at: Annotated[Time | None, OR_NONE] = None
    completed_at: Annotated[Time | None, OR_NONE] = None
    first_revision: Annotated[Int64 | None, OR_NONE] = None
    last_revision: Annotated[Int64 | None, OR_NONE] = None
    consistent: Annotated[bool | None, OR_NONE] = None
    values: Annotated[Count | None, OR_NONE] = None
    damaged: Annotated[Count | None, OR_NONE] = None
    forms: Annotated[tuple[FormCount, ...], readable(FormCount, "form")] = ()
    encryption: Annotated[tuple[EncryptionCount, ...], readable(EncryptionCount, "names")] = ()
    resources: Annotated[tuple[ResourceCount, ...], readable(ResourceCount, "resource")] = ()


class StorageCompressionStatus(Status):
    """What became of the policy, and what is stored."""

    observed_generation: Annotated[Int64 | None, OR_NONE] = None
    cluster_id: Annotated[MemberId | None, OR_NONE] = None
    config_map: Annotated[str | None, OR_NONE] = None
    hash: Annotated[str | None, OR_NONE] = None
    api_server: Annotated[ApiServerStatus | None, OR_NONE] = None
    last_audit: Annotated[AuditStatus | None, OR_NONE] = None
    conditions: Annotated[tuple[dict[str, Any], ...], OBJECTS] = ()


class StorageCompressionConfiguration(Resource):
    """One StorageCompressionConfiguration as the API server has it."""

    spec: StorageCompressionSpec


def parse_compression(obj: Mapping[str, Any]) -> StorageCompressionConfiguration:
    """Read a StorageCompressionConfiguration, whatever was stored under that name.

    Raises InvalidInput and nothing else, with the path of the first field at fault.
    """
    return parse(StorageCompressionConfiguration, obj)


def compression_status(obj: Mapping[str, Any]) -> StorageCompressionStatus:
    """Only the status, also of an object whose spec is refused; never raises."""
    return status_of(StorageCompressionStatus, obj)
