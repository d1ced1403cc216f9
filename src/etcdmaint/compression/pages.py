"""How much of etcd's file revisions take: bbolt's pages, which matter more than the bytes.

etcd stores each revision as one item of a B+tree. A leaf takes at least two items, whatever their
size, and beyond that it is filled to nine tenths of 4 KiB; what is larger takes whole pages. So a
value of 2 KB costs nearly 4 KiB, and two thirds of its size saved may save a page or nothing.
Source: bbolt's node splitting (minKeysPerPage, FillPercent), etcd's KeyValue.
"""

from __future__ import annotations

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
