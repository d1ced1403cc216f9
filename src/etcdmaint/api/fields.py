"""The types of single fields: sizes, names, references, times.

The limits here and those of the CRDs say the same; a test holds them against each other. Each type
refuses with a fault only; the path is added by whoever parses.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from etcdmaint.api.schema import Spec
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import format_bytes, kind, parse_bytes, parse_duration, quoted

MAX_SIZE: Final = 1 << 60
"""Bytes: no etcd, volume or threshold is larger than 1Ei."""

MIN_COMPACTION_INTERVAL: Final = 10.0
MAX_COMPACTION_INTERVAL: Final = 24 * 3600.0
MAX_INTERVAL_LENGTH: Final = 32

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MEMBER_ID = re.compile(r"[0-9a-f]{1,16}")
_RFC3339 = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def parse_time(text: str) -> datetime:
    """An RFC 3339 time, in UTC. Raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput("", f"must be a time, not {kind(text)}")
    try:
        if _RFC3339.fullmatch(text):
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # the 31st of February, a leap second, a time before the year 1
    raise InvalidInput("", f"{quoted(text)} is not an RFC 3339 time")


def format_time(moment: datetime) -> str:
    """As Kubernetes writes times: UTC, whole seconds (a fraction is cut)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_compaction_interval(value: str | int, field: str = "") -> float:
    """Seconds between two compactions, 0 for off; a Go duration from 10s to 24h, or `0` or `0s`.

    For the field of an EtcdConnection and the annotation on an EtcdCluster. Raises InvalidInput.
    """
    limits = (MIN_COMPACTION_INTERVAL, MAX_COMPACTION_INTERVAL)
    return parse_interval(value, limits, "from 10s to 24h", field)


def parse_interval(value: object, limits: tuple[float, float], told: str, field: str = "") -> float:
    """A Go duration within `limits` (seconds; `told` says them), or 0 for off: `0` or `0s`."""
    if value in ("0", "0s") or (value == 0 and type(value) is int):
        return 0.0
    if isinstance(value, str) and len(value) > MAX_INTERVAL_LENGTH:
        raise InvalidInput(field, f"has more than {MAX_INTERVAL_LENGTH} characters")
    seconds = parse_duration(str(value) if type(value) is int else value, field)  # type: ignore[arg-type]  # it refuses every other type
    if not limits[0] <= seconds <= limits[1]:
        raise InvalidInput(field, f"{quoted(value)} is not {told}, nor 0 for off")
    return seconds


def _size(value: object) -> int:
    size = parse_bytes(value)  # type: ignore[arg-type]  # it refuses every other type
    if size <= 0:
        raise InvalidInput("", f"must be greater than 0, not {quoted(value)}")
    if size > MAX_SIZE:
        raise InvalidInput("", f"must be at most {format_bytes(MAX_SIZE)}, not {quoted(value)}")
    return size


def _member_id(value: object) -> int:
    if not (isinstance(value, str) and _MEMBER_ID.fullmatch(value)):
        raise InvalidInput("", f"{quoted(value)} is not a member ID in hexadecimal")
    return int(value, 16)


def _object_name(text: str) -> str:
    if len(text) > 253 or not _DNS_NAME.fullmatch(text):
        raise InvalidInput("", f"{quoted(text)} is not a name that a Kubernetes object can have")
    return text


def _secret_key(text: str) -> str:
    if len(text) > 253 or not _SECRET_KEY.fullmatch(text):
        raise InvalidInput("", f"{quoted(text)} is not a key that a Secret can have")
    return text


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Size = Annotated[int, BeforeValidator(_size)]
"""Bytes, more than 0 and at most 1Ei, written as a Kubernetes quantity."""

ObjectName = Annotated[str, AfterValidator(_object_name)]
SecretKey = Annotated[str, AfterValidator(_secret_key)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]

Time = Annotated[
    datetime,
    BeforeValidator(lambda value: value if isinstance(value, datetime) else parse_time(value)),
    PlainSerializer(format_time),
]

MemberId = Annotated[
    int,
    BeforeValidator(lambda value: value if type(value) is int else _member_id(value)),
    Field(ge=0, lt=2**64),
    PlainSerializer(lambda member_id: f"{member_id:016x}"),
]
"""An integer here, 16 hexadecimal digits on the wire."""

AS_TUPLE = BeforeValidator(_tuple)
"""In an annotation of a tuple: a JSON list is one."""


class SecretRef(Spec):
    """A Secret in the object's own namespace: no other can be named."""

    name: ObjectName
