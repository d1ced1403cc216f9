"""The connection of a run: whom it asks, and that none is left open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from etcdmaint.defrag.link import Link
from etcdmaint.defrag.run import Target
from etcdmaint.errors import MemberUnreachable, WrongMember
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import Member


@dataclass(eq=False)
class Cluster:
    cluster_id: int = 1
    unreachable: frozenset[int] = frozenset()
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    """Until it is set, closing does not come to its end."""

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    @property
    def members(self) -> list[Member]:
        return [Member(i, f"m{i}", is_learner=i == 4) for i in (1, 2, 3, 4)]

    def client(self, member_id: int) -> Any:
        if member_id in self.unreachable:
            raise MemberUnreachable(f"m{member_id} is away")
        return SimpleNamespace(id=member_id)

    async def close(self) -> None:
        self.closing.set()
        await self.hangs.wait()


def link_to(*clusters: Cluster, hanging: int = -1) -> Link:
    for number, cluster in enumerate(clusters):
        if number != hanging:
            cluster.hangs.set()
    coming = iter(clusters)

    async def connect(*_: object, **__: object) -> Any:
        return next(coming)

    return Link(1.0, None, connect)


def target(host: str) -> Target:
    return Target(seeds=(Endpoint(host),))


async def test_another_voter_is_asked_each_time_and_never_a_learner() -> None:
    link = link_to(Cluster())
    await link.follow(target("a"))
    assert {link.client().id for _ in range(3)} == {1, 2, 3}
    assert link.client(prefer=2).id == 2
    assert {link.client(avoid=(1, 3)).id for _ in range(3)} == {2}
    assert {link.client(avoid=(1, 2, 3)).id for _ in range(3)} == {1, 2, 3}


async def test_a_voter_that_cannot_be_reached_is_not_asked() -> None:
    link = link_to(Cluster(unreachable=frozenset({2})), Cluster(unreachable=frozenset({1, 2, 3})))
    await link.follow(target("a"))
    assert {link.client(prefer=2).id for _ in range(4)} == {1, 3}
    await link.follow(target("b"))
    with pytest.raises(MemberUnreachable, match="is away"):
        link.client()


async def test_the_same_way_is_not_gone_twice_and_another_one_closes_the_first() -> None:
    """D51."""
    first, second = Cluster(), Cluster()
    async with link_to(first, second) as link:
        assert await link.follow(target("a")) is await link.follow(target("a"))
        assert await link.follow(target("b")) is second
        assert (first.closed, second.closed) == (True, False)
    assert second.closed


async def test_a_way_to_another_cluster_is_refused_and_closed() -> None:
    """D12."""
    first, second = Cluster(), Cluster(cluster_id=2)
    link = link_to(first, second)
    await link.follow(target("a"))
    with pytest.raises(WrongMember):
        await link.follow(target("b"), stay=True)
    assert (first.closed, second.closed) == (False, True)
    assert link.cluster is first


async def test_one_that_is_left_while_it_changes_over_leaves_no_connection_open() -> None:
    """And at no moment is there none: the slot is kept alive by it meanwhile."""
    first, second = Cluster(), Cluster()
    link = link_to(first, second, hanging=0)
    await link.follow(target("a"))
    following = asyncio.create_task(link.follow(target("b")))
    await first.closing.wait()
    assert link.cluster is second
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await link.close()
    assert second.closed
