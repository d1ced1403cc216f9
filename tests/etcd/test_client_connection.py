"""What becomes of a call when the member, or the way to it, goes away."""

from __future__ import annotations

import asyncio

import pytest

from etcdmaint import errors
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.types import Compare, PutOp
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.member import Member
from tests.etcd.dialling import Calls, client_of, freeze, until

pytestmark = pytest.mark.etcd

MIB = 1 << 20


@pytest.fixture
def single(etcd_cluster_factory: EtcdClusterFactory) -> EtcdCluster:
    """One member with enough in it to hold a Defragment."""
    cluster = etcd_cluster_factory(size=1)
    cluster.fill(bytes_live=8 * MIB)
    return cluster


async def defragmenting(member: Member) -> None:
    async def inflight() -> bool:
        return await asyncio.to_thread(member.defragmenting)

    await until(inflight)


async def test_a_member_that_dies_in_mid_call_leaves_the_outcome_unknown(single) -> None:
    """D33: ConnectionLost, not MemberUnreachable; and the next call finds nobody there."""
    member = single.members[0]
    async with client_of(member) as client, asyncio.TaskGroup() as group:
        await client.status()
        with single.hold_snapshot(member):
            sent = group.create_task(outcome(client))
            await defragmenting(member)
            member.kill()
        assert type(await sent) is errors.ConnectionLost
        with pytest.raises(errors.MemberUnreachable, match="connection refused"):
            await client.defragment(30)


async def outcome(client: MemberClient, timeout: float = 60) -> errors.EtcdError | None:
    try:
        await client.defragment(timeout)
    except errors.EtcdError as failure:
        return failure
    return None


async def test_a_member_killed_before_the_call_was_sent_carried_nothing_out(single) -> None:
    """D33: even where this end has not yet heard that the connection is gone."""
    member = single.members[0]
    async with client_of(member) as client:
        header = (await client.status()).header
        client.expect(Identity(header.cluster_id, header.member_id))
        for _ in range(10):
            member.kill()
            with pytest.raises(errors.MemberUnreachable):
                await client.defragment(30)
            member.start()
            await client.status()
    assert member.defrag_count() == 0


async def test_a_timeout_leaves_the_member_at_it_and_the_client_usable(single) -> None:
    """D33: RPCTimeout at the deadline; the one Defragment goes on and ends; none is queued."""
    member = single.members[0]
    async with client_of(member, timeout=2.0) as client:
        with single.hold_snapshot(member):
            assert type(await outcome(client, timeout=2.0)) is errors.RPCTimeout
            assert member.defragmenting()
            # The Status that would go before another Defragment blocks: so none is sent.
            header, _ = await client.member_list(linearizable=False)
            client.expect(Identity(header.cluster_id, header.member_id))
            with pytest.raises(errors.MemberUnreachable, match="Defragment was not sent"):
                await client.defragment(30)

        async def idle() -> bool:
            return not await asyncio.to_thread(member.defragmenting)

        await until(idle)
        await client.status()
    assert member.defrag_count() == 1


