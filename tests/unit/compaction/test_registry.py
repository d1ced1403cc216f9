"""One compactor a cluster, by etcd's own ID: who holds it, how often it works, and by which connection.

The clusters here are a name and a store in memory; tests/etcd/test_compaction_registry.py has real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from etcdmaint.compaction.line import Line
from etcdmaint.compaction.registry import Registry
from etcdmaint.errors import (
    AuthenticationFailed,
    EtcdmaintError,
    MemberUnreachable,
    PermissionDenied,
    RPCTimeout,
    WrongMember,
)
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import Member

from .stepped import Counted, SteppedClock, WatchedStore, settle


@dataclass
class Cluster:
    """What a registry sees of a connected cluster."""

    store: WatchedStore
    cluster_id: int = 0xC0FFEE
    closed: bool = False
    refreshes: int = 0
    gone: EtcdmaintError | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        return (Member(1, "a"), Member(2, "b", is_learner=True))

    def client(self, member_id: int) -> WatchedStore:
        assert member_id == 1, "a learner was asked"
        return self.store

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.gone is not None:
            raise self.gone

    async def close(self) -> None:
        self.closed = True


@dataclass
class Way:
    """A holder's way to connect; every connection that it made."""

    store: WatchedStore
    cluster_id: int = 0xC0FFEE
    made: list[Cluster] = field(default_factory=list)
    failure: EtcdmaintError | None = None

    async def __call__(self) -> ClusterClient:
        if self.failure is not None:
            raise self.failure
        self.made.append(Cluster(self.store, self.cluster_id))
        return cast(ClusterClient, self.made[-1])


@asynccontextmanager
async def registry() -> AsyncIterator[tuple[Registry, SteppedClock, Counted]]:
    clock, counted = SteppedClock(), Counted()
    kept = Registry(clock, observer=counted)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(kept.run())
        await settle()
        yield kept, clock, counted
        task.cancel()


async def test_one_cluster_has_one_compactor_by_whatever_name_it_is_reached() -> None:
    """C31, C33: endpoints, their order and the credentials do not matter, etcd's ID does."""
    store, other = WatchedStore(revision=10), WatchedStore(revision=10)
    async with registry() as (kept, clock, counted):
        first = await kept.hold(Way(store), 300)
        second = await kept.hold(Way(store), 300)
        third = await kept.hold(Way(other, cluster_id=0xBEEF), 300)
        assert first.compactor is second.compactor
        assert third.compactor is not first.compactor
        assert set(kept.compactors()) == {0xC0FFEE, 0xBEEF}
        await clock.advance(300)
        assert counted.rounds == ["bootstrap", "bootstrap"]


async def test_the_shortest_interval_holds_and_then_the_next_shortest() -> None:
    """C34: whoever came first; and letting go counts as well."""
    store = WatchedStore(revision=10)
    async with registry() as (kept, _, _counted):
        slow = await kept.hold(Way(store), 600)
        assert slow.compactor.interval == 600
        fast = await kept.hold(Way(store), 60)
        middle = await kept.hold(Way(store), 300)
        assert slow.compactor.interval == 60
        await fast.release()
        assert slow.compactor.interval == 300
        middle.set_interval(900)
        assert slow.compactor.interval == 600
        await slow.release()
        assert middle.compactor.interval == 900


async def test_an_earlier_holders_view_never_freezes() -> None:
    """C35: whatever replaces interval or connection, and the replaced connection is closed."""
    store = WatchedStore(revision=10)
    slow_way, fast_way = Way(store), Way(store)
    async with registry() as (kept, clock, _):
        slow = await kept.hold(slow_way, 300)
        await clock.advance(300)
        fast = await kept.hold(fast_way, 60)
        assert [one.closed for one in slow_way.made] == [True]
        seen = []
        for _ in range(3):
            store.write(10)
            await clock.advance(60)
            seen.append(slow.compact_revision)
        assert seen == sorted(set(seen))
        assert slow.compact_revision == fast.compact_revision > 0
        await fast.release()
        await clock.advance(300)
        assert slow.compact_revision > seen[-1]


