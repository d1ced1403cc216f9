"""The loop and the watch of one contender, in a time that the test moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from etcdmaint.compaction.compactor import Compactor, Pace
from etcdmaint.compaction.election import Result, State
from etcdmaint.errors import (
    EtcdmaintError,
    MemberUnreachable,
    NoLeader,
    PermissionDenied,
    RevisionCompacted,
    RPCTimeout,
)

from .stepped import Counted, OneWay, SteppedClock, WatchedStore, settle

MINUTES = 60.0
INTERVAL = 5 * MINUTES


@asynccontextmanager
async def compacting(
    *stores: WatchedStore, interval: float = INTERVAL, watch: bool = True
) -> AsyncIterator[tuple[Compactor, SteppedClock, OneWay, Counted]]:
    clock, route, counted = SteppedClock(), OneWay(stores), Counted()
    compactor = Compactor(route, interval, clock, cluster="c0ffee", observer=counted)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(compactor.run(watch=watch))
        await settle()
        try:
            yield compactor, clock, route, counted
        finally:
            task.cancel()


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# The loop


async def test_the_first_round_is_after_one_whole_interval() -> None:
    """C4, C5: and finds nothing to compact to."""
    store = WatchedStore(revision=10)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        assert compactor.state == State(0, 0)
        await clock.advance(INTERVAL - 1)
        assert counted.rounds == []
        await clock.advance(1)
        assert counted.rounds == ["bootstrap"]
        assert compactor.compact_revision == 0
        assert compactor.view().last_won_at == clock.now()


async def test_the_next_interval_begins_when_a_round_is_over() -> None:
    """C4, C6: one round an interval, each to the revision of the tick before."""
    store = WatchedStore(revision=10)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        for _ in range(4):
            store.write(5)
            await clock.advance(INTERVAL)
        assert counted.rounds == ["bootstrap", "won", "won", "won"]
        assert [revision for revision, _ in store.compactions] == [16, 22, 28]
        assert compactor.compact_revision == 28


async def test_what_it_knows_is_monotonic_and_ignores_0() -> None:
    """C19: the key says less than was known: nothing goes back."""
    store = WatchedStore(revision=100)
    store.put(b"90")
    async with compacting(store) as (compactor, clock, _, _counted):
        assert compactor.compact_revision == 0
        await clock.advance(1)
        assert compactor.compact_revision == 90
        for value in (b"0", b"40", b"-5"):
            store.tell(value)
            await settle()
            assert compactor.compact_revision == 90


async def test_no_news_is_not_told_as_news() -> None:
    """C19, C28: an event that is seen twice, and a round that is lost to what the watch had told."""
    store = WatchedStore(revision=100)
    async with compacting(store) as (_, clock, _, counted):
        await clock.advance(1)
        for value in (b"90", b"90", b"80"):
            store.tell(value)
        await clock.advance(INTERVAL)
        assert counted.rounds == ["lost"]
        assert [entry for entry in counted.told if entry[0] == "advanced"] == [("advanced", 90)]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13])
async def test_it_can_be_stopped_at_any_await(turns: int) -> None:
    """C20: also in the middle of a round; the store is as the last RPC left it."""
    store = WatchedStore(revision=10)
    clock, counted = SteppedClock(), Counted()
    compactor = Compactor(OneWay([store]), INTERVAL, clock, observer=counted)
    task = asyncio.create_task(compactor.run())
    await clock.advance(INTERVAL - 0.5)
    waking = asyncio.create_task(clock.advance(1))
    for _ in range(turns):
        await asyncio.sleep(0)
    await stop(task)
    await stop(waking)
    assert task.cancelled()
    assert counted.told[-1][0] == "stopped"
    assert store.watches == 0
    assert clock.sleeping == []


async def test_an_rpc_in_flight_ends_with_it() -> None:
    """C20: a hanging call does not keep it."""
    store = WatchedStore(revision=10)
    hanging = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        hanging.set()
        await asyncio.Event().wait()

    store.txn = hang  # type: ignore[assignment,method-assign]
    clock = SteppedClock()
    compactor = Compactor(OneWay([store]), INTERVAL, clock, observer=Counted())
    task = asyncio.create_task(compactor.run(watch=False))
    await clock.advance(INTERVAL)
    assert hanging.is_set()
    await stop(task)
    assert task.cancelled()


async def test_an_interval_of_0_holds_no_rounds_but_watches() -> None:
    """C21."""
    store = WatchedStore(revision=10)
    store.put(b"7")
    async with compacting(store, interval=0.0) as (compactor, clock, _, counted):
        await clock.advance(10 * INTERVAL)
        assert counted.rounds == []
        assert store.txns == []
        assert compactor.compact_revision == 7
        assert not compactor.view().stalled


async def test_a_change_of_interval_begins_the_wait_anew_and_forgets_nothing() -> None:
    """C34, C35: state and view are the same object's, before and after."""
    store = WatchedStore(revision=10)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        await clock.advance(2 * INTERVAL)
        before = compactor.state
        compactor.set_interval(60)
        await clock.advance(59)
        assert compactor.state == before
        await clock.advance(1)
        assert counted.rounds == ["bootstrap", "won", "won"]
        assert compactor.compact_revision == before.revision
        compactor.set_interval(0)
        await clock.advance(INTERVAL)
        assert len(counted.rounds) == 3
        compactor.set_interval(INTERVAL)
        await clock.advance(INTERVAL)
        assert len(counted.rounds) == 4


