"""What etcd answers, as plain frozen data.

Nothing here knows gRPC or protobuf: `messages` builds these from the wire. Sizes are bytes,
revisions and indexes are etcd's own counters, IDs are unsigned 64-bit integers (`format_id` prints
them as etcd's own tools do).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


def format_id(number: int) -> str:
    """An ID as etcd logs it and etcdctl prints it: hexadecimal, here always 16 digits."""
    return f"{number:016x}"


@dataclass(frozen=True, slots=True)
class Header:
    """Who answered, and at what point. `revision` is 0 where etcd leaves it out (MemberList)."""

    cluster_id: int
    member_id: int
    revision: int = 0
    raft_term: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A row of the member list."""

    id: int
    name: str
    peer_urls: tuple[str, ...] = ()
    client_urls: tuple[str, ...] = ()
    is_learner: bool = False

    @property
    def started(self) -> bool:
        """False while etcd only knows of it: such a row has neither name nor client URLs."""
        return bool(self.name or self.client_urls)

    def __str__(self) -> str:
        return self.name or format_id(self.id)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member about itself (Status).

    `leader` is that member's belief, 0 when it knows none. `raft_index` is the committed index.
    `db_size_quota`: 0 is unknown (before 3.6.6), negative is no quota at all. `errors` holds etcd's
    own sentences, one for each alarm in the whole cluster among them.
    """

    header: Header
    version: str
    db_size: int
    db_size_in_use: int
    leader: int
    raft_index: int
    raft_applied_index: int
    raft_term: int
    errors: tuple[str, ...] = ()
    is_learner: bool = False
    db_size_quota: int = 0
    storage_version: str = ""
    downgrade_enabled: bool = False


class AlarmKind(StrEnum):
    """The alarms that etcd knows."""

    NOSPACE = "NOSPACE"
    CORRUPT = "CORRUPT"


@dataclass(frozen=True, slots=True)
class Alarm:
    """An armed alarm; its effect is on the whole cluster, `member_id` is who raised it."""

    member_id: int
    kind: AlarmKind


class KeyValue(NamedTuple):
    """A key at one revision. `value` is kept out of the repr: it may be a secret.

    A tuple, since they are read by the hundred thousand.
    """

    key: bytes
    value: bytes
    version: int
    create_revision: int
    mod_revision: int
    lease: int = 0

    def __repr__(self) -> str:
        return (
            f"KeyValue(key={self.key!r}, value=<{len(self.value)} bytes>, version={self.version}, "
            f"mod_revision={self.mod_revision}, lease={self.lease})"
        )


@dataclass(frozen=True, slots=True)
class RangeResult:
    """`count` is of all keys in the range whatever the limit; `more`: the limit cut it."""

    header: Header
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class PutResult:
    """A key has been written, at `header.revision`."""

    header: Header


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """How many keys were deleted."""

    header: Header
    deleted: int


class CompareTarget(StrEnum):
    """What of a key is compared."""

    VERSION = "VERSION"
    MOD = "MOD"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a Txn: the key has exactly this number. A key that is absent has 0."""

    key: bytes
    target: CompareTarget
    operand: int

    @classmethod
    def version(cls, key: bytes, version: int) -> Compare:
        """The key has exactly this version; 0 is a key that does not exist."""
        return cls(key, CompareTarget.VERSION, version)

    @classmethod
    def mod_revision(cls, key: bytes, revision: int) -> Compare:
        """The key was last written at exactly this revision; 0 is a key that does not exist."""
        return cls(key, CompareTarget.MOD, revision)


@dataclass(frozen=True, slots=True, repr=False)
class PutOp:
    """Write a key, attached to a lease or (0) to none."""

    key: bytes
    value: bytes
    lease: int = 0

    def __repr__(self) -> str:
        return f"PutOp({self.key!r}, <{len(self.value)} bytes>, lease={self.lease})"


@dataclass(frozen=True, slots=True)
class RangeOp:
    r"""Read a key, or all from `key` up to but without `range_end` (`b"\0"`: to the end)."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Delete a key, or a range as in `RangeOp`."""

    key: bytes
    range_end: bytes = b""


Op = PutOp | RangeOp | DeleteOp
OpResult = PutResult | RangeResult | DeleteResult


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Which branch was taken, and the answer to each of its operations."""

    header: Header
    succeeded: bool
    responses: tuple[OpResult, ...] = ()


def prefix_end(prefix: bytes) -> bytes:
    r"""The `range_end` that makes a range of all keys with this prefix (`b"\0"`: no end)."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"