async def test_the_state_outlives_a_change_of_interval() -> None:
    """C34, C35: the election goes on where it stood, so no interval is lost."""
    store = WatchedStore(revision=10)
    async with registry() as (kept, clock, counted):
        await kept.hold(Way(store), 300)
        await clock.advance(600)
        await kept.hold(Way(store), 60)
        await clock.advance(60)
        assert counted.rounds == ["bootstrap", "won", "won"]


async def test_the_last_to_let_go_ends_it_and_letting_go_twice_is_once() -> None:
    """C36."""
    store = WatchedStore(revision=10)
    way = Way(store)
    async with registry() as (kept, clock, counted):
        first = await kept.hold(way, 300)
        second = await kept.hold(way, 300)
        await settle()
        await first.release()
        await first.release()
        assert kept.compactors() != {}
        await second.release()
        assert kept.compactors() == {}
        assert all(one.closed for one in way.made)
        assert counted.told[-1][0] == "stopped"
        await clock.advance(900)
        assert counted.rounds == []
        assert store.watches == 0
        third = await kept.hold(way, 300)
        assert third.compactor is not second.compactor


async def test_a_holder_that_leaves_does_not_stop_it_for_the_others() -> None:
    """C37: not even the one that brought the connection."""
    store = WatchedStore(revision=10)
    async with registry() as (kept, clock, counted):
        first = await kept.hold(Way(store), 300)
        await kept.hold(Way(store), 300)
        await first.release()
        await clock.advance(600)
        assert counted.rounds == ["bootstrap", "won"]


async def test_who_cannot_connect_changes_nothing() -> None:
    """C38."""
    store = WatchedStore(revision=10)
    async with registry() as (kept, _, _counted):
        held = await kept.hold(Way(store), 300)
        with pytest.raises(MemberUnreachable):
            await kept.hold(Way(store, failure=MemberUnreachable("nobody")), 10)
        assert held.compactor.interval == 300
        assert len(kept.compactors()) == 1


async def test_who_is_cancelled_while_it_holds_leaves_nothing_behind() -> None:
    """C36, C38: the connection is being looked for afresh at that moment."""
    store = WatchedStore(revision=10)
    first, second = Way(store), Way(store)
    async with registry() as (kept, clock, _):
        held = await kept.hold(first, 300)
        looking = asyncio.Event()

        async def refresh() -> None:
            looking.set()
            await asyncio.Event().wait()

        first.made[0].refresh = refresh  # type: ignore[method-assign]
        store.refuse = lambda _: RPCTimeout("hangs")
        await clock.advance(300)
        store.refuse = lambda _: None
        await clock.advance(30)
        assert looking.is_set()
        holding = asyncio.create_task(kept.hold(second, 60))
        await settle()
        assert held.compactor.interval == 60
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert held.compactor.interval == 300
        assert second.made[0].closed


async def test_off_is_held_by_nobody() -> None:
    """C32: no compactor and no watch; whoever wants 0 has nothing to let go of."""
    way = Way(WatchedStore())
    async with registry() as (kept, _, _counted):
        with pytest.raises(ValueError, match="0"):
            await kept.hold(way, 0)
        assert (way.made, kept.compactors()) == ([], {})


async def test_a_connection_of_no_use_any_more_is_made_afresh_in_any_holders_way() -> None:
    """C38, C39: the newest first; credentials may have changed since."""
    store = WatchedStore(revision=10)
    old, new = Way(store), Way(store)
    async with registry() as (kept, clock, counted):
        await kept.hold(old, 300)
        await kept.hold(new, 300)
        store.refuse = lambda _: AuthenticationFailed("changed")
        new.failure = AuthenticationFailed("still the old Secret")
        await clock.advance(300)
        store.refuse = lambda _: None
        await clock.advance(600)
        assert len(old.made) > 1
        assert old.made[-1].closed is False
        assert counted.rounds[-1] != "error"