async def test_a_round_that_fails_is_one_of_many() -> None:
    """C12, C13: told once an interval, and the loop goes on."""
    store = WatchedStore(revision=10)
    async with compacting(store, watch=False) as (compactor, clock, route, counted):
        await clock.advance(2 * INTERVAL)
        store.refuse = lambda rpc: RPCTimeout("late") if rpc == "txn" else None
        await clock.advance(2 * INTERVAL)
        assert isinstance(compactor.view().error, RPCTimeout)
        assert len(route.failures) == 2
        store.refuse = lambda _: None
        await clock.advance(INTERVAL)
        assert counted.rounds == ["bootstrap", "won", "error", "error", "won"]
        assert compactor.view().error is None


async def test_nobody_to_ask_is_an_error_of_the_round() -> None:
    """C38: the state is untouched."""
    store = WatchedStore(revision=10)
    async with compacting(store, watch=False) as (compactor, clock, route, counted):
        await clock.advance(2 * INTERVAL)
        before = compactor.state
        route.away = MemberUnreachable("nobody is there")
        await clock.advance(INTERVAL)
        assert counted.rounds[-1] == "error"
        assert compactor.state == before
        assert compactor.view().error is route.away


async def test_a_round_that_could_not_be_sent_is_held_with_the_next_member() -> None:
    """C12: nothing has left this process, so nothing is asked twice."""
    dead, store = WatchedStore(revision=10), WatchedStore(revision=10)
    dead.refuse = lambda _: MemberUnreachable("down")
    async with compacting(dead, store, watch=False) as (_, clock, route, counted):
        await clock.advance(2 * INTERVAL)
        assert counted.rounds == ["bootstrap", "won"]
        assert all(isinstance(error, MemberUnreachable) for error in route.failures)


async def test_a_compaction_that_could_not_be_sent_is_not_a_second_election() -> None:
    """C13: the swap is done; asking the next member would be a swap again."""
    broken, other = WatchedStore(revision=10), WatchedStore(revision=10)
    broken.refuse = lambda rpc: MemberUnreachable("gone") if rpc == "compact" else None
    async with compacting(broken, other, watch=False) as (compactor, clock, _, counted):
        await clock.advance(2 * INTERVAL)
        assert counted.rounds == ["bootstrap", "error"]
        assert other.txns == []
        assert compactor.state == State(2, broken.revision)


async def test_a_younger_store_begins_a_new_view() -> None:
    """C15, C19: what was compacted in the store before says nothing about this one."""
    store = WatchedStore(revision=1000)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        await clock.advance(3 * INTERVAL)
        assert compactor.compact_revision > 1000
        store.revision, store.kv, store.compacted = 500, None, 0
        await clock.advance(INTERVAL)
        assert (compactor.state, compactor.compact_revision) == (State(), 0)
        await clock.advance(2 * INTERVAL)
        assert counted.rounds[-2:] == ["bootstrap", "won"]
        assert 500 < compactor.compact_revision < 510


# The watch


async def test_it_watches_from_the_revision_that_it_has_read() -> None:
    """C22, C30: a second before the first try; then every other contender's round is seen at once."""
    store = WatchedStore(revision=41)
    store.put(b"30")
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(0.9)
        assert store.started_at == []
        await clock.advance(0.1)
        assert store.started_at == [42]
        assert compactor.compact_revision == 30
        store.tell(b"35")
        await settle()
        view = compactor.view()
        assert (view.revision, view.clock, view.won_last) == (35, 2, False)
        assert view.last_seen_at == clock.now()


async def test_a_watch_that_ends_begins_again_after_a_second() -> None:
    """C22, C24, C28: with a fresh read, from its revision; an event seen twice is harmless."""
    store = WatchedStore(revision=41)
    store.put(b"30")
    async with compacting(store) as (compactor, clock, route, _):
        await clock.advance(1)
        store.end_watch(RevisionCompacted("gone", compact_revision=40))
        await settle()
        assert store.watches == 0
        store.put(b"41")
        await clock.advance(2)
        assert store.started_at == [42, 43]
        assert compactor.compact_revision == 41
        assert isinstance(route.failures[0], RevisionCompacted)


