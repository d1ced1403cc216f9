"""Which part of a range the next page is taken from, so that etcd does not count the rest over and over.

With each page etcd counts what is left of the range that was asked for, so pages of a whole keyspace are
quadratic. The keys themselves say where a range can be cut: those of the latest page share a prefix, and
what begins so is about as much again, or ten times as much. When that is read to its end, the prefix
gives up a byte. All pure, and nothing needs to be known of what the keys mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from etcdmaint.etcd.types import prefix_end

NO_END = b"\0"


class Window:
    """The range from `position` up to but without `bound`, inside a larger one that ends at `end`.

    `most`: as long as there are no more keys in it, it is small enough.
    """

    __slots__ = ("_end", "_most", "_prefix", "bound", "position")

    def __init__(self, start: bytes, end: bytes, most: int) -> None:
        self.position = start
        self.bound = end
        self._end = end
        self._most = most
        self._prefix = b""

    def passed(self, keys: Sequence[bytes], counted: int) -> None:
        """These have been read; `counted` is how many keys etcd found with them and behind them."""
        last = keys[-1]
        self.position = last + b"\0"
        if counted <= self._most:
            return
        # The later ones alone: the first may still belong to another resource.
        prefix = _shared(keys[len(keys) * 3 // 4], last)
        narrower = prefix_end(prefix)
        if prefix and narrower != NO_END and _before(narrower, self.bound):
            self._prefix, self.bound = prefix, narrower

    def widen(self) -> bool:
        """Nothing is left below the bound: go on behind it. False when that was the end."""
        if self.bound == self._end:
            return False
        self.position = self.bound
        while self._prefix and not _before(self.position, self.bound):
            self._prefix = self._prefix[:-1]
            self.bound = prefix_end(self._prefix)
        if not self._prefix or not _before(self.bound, self._end):
            self._prefix, self.bound = b"", self._end
        return True


def _before(left: bytes, right: bytes) -> bool:
    """Whether a bound comes before another."""
    return left != NO_END and (right == NO_END or left < right)


def _shared(left: bytes, right: bytes) -> bytes:
    """What both begin with."""
    for position, (mine, other) in enumerate(zip(left, right, strict=False)):
        if mine != other:
            return left[:position]
    return min(left, right, key=len)
