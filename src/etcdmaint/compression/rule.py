"""What the policy says of one resource: shall this plaintext be a frame, is that value stale?

One predicate answers both, from two facts that cost nothing (KEP-6264, The write path, Staleness and
migration): that is what makes a migration end. This module knows no file and no frame's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES


class Algorithm(StrEnum):
    """What an entry may ask for."""

    DEFLATE = "Deflate"
    NONE = "None"


class Rewrite(StrEnum):
    """Whether a change of policy reaches the values that are there already."""

    EAGER = "Eager"
    ON_WRITE = "OnWrite"


# An enum's attribute costs more than the comparison, and these are asked for every value.
_DEFLATE: Final = Algorithm.DEFLATE
_EAGER: Final = Rewrite.EAGER


@dataclass(frozen=True, slots=True)
class Rule:
    """What the policy says of one resource.

    `entry` is the index in the file (None: no entry matches), sizes are bytes, both inclusive.
    `inert` marks the rule of a process without a file, which also counts nothing.
    """

    entry: int | None = None
    algorithm: Algorithm = Algorithm.NONE
    min_size: int | None = None
    rewrite: Rewrite = Rewrite.EAGER
    ceiling: int = MAX_PLAINTEXT_BYTES
    inert: bool = False

    @property
    def compresses(self) -> bool:
        """Whether any value of this resource is to be framed for its size."""
        return self.algorithm is not Algorithm.NONE

    def frames(self, plaintext: bytes) -> bool:
        """Whether this plaintext is stored as a frame (KEP-6264, The write path).

        Its first byte, its length and the policy decide, never how well it compresses: reading has
        to find the same answer without compressing anything.
        """
        floor, size = self.min_size, len(plaintext)
        if self.algorithm is _DEFLATE and floor is not None and floor <= size <= self.ceiling:
            return True
        return plaintext[:1] == b"\x00"

    def stale(self, framed: bool, plaintext: bytes) -> bool:
        """Whether a value found in this form should be rewritten (Staleness and migration)."""
        return self.rewrite is _EAGER and framed is not self.frames(plaintext)


UNSELECTED: Final = Rule()
INERT: Final = Rule(inert=True)