async def test_a_key_that_is_not_there_is_revision_0() -> None:
    """C23: and is watched."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(1)
        assert (compactor.compact_revision, store.started_at) == (0, [41])


async def test_rubbish_in_the_key_is_read_again_each_second_and_not_watched() -> None:
    """C23."""
    store = WatchedStore(revision=41)
    store.put(b"x")
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(5)
        assert store.started_at == []
        store.put(b"40")
        await clock.advance(1)
        assert store.started_at == [43]
        assert compactor.compact_revision == 40


async def test_of_several_events_the_last_counts() -> None:
    """C25, C26: and a message without any is a sign of life, no more."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(1)
        store.tell()
        store.tell(b"40", b"7", b"12")
        await settle()
        assert compactor.compact_revision == 12


async def test_a_deleted_key_changes_nothing_that_was_known() -> None:
    """C27: but its clock stands at 0."""
    store = WatchedStore(revision=41)
    store.put(b"30")
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(1)
        store.tell(None)
        await settle()
        assert (compactor.compact_revision, compactor.view().clock) == (30, 0)
        store.tell(b"42")
        await settle()
        assert compactor.compact_revision == 42


async def test_its_own_round_is_known_for_its_own() -> None:
    """C30: whichever comes first, the answer or the event."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(INTERVAL)
        assert compactor.view().won_last is True
        store.tell(b"1")
        await settle()
        assert compactor.view().won_last is False


async def test_a_version_that_coincides_is_not_its_own() -> None:
    """C17, C30: the key was deleted and made anew by somebody else."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(INTERVAL)
        assert (compactor.view().clock, compactor.view().won_last) == (1, True)
        store.tell(None)
        store.tell(b"1")
        await settle()
        assert (compactor.view().clock, compactor.view().won_last) == (1, False)


async def test_its_own_round_is_never_taken_for_anothers_meanwhile() -> None:
    """C30: the watch tells of the swap while the answer to it is still on its way."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, _counted):
        await clock.advance(INTERVAL)
        swap, answer = store.txn, asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            done = await swap(*arguments)
            store.told()
            await answer.wait()
            return done

        store.txn = lambda *a, timeout=None: slow(*a)  # type: ignore[method-assign]
        await clock.advance(INTERVAL)
        assert (compactor.view().clock, compactor.view().won_last) == (2, True)
        answer.set()
        await settle()
        assert (compactor.view().clock, compactor.view().won_last) == (2, True)


async def test_a_cluster_that_is_away_is_watched_less_and_less_often() -> None:
    """C22: no hot loop, nor where watches break at once; after a while of watching, a second is enough."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (_, clock, route, _counted):
        route.away = NoLeader("away")
        await clock.advance(200)
        assert 5 < route.asked < 15
        route.away = None
        await clock.advance(61)
        assert store.watches == 1
        store.end_watch()
        await clock.advance(1)
        assert store.watches == 1
        begun = len(store.started_at)
        for _ in range(200):
            store.end_watch()
            await clock.advance(1)
        assert len(store.started_at) - begun < 15


async def test_whoever_may_not_read_the_key_asks_no_more_often_than_once_an_interval() -> None:
    """C22: each time with a new login, perhaps, which costs etcd more than a round."""
    store = WatchedStore(revision=41)
    store.refuse = lambda _: PermissionDenied("no")
    async with compacting(store) as (compactor, clock, route, _):
        await clock.advance(10 * INTERVAL)
        assert route.asked <= 2 * 10 + 1
        store.refuse = lambda _: None
        await clock.advance(3 * INTERVAL)
        assert (store.watches, compactor.view().last_result) == (1, Result.WON)


@pytest.mark.parametrize(
    "error", [PermissionDenied("no"), NoLeader("away"), MemberUnreachable("down")]
)
async def test_no_error_is_logged_more_often_than_once_an_interval(
    error: EtcdmaintError, caplog: pytest.LogCaptureFixture
) -> None:
    """C12, C22, C24: whatever goes on failing."""
    caplog.set_level(logging.WARNING, "etcdmaint")
    store = WatchedStore(revision=41)
    async with compacting(store) as (_, clock, route, _counted):
        route.away = error
        await clock.advance(10 * INTERVAL)
    assert 5 <= len(caplog.records) <= 11


# The view


async def test_it_has_stalled_after_more_than_two_intervals_without_advance() -> None:
    """C7: a contender that dies leaves a gap shorter than that."""
    store = WatchedStore(revision=41)
    async with compacting(store, watch=False) as (compactor, clock, route, _):
        await clock.advance(2 * INTERVAL)
        advanced = clock.now()
        route.away = NoLeader("away")
        await clock.advance(2 * INTERVAL)
        assert not compactor.view().stalled
        await clock.advance(Pace().stall_grace + 1)
        assert compactor.view().stalled
        assert compactor.view().advanced_at == advanced
        route.away = None
        await clock.advance(INTERVAL)
        assert not compactor.view().stalled


