"""What compression counts (KEP-6264, Observability): seven families and no more.

There is no ratio and no number of bytes, on purpose: either would tell what a stored object contains
to whoever can read metrics. For the same reason a format error does not say which check failed. The
library calls a `Metrics`; who serves it is somebody else's business, the definitions are here.

The counters follow from what is read and written: one that stays quiet does not prove that no frame
is left in etcd. Compressed and stored values are told apart by `outcome`, which shows for each write
whether the object was compressible.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

_PREFIX = "apiserver_storage_compression_"


class Operation(StrEnum):
    """The label `operation`."""

    COMPRESS = "compress"
    DECOMPRESS = "decompress"


class Outcome(StrEnum):
    """The label `outcome`: what became of a value on its way in or out."""

    COMPRESSED = "compressed"
    STORED = "stored"
    UNFRAMED_BELOW_THRESHOLD = "unframed_below_threshold"
    UNFRAMED_ABOVE_CEILING = "unframed_above_ceiling"
    UNFRAMED_NOT_SELECTED = "unframed_not_selected"
    DECOMPRESSED = "decompressed"
    UNFRAMED = "unframed"


class Direction(StrEnum):
    """The label `direction` of the rewrites that a change of policy asks for."""

    TO_FRAMED = "to_framed"
    TO_BARE = "to_bare"


@dataclass(frozen=True, slots=True)
class Definition:
    """A family: its name, type, help and labels; `buckets` are upper bounds in seconds."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_BUCKETS = tuple(round(1e-5 * 2**step, 6) for step in range(16))

DEFINITIONS: Final = (
    Definition(
        _PREFIX + "operations_total",
        "counter",
        "Values that passed the compression layer, by what became of them.",
        ("resource", "operation", "outcome"),
    ),
    Definition(
        _PREFIX + "duration_seconds",
        "histogram",
        "Time to frame or to unframe one value.",
        ("operation",),
        _BUCKETS,
    ),
    Definition(
        _PREFIX + "rewrites_needed_total",
        "counter",
        "Values read in a form that the policy would not have given them.",
        ("resource", "direction"),
    ),
    Definition(
        _PREFIX + "inflation_wait_seconds",
        "histogram",
        "Time that a read waited for its turn to inflate.",
        (),
        _BUCKETS,
    ),
    Definition(
        _PREFIX + "last_config_info",
        "gauge",
        "Always 1; the labels are digests of this process's identity and of its policy file.",
        ("apiserver_id_hash", "hash"),
    ),
    Definition(
        _PREFIX + "unsupported_algorithm_total",
        "counter",
        "Frames of a newer release, which a reader of that release can read: never damage.",
        ("resource",),
    ),
    Definition(
        _PREFIX + "format_errors_total",
        "counter",
        "Frames that could not be read: damaged in etcd, or wrong from the start.",
        ("resource",),
    ),
)


class Metrics(Protocol):
    """Where the counts go. A series must not exist before the first call that names it."""

    def operation(self, resource: str, operation: Operation, outcome: Outcome) -> None:
        """A value passed."""

    def duration(self, operation: Operation, seconds: float) -> None:
        """Framing or unframing one took so long."""

    def rewrite_needed(self, resource: str, direction: Direction) -> None:
        """A value was read that the policy would have stored in the other form."""

    def inflation_wait(self, seconds: float) -> None:
        """A read waited so long for its turn."""

    def unsupported_algorithm(self, resource: str) -> None:
        """A frame of a newer release was read."""

    def format_error(self, resource: str) -> None:
        """A frame was refused: its checksum, or its form behind a right checksum."""

    def config_loaded(self, config_hash: str) -> None:
        """This process works with the file of this hash (`sha256:…`)."""
