"""Watches: what they tell, and that they never just stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Tls
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.types import prefix_end
from etcdmaint.etcd.watch import Event, EventKind, Watch
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.member import Member
from tests.controlplane.tls import ClusterTls
from tests.etcd.dialling import Calls, client_of, logged_in, until

pytestmark = pytest.mark.etcd


@pytest.fixture(params=["3.7", "3.6", "3.5"])
def single(request: pytest.FixtureRequest, etcd_cluster_factory: EtcdClusterFactory) -> EtcdCluster:
    """One member of each release."""
    return etcd_cluster_factory(size=1, version=request.param)


async def next_events(watch: Watch, count: int) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(30):
        async for batch in watch:
            found += batch.events
            if len(found) >= count:
                return found
    return found


async def watchers(member: Member) -> float:
    return await asyncio.to_thread(member.metric, "etcd_debugging_mvcc_watcher_total")


async def test_changes_come_in_order_from_the_revision_asked_for(single) -> None:
    async with client_of(single.members[0]) as client:
        first = (await client.put(b"w/a", b"1")).header.revision
        await client.put(b"other", b"x")
        await client.put(b"w/a", b"2")
        async with client.watch(b"w/", prefix_end(b"w/"), start_revision=first) as watch:
            assert watch.header.revision == first + 2
            await client.delete_range(b"w/a")
            events = await next_events(watch, 3)
    assert [(e.kind, e.kv.key, e.kv.value, e.kv.mod_revision) for e in events] == [
        (EventKind.PUT, b"w/a", b"1", first),
        (EventKind.PUT, b"w/a", b"2", first + 2),
        (EventKind.DELETE, b"w/a", b"", first + 3),
    ]
    assert [event.kv.version for event in events] == [1, 2, 0]


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_progress_notice_says_up_to_where_everything_has_been_seen(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    flag = "watch-progress-notify-interval=100ms"
    cluster = etcd_cluster_factory(
        size=1,
        version=version,
        extra_arguments=[f"--experimental-{flag}" if version == "3.5" else f"--{flag}"],
    )
    async with (
        client_of(cluster.members[0]) as client,
        client.watch(b"w", progress_notify=True) as watch,
    ):
        head = (await client.put(b"other", b"x")).header.revision
        async with asyncio.timeout(20):
            batch = await anext(watch)
            while batch.header.revision < head:
                batch = await anext(watch)
        assert batch.events == ()


async def test_a_watch_from_a_compacted_revision_says_what_the_oldest_is(single) -> None:
    """C24: raised as RevisionCompacted, with where to begin again."""
    async with client_of(single.members[0]) as client:
        for _ in range(5):
            head = (await client.put(b"w", b"v")).header.revision
        await client.compact(head - 1, physical=True)
        with pytest.raises(errors.RevisionCompacted) as gone:
            async with client.watch(b"w", start_revision=2) as watch:
                await next_events(watch, 1)
        assert gone.value.compact_revision == head - 1
        async with client.watch(b"w", start_revision=gone.value.compact_revision) as watch:
            assert len(await next_events(watch, 2)) == 2


async def test_leaving_a_watch_ends_it_on_the_server_whatever_the_reason(single) -> None:
    member = single.members[0]
    async with client_of(member) as client:
        async with client.watch(b"w"):
            assert await watchers(member) == 1
        await until(lambda: no_watcher(member))

        async def wait_for_ever() -> None:
            async with client.watch(b"w") as watch:
                await anext(watch)

        waiting = asyncio.ensure_future(wait_for_ever())

        async def begun() -> bool:
            return await watchers(member) == 1

        await until(begun)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: no_watcher(member))
        assert (await client.put(b"w", b"still works")).header.revision > 0


async def no_watcher(member: Member) -> bool:
    return await watchers(member) == 0


async def iterate(client: MemberClient) -> errors.EtcdError | None:
    try:
        async with client.watch(b"w") as watch:
            async for _ in watch:
                pass
    except errors.EtcdError as failure:
        return failure
    return None


async def test_a_member_that_dies_ends_its_watches(single) -> None:
    member = single.members[0]
    async with client_of(member) as client, asyncio.TaskGroup() as group:
        ended = group.create_task(iterate(client))

        async def begun() -> bool:
            return await watchers(member) == 1

        await until(begun)
        member.kill()
        assert type(await ended) is errors.ConnectionLost


async def test_closing_the_client_ends_a_watch_with_an_error(single) -> None:
    member = single.members[0]
    client = client_of(member)
    async with asyncio.TaskGroup() as group:
        ended = group.create_task(iterate(client))

        async def begun() -> bool:
            return await watchers(member) == 1

        await until(begun)
        await client.close()
        assert type(await ended) is errors.ConnectionLost


async def test_a_frozen_member_ends_a_watch_on_which_nothing_happens(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C29: the pings go on for as long as a watch is open."""
    cluster = etcd_cluster_factory(size=1, extra_arguments=["--grpc-keepalive-min-time=100ms"])
    member = cluster.members[0]
    async with client_of(member, keepalive=1.0) as client, asyncio.TaskGroup() as group:
        ended = group.create_task(iterate(client))

        async def begun() -> bool:
            return await watchers(member) == 1

        await until(begun)
        member.pause()
        async with asyncio.timeout(20):
            assert type(await ended) is errors.ConnectionLost
        member.resume()


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_member_cut_off_from_the_others_ends_a_watch_rather_than_going_silent(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """C29: require-leader, at the start and afterwards."""
    cluster = etcd_cluster_factory(version=version)
    member = cluster.followers()[0]
    async with client_of(member) as client, asyncio.TaskGroup() as group:
        ended = group.create_task(iterate(client))

        async def begun() -> bool:
            return await watchers(member) == 1

        await until(begun)
        for other in cluster.members:
            if other is not member:
                other.kill()
        async with asyncio.timeout(60):
            assert type(await ended) is errors.NoLeader
        # gRPC loses the status of a stream that is refused while it is still written to.
        refused = [type(await iterate(client)) for _ in range(50)]
        assert set(refused) == {errors.NoLeader}


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_watch_needs_the_same_credentials_as_a_read_and_renews_its_token(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path, version: str
) -> None:
    """D50: refused and expired are told apart here, too, where etcd puts them into the stream."""
    tls = ClusterTls(tmp_path, client_certificates=False)
    cluster = etcd_cluster_factory(size=1, version=version, tls=tls)
    cluster.enable_auth(users={"powerless": ("p", [])})
    member = cluster.members[0]
    async with client_of(member, Access(tls=Tls(tls.authority.certificate))) as client:
        assert type(await iterate(client)) is errors.AuthenticationRequired
    async with client_of(member, logged_in(tls, "powerless", "p")) as client:
        assert type(await iterate(client)) is errors.PermissionDenied
    calls = Calls()
    async with client_of(member, logged_in(tls, "root", "root"), observer=calls) as client:
        await client.status()
        cluster.leader().gateway.post(
            "/v3/auth/user/changepw", {"name": "root", "password": "root"}
        )
        async with client.watch(b"w") as watch:
            await client.put(b"w", b"v")
            assert len(await next_events(watch, 1)) == 1
    assert calls.count("Authenticate") == 2


async def test_a_watch_on_a_closed_port_says_at_once_that_nobody_is_there(single) -> None:
    single.members[0].kill()
    async with client_of(single.members[0]) as client:
        assert type(await iterate(client)) is errors.MemberUnreachable
