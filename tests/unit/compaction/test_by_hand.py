"""What the other contenders are told by hand, where etcd was compacted without the election."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from etcdmaint.compaction.by_hand import HistoryByHand, read_compacted
from etcdmaint.errors import RevisionCompacted, RPCTimeout
from etcdmaint.etcd.types import RangeResult
from etcdmaint.etcd.watch import WatchBatch

from .kv import InMemoryStore

HISTORY = HistoryByHand(timeout=1.0, limit=1.0)


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
    assert await HISTORY.is_told(store, 90) is told
    assert await HISTORY.publish(store, 90) is (value != written)
    assert store.kv is not None
    assert store.kv.value == written
    assert await HISTORY.is_told(store, 90)


async def test_who_knows_more_is_left_alone() -> None:
    """C1."""
    store = InMemoryStore(revision=100)
    store.put(b"95")
    assert await HISTORY.is_told(store, 90)
    assert not await HISTORY.publish(store, 90)
    assert store.version == 1


class Silent(InMemoryStore):
    """Compacted, and never says how far."""

    async def range(self, key: bytes, *_: object, **asked: object) -> RangeResult:
        if asked.get("revision"):
            raise RevisionCompacted("required revision has been compacted")
        return await super().range(key)

    @asynccontextmanager
    async def watch(
        self, key: bytes, *, start_revision: int = 0
    ) -> AsyncIterator[AsyncIterator[WatchBatch]]:
        yield self._nothing()

    async def _nothing(self) -> AsyncIterator[WatchBatch]:
        await asyncio.Event().wait()
        yield WatchBatch(self.header)


async def test_what_etcd_does_not_say_is_not_taken_for_nothing() -> None:
    """C30: it is compacted, so 0 would be a lie."""
    with pytest.raises(RPCTimeout, match="does not say"):
        await read_compacted(Silent(revision=100), timeout=0.01)
