"""Reading keys: in pages that are never huge, and back to what was deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etcdmaint.cli.stored_key import pages, revisions
from etcdmaint.errors import RevisionCompacted
from etcdmaint.etcd.types import Header, KeyValue, Member, RangeResult
from tests.unit.compression.memory import MemoryEtcd

KEY = b"/registry/pods/a/p"


class OneMember:
    """A cluster of one, over an etcd in memory."""

    members = (Member(1, "etcd-0"),)

    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.sent: list[int] = []
        self.reads = 0

    def client(self, _member_id: int) -> Any:
        return SimpleNamespace(range=self._range)

    async def _range(
        self,
        key: bytes,
        end: bytes,
        *,
        revision: int,
        limit: int,
        keys_only: bool,
        **_: Any,
    ) -> RangeResult:
        self.reads += 1
        at = revision or self.etcd.revision
        if at < self.etcd.compacted:
            raise RevisionCompacted("compacted")
        every = [
            each for each in self.etcd.at(at) if (key <= each.key < end if end else each.key == key)
        ]
        some = every[: limit or None]
        self.sent.append(0 if keys_only else sum(len(each.value) for each in some))
        kvs = tuple(
            KeyValue(each.key, each.value, each.version, each.create_revision, each.mod_revision)
            for each in some
        )
        header = Header(7, 1, self.etcd.revision, 1)
        return RangeResult(header, kvs, len(some) < len(every), len(every))


@pytest.fixture
def cluster() -> Any:
    return OneMember()


async def history(cluster: Any) -> list[int | bytes]:
    return [
        found if isinstance(found, int) else found.value
        async for found in revisions(cluster, KEY, timeout=1.0)
    ]


async def test_a_list_of_large_values_is_never_sent_at_once(cluster: Any) -> None:
    for number in range(40):
        cluster.etcd.put(b"/registry/pods/a/%03d" % number, b"x")
    for number in range(60):
        cluster.etcd.put(b"/registry/pods/b/%03d" % number, bytes(1_500_000))
    found: list[bytes] = []
    async for page in pages(cluster, b"/registry/pods/", most=90, timeout=1.0):
        assert page.count >= 90 - len(found)
        found += [kv.key for kv in page.kvs]
    assert len(found) == 90
    assert found == sorted(set(found))
    assert max(cluster.sent) <= 50 * 1_500_000
    assert sorted(cluster.sent)[-2] <= 2 * 1_500_000


async def test_all_pages_are_of_one_revision(cluster: Any) -> None:
    for number in range(20):
        cluster.etcd.put(b"/registry/pods/a/%03d" % number, b"x")
    found: list[bytes] = []
    async for page in pages(cluster, b"/registry/pods/", most=500, timeout=1.0):
        cluster.etcd.put(b"/registry/pods/a/019a%d" % len(found), b"written meanwhile")
        found += [kv.key for kv in page.kvs]
    assert len(found) == 20


async def test_what_was_deleted_is_found_again(cluster: Any) -> None:
    put = cluster.etcd.put
    put(KEY, b"first")
    for _ in range(100):
        put(b"other", b"x")
    put(KEY, b"second")
    for _ in range(100):
        put(b"other", b"x")
    put(KEY, None)
    deleted = cluster.etcd.revision
    assert await history(cluster) == [deleted, b"second", b"first"]
    for _ in range(10):
        put(b"other", b"x")
    put(KEY, b"third")
    put(b"other", b"x")
    assert await history(cluster) == [b"third", deleted, b"second", b"first"]
    cluster.etcd.compacted = 50
    assert await history(cluster) == [b"third", deleted, b"second", b"first"]
    cluster.etcd.compacted = deleted - 1
    assert await history(cluster) == [b"third", deleted, b"second"]
    cluster.etcd.compacted = deleted
    assert await history(cluster) == [b"third"]
    for _ in range(5000):
        put(b"other", b"x")
    cluster.etcd.compacted = cluster.etcd.revision - 4000
    put(KEY, None)
    assert await history(cluster) == [cluster.etcd.revision, b"third"]


async def test_what_was_never_there_is_not_made_up(cluster: Any) -> None:
    for _ in range(1000):
        cluster.etcd.put(b"other", b"x")
    assert await history(cluster) == []
    assert cluster.reads < 15
    cluster.etcd.put(KEY, b"new")
    assert await history(cluster) == [b"new"]