async def test_a_frozen_host_is_noticed_under_a_long_call_long_before_its_deadline(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D33: by pings; the calls of a live member outlast many of them."""
    cluster = etcd_cluster_factory(size=1, extra_arguments=["--grpc-keepalive-min-time=100ms"])
    cluster.fill(bytes_live=8 * MIB)
    member = cluster.members[0]
    loop = asyncio.get_running_loop()
    async with client_of(member, keepalive=1.0) as client, asyncio.TaskGroup() as group:
        with cluster.hold_snapshot(member):
            sent = group.create_task(outcome(client))
            await defragmenting(member)
            # Some keepalive intervals in which nothing but pings is exchanged.
            await asyncio.wait([sent], timeout=6.0)
            assert not sent.done()
            begun = loop.time()
            await freeze(member)
            assert type(await sent) is errors.ConnectionLost
            assert loop.time() - begun < 20
            member.resume()


async def test_pings_at_the_default_rate_are_not_too_many_for_etcd(single) -> None:
    """etcd hangs up (`too_many_pings`) on a client that pings more often than every 5 s."""
    member = single.members[0]
    # As long as it takes etcd to lose patience: two strikes, at 5 s each.
    async with client_of(member, keepalive=5.5) as client, asyncio.TaskGroup() as group:
        with single.hold_snapshot(member):
            sent = group.create_task(outcome(client))
            await asyncio.wait([sent], timeout=23.0)
            assert not sent.done()
        assert await sent is None


async def test_a_member_that_hangs_costs_no_more_than_the_timeout(single) -> None:
    member = single.members[0]
    loop = asyncio.get_running_loop()
    await freeze(member)
    async with client_of(member) as client:
        begun = loop.time()
        with pytest.raises(errors.MemberUnreachable, match=r"no connection within 0\.4 s"):
            await client.status(timeout=0.4)
        # Without its own timeout it would be the client's, of 5 s.
        assert loop.time() - begun < 4
        member.resume()
        await client.status()
        await freeze(member)
        begun = loop.time()
        with pytest.raises(errors.RPCTimeout, match=r"no answer within 0\.4 s"):
            await client.status(timeout=0.4)
        assert loop.time() - begun < 4
    member.resume()


async def test_a_hundred_calls_share_one_connection_and_one_attempt_to_connect(single) -> None:
    member = single.members[0]
    async with client_of(member) as client:
        await asyncio.gather(*(client.put(b"k/%d" % n, b"v") for n in range(100)))
    async with client_of(member) as client:
        await freeze(member)
        results = await asyncio.gather(
            *(client.status(timeout=0.2 + n / 100) for n in range(20)), return_exceptions=True
        )
        member.resume()
        assert {type(result) for result in results} == {errors.MemberUnreachable}
        await client.status()


async def test_a_cancelled_call_is_cancelled_and_the_next_one_works(single) -> None:
    member = single.members[0]
    calls = Calls()
    async with client_of(member, observer=calls) as client:
        await client.status()
        with single.hold_snapshot(member):
            sent = asyncio.ensure_future(client.defragment(60))
            await defragmenting(member)
            sent.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sent
        await client.status(timeout=20)
    assert calls.seen == [("Status", "OK"), ("Defragment", "CANCELLED"), ("Status", "OK")]


async def test_closing_a_client_ends_its_calls_with_an_error_and_not_with_a_cancellation(
    single,
) -> None:
    """Who closes is not who waits: the waiting task is not cancelled by it."""
    member = single.members[0]
    client = client_of(member)
    async with asyncio.TaskGroup() as group:
        with single.hold_snapshot(member):
            sent = group.create_task(outcome(client))
            await defragmenting(member)
            await client.close()
            assert type(await sent) is errors.ConnectionLost
    with pytest.raises(errors.MemberUnreachable, match="this client is closed"):
        await client.status()


async def test_a_member_that_restarts_is_found_again_by_the_same_client(single) -> None:
    member = single.members[0]
    async with client_of(member) as client:
        first = await client.put(b"k", b"v")
        member.stop()
        member.start()
        assert (await client.range(b"k")).header.revision == first.header.revision
        result = await client.txn([Compare.version(b"k", 1)], [PutOp(b"k", b"w")])
        assert result.succeeded


async def test_a_polite_stop_in_mid_call_leaves_the_outcome_unknown_too(single) -> None:
    """D33: etcd says GOAWAY, waits for its calls for a while, and goes."""
    member = single.members[0]
    async with client_of(member) as client, asyncio.TaskGroup() as group:
        with single.hold_snapshot(member):
            sent = group.create_task(outcome(client))
            await defragmenting(member)
            stopping = group.create_task(asyncio.to_thread(member.server.stop, 2.0))
            # While it says goodbye, other calls must not break the one that waits.
            for _ in range(5):
                with pytest.raises(errors.EtcdError):
                    await client.status(timeout=0.2)
            await stopping
        assert type(await sent) is errors.ConnectionLost


async def test_nothing_is_written_to_stderr_by_grpc(single, capfd) -> None:
    member = single.members[0]
    async with client_of(member, timeout=1.0) as client:
        await client.status()
        member.kill()
        with pytest.raises(errors.EtcdError):
            await client.status()
    assert capfd.readouterr().err == ""
