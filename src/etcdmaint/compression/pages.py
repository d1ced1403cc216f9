"""How much of etcd's file a revision takes: bbolt's pages, which matter more than the bytes.

etcd stores each revision as one item of a B+tree. A leaf page is 4 KiB and takes at least two items,
whatever their size; beyond that it is filled to nine tenths. So a value of 2 KB costs nearly 4 KiB,
and two thirds of its size saved may save nothing of the file, or more than they are.
Source: bbolt's node splitting, etcd's KeyValue.
"""

from __future__ import annotations

PAGE = 4096
_PAGE_HEADER = 16
_FILLED = 0.9
_LEAST_ITEMS = 2
# The element in the page (16), the revision as its key (17), and the fields around key and value.
_ITEM = 16 + 17 + 24


def page_bytes(key: int, value: int) -> float:
    """The share of its page, or pages, that one revision of such a key and value takes, in bytes."""
    item = _ITEM + key + value
    items = max(_LEAST_ITEMS, int((_FILLED * PAGE - _PAGE_HEADER) // item))
    pages = -(-(_PAGE_HEADER + items * item) // PAGE)
    return pages * PAGE / items