async def test_what_it_has_only_announced_itself_is_no_advance() -> None:
    """C8, C13, C30: the watch tells of the swap; that the compaction failed only its own round knows."""
    store = WatchedStore(revision=41)
    async with compacting(store) as (compactor, clock, _, counted):
        await clock.advance(2 * INTERVAL)
        known, swap = compactor.compact_revision, store.txn

        async def telling(*arguments: Any) -> Any:
            done = await swap(*arguments)
            store.told()
            for _ in range(5):
                await asyncio.sleep(0)
            return done

        store.txn = lambda *a, timeout=None: telling(*a)  # type: ignore[method-assign]  # replaced for this test
        store.refuse = lambda rpc: RPCTimeout("late") if rpc == "compact" else None
        await clock.advance(2 * INTERVAL)
        # Read afresh, as after a broken stream: it is still our own.
        store.end_watch()
        await clock.advance(INTERVAL)
        assert counted.rounds[2:] == ["error"] * 3
        view = compactor.view()
        assert (view.stalled, view.revision, view.won_last) == (True, known, True)
        store.tell(b"%d" % store.revision)
        await settle()
        assert not compactor.view().stalled


async def test_a_stall_is_over_when_something_is_compacted_and_not_before() -> None:
    """C34: not by asking for another interval."""
    store = WatchedStore(revision=41)
    async with compacting(store, watch=False) as (compactor, clock, route, _):
        await clock.advance(2 * INTERVAL)
        route.away = NoLeader("away")
        await clock.advance(3 * INTERVAL)
        for interval in (10 * INTERVAL, 60.0, INTERVAL):
            compactor.set_interval(interval)
            assert compactor.view().stalled
            await clock.advance(30)
            assert compactor.view().stalled
        route.away = None
        await clock.advance(INTERVAL)
        assert not compactor.view().stalled


@pytest.mark.parametrize("key", [b"600", None])
async def test_a_restored_store_has_time_to_begin_anew(key: bytes | None) -> None:
    """C15: one round to see that it is younger, one to look, one to compact; that is no stall."""
    store = WatchedStore(revision=1000)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        await clock.advance(3 * INTERVAL)
        store.revision, store.kv, store.compacted = 700, None, 600
        if key is not None:
            store.put(key)
        for _ in range(3 * 10):
            await clock.advance(INTERVAL / 10)
            assert not compactor.view().stalled
        assert counted.rounds[-1] == "won"
        # What the key said when it was restored is no news.
        told = [entry for entry in counted.told if entry[0] == "advanced"]
        assert told[-1] == ("advanced", compactor.compact_revision)
        assert told[-2] == ("advanced", 1002)


async def test_what_was_so_before_it_looked_has_no_time() -> None:
    """C19: a key of last week says what is compacted, not that somebody is at it."""
    store = WatchedStore(revision=1000)
    store.put(b"900")
    async with compacting(store) as (compactor, clock, _, counted):
        await clock.advance(1)
        view = compactor.view()
        assert (view.revision, view.clock) == (900, 1)
        assert (view.advanced_at, view.last_seen_at) == (None, None)
        assert [entry for entry in counted.told if entry[0] == "advanced"] == []
        store.tell(b"950")
        await settle()
        assert compactor.view().advanced_at == compactor.view().last_seen_at == clock.now()


async def test_it_has_not_stalled_before_it_has_begun() -> None:
    """C4: on a machine that has been up for long, and while nobody runs it yet."""
    clock = SteppedClock()
    clock.time = 1e6
    compactor = Compactor(OneWay([WatchedStore()]), INTERVAL, clock, observer=Counted())
    assert not compactor.view().stalled
    await clock.advance(2 * INTERVAL)
    assert not compactor.view().stalled


async def test_it_has_not_stalled_while_others_compact() -> None:
    """C30."""
    store = WatchedStore(revision=41)
    store.refuse = lambda rpc: RPCTimeout("late") if rpc == "txn" else None
    async with compacting(store) as (compactor, clock, _, _counted):
        for _ in range(8):
            await clock.advance(INTERVAL)
            store.tell(b"%d" % store.revision)
        await settle()
        assert not compactor.view().stalled
        assert compactor.view().last_result is Result.ERROR


async def test_times_are_those_of_what_happened() -> None:
    store = WatchedStore(revision=41)
    async with compacting(store, watch=False) as (compactor, clock, _, counted):
        await clock.advance(2 * INTERVAL)
        won = clock.now()
        store.put(b"1")
        await clock.advance(INTERVAL)
        view = compactor.view()
        assert (view.last_won_at, view.won_last) == (won, False)
        assert view.last_seen_at == won + timedelta(seconds=INTERVAL)
        assert ("advanced", 42) in counted.told