async def test_who_may_less_does_not_keep_the_others_from_compacting() -> None:
    """C37: two newer holders' users may not compact; whoever may is found, and stays."""
    store, refusing = WatchedStore(revision=10), WatchedStore(revision=10)
    refusing.refuse = lambda _: PermissionDenied("no")
    async with registry() as (kept, clock, counted):
        able = await kept.hold(Way(store), 300)
        weak = await kept.hold(Way(refusing), 300)
        await kept.hold(Way(refusing), 300)
        assert able.used not in (able, weak)
        await clock.advance(1800)
        assert able.used is weak.used is able
        assert counted.rounds[-2:] == ["won", "won"]


async def test_a_broken_connection_is_refreshed_before_it_is_made_anew() -> None:
    """C12: members come and go; Secrets are read again only when nobody answers."""
    store = WatchedStore(revision=10)
    way = Way(store)
    async with registry() as (kept, clock, _):
        await kept.hold(way, 300)
        store.refuse = lambda _: MemberUnreachable("down")
        await clock.advance(300)
        assert len(way.made) == 1
        assert way.made[0].refreshes > 0
        way.made[0].gone = MemberUnreachable("all gone")
        await clock.advance(300)
        assert len(way.made) > 1


async def test_after_a_failure_another_voter_is_asked_first() -> None:
    """C12: each in its turn, learners never."""
    stores = {1: WatchedStore(), 3: WatchedStore()}

    class Two(Cluster):
        @property
        def members(self) -> tuple[Member, ...]:
            return (Member(1, "a"), Member(2, "b", is_learner=True), Member(3, "c"))

        def client(self, member_id: int) -> WatchedStore:
            return stores[member_id]

    connected = Two(stores[1])

    async def redial() -> ClusterClient:
        raise AssertionError("not needed")

    line = Line(cast(ClusterClient, connected), redial)
    order = []
    for _ in range(3):
        order.append([id(voter) == id(stores[1]) for voter in await line.voters()])
        line.failed(RPCTimeout("hangs"))
    assert order == [[True, False], [False, True], [True, False]]
    assert connected.refreshes == 2


async def test_a_way_that_leads_elsewhere_is_told_to_its_holder() -> None:
    """C37: restored under a new ID, perhaps; the others' ways are tried."""
    store = WatchedStore(revision=10)
    astray, good = Way(store), Way(store)
    async with registry() as (kept, clock, _):
        steady = await kept.hold(good, 300)
        lost = await kept.hold(astray, 300)
        astray.cluster_id = 0xDEAD
        store.refuse = lambda _: AuthenticationFailed("go on")
        await clock.advance(300)
        assert (lost.astray, steady.astray) == (True, False)
        assert astray.made[-1].closed
        with pytest.raises(WrongMember):
            await lost.dial()


async def test_a_fault_of_ours_with_one_cluster_stays_with_it() -> None:
    """C20: the others go on, and so does it, a while later."""
    bad, good = WatchedStore(revision=10), WatchedStore(revision=10)

    def fault(_: str) -> None:
        raise ZeroDivisionError

    bad.refuse = fault
    async with registry() as (kept, clock, counted):
        await kept.hold(Way(bad, cluster_id=1), 300)
        await kept.hold(Way(good, cluster_id=2), 300)
        await clock.advance(600)
        assert counted.rounds == ["bootstrap", "won"]
        bad.refuse = lambda _: None
        await clock.advance(700)
        assert counted.rounds.count("bootstrap") == 2


async def test_holding_before_it_runs_begins_when_it_runs() -> None:
    store = WatchedStore(revision=10)
    clock, counted = SteppedClock(), Counted()
    kept = Registry(clock, observer=counted)
    way = Way(store)
    await kept.hold(way, 300)
    await clock.advance(900)
    assert counted.rounds == []
    task = asyncio.create_task(kept.run())
    await clock.advance(300)
    assert counted.rounds == ["bootstrap"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert way.made[0].closed
