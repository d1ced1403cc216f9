"""What old revisions hold, from two readings of the same keys."""

from __future__ import annotations

import pytest

from etcdmaint.compression.census import Tally
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.history import History, compare, held, oldest_revision
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.walk import Progress, Timing
from etcdmaint.errors import ConnectionLost
from etcdmaint.etcd.entries import Entry

from .memory import Alone, MemoryEtcd

KEY = b"/registry/leases/a/l"


def at(version: int, created: int, modified: int, size: int = 100) -> Entry:
    return Entry(KEY, b"x" * size, version, created, modified, 0)


SIZE = len(KEY) + 100
CASES = {
    "untouched": (at(3, 2, 9), at(3, 2, 9), 0, 0),
    "written once more": (at(1, 2, 2), at(2, 2, 9), 1, SIZE),
    "written three times, in growing sizes": (
        at(1, 2, 2, 100), at(4, 2, 9, 300), 3, SIZE + 2 * (SIZE + 100)
    ),
    "deleted": (at(1, 2, 2), None, 1, SIZE),
    "created since": (None, at(1, 7, 7), 0, 0),
    "created since, and written twice": (None, at(3, 7, 9), 2, 2 * SIZE),
    "deleted and created again": (at(5, 2, 6), at(1, 8, 8), 1, SIZE),
    "deleted, created again and written": (at(5, 2, 6), at(3, 8, 10), 3, 3 * SIZE),
    "nowhere": (None, None, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "number", "size"), CASES.values(), ids=CASES)
def test_a_keys_old_revisions_follow_from_its_two_versions(
    old: Entry | None, new: Entry | None, number: int, size: int
) -> None:
    assert held(old, new) == (number, size)


async def history(etcd: MemoryEtcd, keep: int = 0, progress: Progress | None = None) -> History:
    governor = Governor(None, etcd.clock)
    progress = progress or Progress()
    return await compare(
        etcd,
        progress,
        Keyspace(),
        governor=governor,
        clock=etcd.clock,
        courtesy=Alone(),
        timing=Timing(),
        keep=keep,
    )


@pytest.mark.parametrize("compacted", [0, 1, 2, 17, 30, 31])
async def test_the_oldest_revision_is_found_by_asking(compacted: int) -> None:
    etcd = MemoryEtcd()
    for number in range(30):
        etcd.put(b"%d" % number, b"x")
    etcd.compacted = compacted
    assert await oldest_revision(etcd, b"\0", etcd.revision) == max(compacted, 1)


async def test_every_key_is_compared_with_itself_however_the_chunks_fall() -> None:
    etcd = MemoryEtcd(chunk=3)
    for number in range(20):
        etcd.put(b"/registry/pods/a/%02d" % number, b"x" * 10)
    etcd.put(KEY, b"y" * 100)
    etcd.compacted = etcd.revision
    for _ in range(5):
        etcd.put(KEY, b"y" * 100)
    etcd.put(b"/registry/pods/a/03", None)
    etcd.put(b"/registry/pods/a/07", b"z" * 30)
    etcd.put(b"/registry/pods/a/99", b"z" * 30)
    found = await history(etcd, keep=2)
    pod = len(b"/registry/pods/a/03") + 10
    assert found.rows == {
        "pods": Tally(2, 2 * pod),
        "leases.coordination.k8s.io": Tally(5, 5 * SIZE),
    }
    assert found.busiest[0] == (5, KEY, 5 * SIZE)
    assert len(found.busiest) == 2
    assert found.complete
    assert found.total.values == 7
    assert found.sorted()[0][0] == "leases.coordination.k8s.io"
    assert found.document(lambda key: key.decode())["busiest"][0]["key"] == KEY.decode()


async def test_a_member_that_fails_does_not_cost_the_history() -> None:
    """It comes last, after an hour's scan perhaps."""
    etcd = MemoryEtcd()
    for number in range(20):
        etcd.put(b"/registry/pods/a/%02d" % (number % 10), b"x" * 10)

    def fail(chunk: int) -> None:
        if chunk % 3 == 0:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    progress = Progress()
    found = await history(etcd, progress=progress)
    assert found.complete
    assert found.total.values == 10
    assert (progress.keys, progress.expected) == (10, 10)
    assert etcd.readers > 3


async def test_a_compaction_meanwhile_is_told() -> None:
    etcd = MemoryEtcd()
    for number in range(20):
        etcd.put(b"/registry/pods/a/%02d" % number, b"x" * 10)
    etcd.compacted = 15
    etcd.before = lambda chunk: setattr(etcd, "compacted", etcd.revision if chunk > 6 else 15)
    found = await history(etcd)
    assert not found.complete
    assert "this is a part" in found.sentence()
