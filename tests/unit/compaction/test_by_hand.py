"""What the other contenders are told by hand, where etcd was compacted without the election."""

from __future__ import annotations

import pytest

from etcdmaint.compaction.by_hand import is_told, publish

from .kv import InMemoryStore


@pytest.mark.parametrize(
    ("value", "told", "written"),
    [(None, True, b"90"), (b"89", False, b"90"), (b"x", False, b"90"), (b"90", True, b"90")],
)
async def test_they_are_told_unless_they_know(
    value: bytes | None, told: bool, written: bytes
) -> None:
    """C1, C14: without a key there is nobody who would believe anything; it is made all the same."""
    store = InMemoryStore(revision=100)
    if value is not None:
        store.put(value)
    assert await is_told(store, 90) is told
    assert await publish(store, 90) is (value != written)
    assert store.kv is not None
    assert store.kv.value == written
    assert await is_told(store, 90)


async def test_who_knows_more_is_left_alone() -> None:
    """C1."""
    store = InMemoryStore(revision=100)
    store.put(b"95")
    assert await is_told(store, 90)
    assert not await publish(store, 90)
    assert store.version == 1
