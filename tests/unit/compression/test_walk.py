"""Going through an etcd: everything once, whatever happens on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from etcdmaint.compression.governor import QUICK_SECONDS, Governor
from etcdmaint.compression.walk import EVERYTHING, Courtesy, Progress, Timing, Walk, spans_of, take
from etcdmaint.errors import (
    ConnectionLost,
    KmsUnavailable,
    PermissionDenied,
    RevisionCompacted,
    TokenExpired,
    WrongMember,
)
from etcdmaint.etcd.entries import Chunk, Entry

from .memory import Alone, ManualClock, MemoryEtcd
from .objects import entry

TIMING = Timing(look=5.0, probe=1.0, retry=1.0, patience=30.0)


class Sometimes:
    """Somebody who works on the cluster for so many looks."""

    def __init__(self, *holders: str) -> None:
        self.holders = list(holders)

    async def holder(self) -> str:
        return self.holders.pop(0) if self.holders else ""


async def walked(
    etcd: MemoryEtcd,
    progress: Progress | None = None,
    *,
    rate: float | None = None,
    courtesy: Courtesy | None = None,
    exact: bool = False,
) -> tuple[list[bytes], Progress]:
    progress = progress or Progress()
    walk = Walk(
        progress,
        etcd,
        governor=Governor(rate, etcd.clock),
        clock=etcd.clock,
        courtesy=courtesy or Alone(),
        timing=TIMING,
        exact=exact,
    )
    keys: list[bytes] = []
    async with aclosing(walk.chunks()) as chunks:
        async for chunk in chunks:
            keys += [each.key for each in chunk.entries]
            progress.note(chunk, len(chunk.entries))
    return keys, progress


@pytest.fixture
def etcd() -> MemoryEtcd:
    memory = MemoryEtcd()
    for number in range(7):
        memory.put(b"/registry/pods/default/%d" % number, b"x" * 100)
    return memory


ALL = [b"/registry/pods/default/%d" % number for number in range(7)]


async def test_everything_is_read_once_at_one_revision(etcd: MemoryEtcd) -> None:
    etcd.before = lambda _: etcd.put(b"/registry/pods/default/0a", b"written meanwhile")
    keys, progress = await walked(etcd)
    assert keys == ALL
    assert progress.consistent
    assert progress.revisions == [8]
    assert (progress.keys, progress.expected) == (7, 7)


async def test_a_revision_that_is_compacted_away_is_replaced_and_that_is_told(
    etcd: MemoryEtcd,
) -> None:
    """R150: on after the last key, at the newest revision, and no claim of equal counts."""

    def compact(chunk: int) -> None:
        if chunk == 2:
            etcd.put(ALL[0], None)
            etcd.put(b"/registry/pods/default/9", b"new")
            etcd.compacted = etcd.revision

    etcd.before = compact
    keys, progress = await walked(etcd)
    assert keys == [*ALL, b"/registry/pods/default/9"]
    assert progress.finished
    assert not progress.consistent
    assert progress.revisions == [8, 10]


async def test_an_exact_walk_ends_when_its_revision_is_gone(etcd: MemoryEtcd) -> None:
    def compact(chunk: int) -> None:
        if chunk == 2:
            etcd.put(b"k", b"v")
            etcd.compacted = etcd.revision

    etcd.before = compact
    with pytest.raises(RevisionCompacted):
        await walked(etcd, exact=True)


async def test_a_member_that_fails_is_replaced_by_another_and_nothing_is_read_twice(
    etcd: MemoryEtcd,
) -> None:
    faults = {
        1: ConnectionLost("gone"),
        2: TokenExpired("a scan outlives a token"),
        3: WrongMember("another one is at this address now"),
    }

    def fail(chunk: int) -> None:
        etcd.fault = faults.pop(chunk, None)

    etcd.before = fail
    keys, progress = await walked(etcd)
    assert keys == ALL
    assert progress.consistent
    assert etcd.readers == 4


async def test_when_nobody_answers_for_too_long_it_gives_up_where_it_can_go_on(
    etcd: MemoryEtcd,
) -> None:
    def fail(chunk: int) -> None:
        if chunk >= 2:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    progress = Progress()
    begun = etcd.clock.time
    with pytest.raises(ConnectionLost):
        await walked(etcd, progress)
    assert 30.0 <= etcd.clock.time - begun < 40.0
    assert progress.position == ALL[1] + b"\0"
    assert not progress.finished
    etcd.before = lambda _: None
    keys, _ = await walked(etcd, progress)
    assert keys == ALL[2:]
    assert progress.consistent


async def test_a_walk_that_cannot_begin_says_so_at_once(etcd: MemoryEtcd) -> None:
    etcd.fault = ConnectionLost("gone")
    with pytest.raises(ConnectionLost):
        await walked(etcd)
    assert etcd.clock.slept == []


async def test_what_another_moment_would_not_help_is_raised_at_once(etcd: MemoryEtcd) -> None:
    etcd.fault = PermissionDenied("no")
    with pytest.raises(PermissionDenied):
        await walked(etcd)
    assert etcd.clock.slept == []


async def test_it_waits_while_somebody_else_works_on_the_cluster(etcd: MemoryEtcd) -> None:
    courtesy = Sometimes("the operator", "the operator")
    keys, progress = await walked(etcd, courtesy=courtesy)
    assert keys == ALL
    assert etcd.clock.slept[:2] == [5.0, 5.0]
    assert progress.waiting == ""


async def test_it_stands_back_in_the_middle_too(etcd: MemoryEtcd) -> None:
    courtesy = Sometimes()

    def take_the_slot(chunk: int) -> None:
        if chunk == 2:
            etcd.clock.time += 6.0
            courtesy.holders = ["a sweep"] * 10

    etcd.before = take_the_slot
    keys, _ = await walked(etcd, courtesy=courtesy)
    assert keys == ALL
    # Far longer than patience with members that fail, which this is not.
    assert etcd.clock.slept == [5.0] * 10


async def test_it_keeps_to_its_rate(etcd: MemoryEtcd) -> None:
    begun = etcd.clock.time
    _, progress = await walked(etcd, rate=100.0)
    # The last chunk, of one key, holds up nobody any more.
    paid = progress.bytes - len(ALL[-1]) - 100
    assert etcd.clock.time - begun == pytest.approx(paid / 100, rel=0.01)


async def test_it_slows_down_while_etcd_answers_late(etcd: MemoryEtcd) -> None:
    """Twice the latency of the beginning halves the rate, again and again."""

    def get_slow(_chunk: int) -> None:
        etcd.latency = 0.5

    quick, slow = MemoryEtcd(), etcd
    for each in slow.at(slow.revision):
        quick.put(each.key, each.value)
    slow.before = get_slow
    await walked(quick, rate=100.0)
    await walked(slow, rate=100.0)
    assert slow.clock.time > 2 * (quick.clock.time - 100) + 100


async def test_how_etcd_was_before_is_not_measured_again_when_it_is_slow(etcd: MemoryEtcd) -> None:
    """Each compaction begins anew, every five minutes; slowness is not to become what is usual."""

    def compact(chunk: int) -> None:
        etcd.latency = 0.5
        if chunk in (2, 4):
            etcd.put(b"k", b"v")
            etcd.compacted = etcd.revision

    etcd.before = compact
    governor = Governor(1000.0, etcd.clock)
    progress = Progress(((b"/", b"0"),))
    walk = Walk(
        progress, etcd, governor=governor, clock=etcd.clock, courtesy=Alone(), timing=TIMING
    )
    async with aclosing(walk.chunks()) as chunks:
        async for chunk in chunks:
            progress.note(chunk, len(chunk.entries))
    assert len(progress.revisions) == 3
    assert governor.slowed


def test_a_governor_forgets_a_bad_moment() -> None:
    governor = Governor(1000.0, ManualClock())
    governor.calm([0.01, 0.011, 0.5])
    governor.observe(0.021)
    assert not governor.slowed, "0.011 is the median: 0.021 is not twice that"
    governor.observe(0.023)
    assert governor.slowed
    for _ in range(20):
        governor.observe(0.012)
    assert not governor.slowed


def test_a_quick_etcd_is_not_slow_because_it_was_quicker() -> None:
    governor = Governor(1000.0, ManualClock())
    governor.calm([0.0001] * 5)
    governor.observe(QUICK_SECONDS)
    assert not governor.slowed
    for _ in range(100):
        governor.observe(1.0)
    assert governor.share == 1 / 32


async def test_only_what_was_asked_for_is_read(etcd: MemoryEtcd) -> None:
    etcd.put(b"/registry/secrets/default/s", b"x")
    etcd.put(b"zzz", b"x")
    spans = ((b"/registry/pods/default/5", b"/registry/pods0"), (b"z", b"\0"))
    keys, _ = await walked(etcd, Progress(spans))
    assert keys == [*ALL[5:], b"zzz"]


def test_spans_are_sorted_and_do_not_overlap() -> None:
    assert spans_of([(b"b", b"c"), (b"a", b"b"), (b"b", b"bb")]) == ((b"a", b"c"),)
    assert spans_of([(b"d", b"e"), (b"a", b"b")]) == ((b"a", b"b"), (b"d", b"e"))
    assert spans_of([(b"b", b"c"), (b"a", b"\0")]) == ((b"a", b"\0"),)
    assert spans_of([(b"b", b"c"), (b"b", b"\0")]) == ((b"b", b"\0"),)
    assert spans_of([EVERYTHING, EVERYTHING]) == (EVERYTHING,)


CHUNK = Chunk([entry(b"%d" % number, b"v") for number in range(10)], 1000)


async def test_where_dealing_with_a_chunk_fails_is_noted_to_the_entry() -> None:
    """A scan that a KMS plugin ends goes on with the very value that it failed at."""
    dealt: list[bytes] = []

    def deal(entries: Iterator[Entry]) -> None:
        for each in entries:
            if each.key == b"4":
                raise KmsUnavailable("away")
            dealt.append(each.key)

    progress = Progress()
    with pytest.raises(KmsUnavailable):
        await take(CHUNK, deal, progress)
    assert dealt == [b"0", b"1", b"2", b"3"]
    assert progress.position == b"3\0"
    assert (progress.keys, progress.bytes) == (4, 400)


async def test_an_interruption_waits_for_the_chunk_in_hand() -> None:
    """Otherwise the token would count it twice, or not at all."""
    going, may_end = threading.Event(), threading.Event()
    dealt: list[bytes] = []

    def deal(entries: Iterator[Entry]) -> None:
        for each in entries:
            if each.key == b"4":
                going.set()
                may_end.wait(100)
            dealt.append(each.key)

    progress = Progress()
    task = asyncio.create_task(take(CHUNK, deal, progress))
    await asyncio.to_thread(going.wait, 100)
    for _ in range(3):
        # People press Ctrl-C more than once.
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The entry in hand, and none after it: each may take a KMS plugin a while.
    assert dealt == [b"0", b"1", b"2", b"3", b"4"]
    assert (progress.keys, progress.position) == (5, b"4\0")
