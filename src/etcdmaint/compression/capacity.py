"""Whether turning compression on fits into an etcd that may be nearly full, and how it gets there.

Rewriting a value writes it once more before the old one can go: etcd grows first. It refuses writes
when its *file* reaches the quota, and a file never shrinks by itself. So what counts is how large the
file gets before the old revisions are compacted away. All pure; sizes are bytes of the file.

The file is bbolt's pages, which matter more than the bytes: each revision is an item of a B+tree. A leaf
takes at least two items, whatever their size, and beyond that it is filled to nine tenths of 4 KiB; what
is larger takes whole pages. So a value of 2 KB costs nearly 4 KiB, and two thirds of its size saved may
save a page or nothing. Source: bbolt's node splitting (minKeysPerPage, FillPercent), etcd's KeyValue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# Of the quota; what else is written meanwhile needs room as well.
FULL: Final = 0.9

PAGE = 4096
_PAGE_HEADER = 16
_FILLED = int(0.9 * PAGE)
_LEAST_ITEMS = 2
# The element in the page (16), the revision as its key (17), and the fields around key and value.
_ITEM = 16 + 17 + 24


class Packer:
    """Fills pages with one revision after the other, as a defragmentation does."""

    __slots__ = ("_items", "_pages", "_size")

    def __init__(self) -> None:
        self._pages = 0
        self._size = _PAGE_HEADER
        self._items = 0

    def add(self, size: int) -> None:
        """A revision whose key and value have so many bytes together."""
        item = size + _ITEM
        if self._items >= _LEAST_ITEMS and self._size + item > _FILLED:
            self._pages += -(-self._size // PAGE)
            self._size, self._items = _PAGE_HEADER + item, 1
        else:
            self._size += item
            self._items += 1

    @property
    def bytes(self) -> int:
        """Of the file, so far."""
        last = -(-self._size // PAGE) if self._items else 0
        return (self._pages + last) * PAGE


@dataclass(frozen=True, slots=True)
class Fill:
    """The fullest member. `quota` None: it has none, or it is not known (`quota_known` False)."""

    used: int
    in_use: int
    quota: int | None
    quota_known: bool = True


@dataclass(frozen=True, slots=True)
class Way:
    """What becomes of the file. `batches`: 0 it fits as it is; None it cannot fit.

    `peak` before anything is compacted; `then` is the file's size once it is compacted and
    defragmented, and the least that is in use before that: pages that are half empty count in full.
    `live` is what the file would be now, compacted and defragmented.
    """

    fill: Fill
    live: int
    written: int
    peak: int
    then: int
    batches: int | None

    @property
    def fits(self) -> bool | None:
        """Whether it fits as it is; None where the quota is not known."""
        known = self.fill.quota is not None or self.fill.quota_known
        return self.batches == 0 if known else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.fits is None:
            return "the quota is not known: give it with --quota"
        if self.batches == 0:
            return "fits"
        if self.batches is None:
            return (
                "does not fit: compacted and defragmented it is still nearly full; "
                "raise the quota first"
            )
        more = "batch" if self.batches == 1 else "batches, compacting after each"
        return f"does not fit: compact and defragment first, then {self.batches} {more}"


def way_there(fill: Fill, *, live: int, written: int, then: int) -> Way:
    """What all live revisions take now, what the frames take, and all live revisions with them."""
    peak = max(fill.used, fill.in_use + written)
    batches: int | None = 0
    if fill.quota is not None and written > 0 and peak > fill.quota * FULL:
        room = fill.quota * FULL - live
        batches = math.ceil(written / room) if room > 0 else None
    return Way(fill=fill, live=live, written=written, peak=peak, then=then, batches=batches)
