"""Every RPC of the client, on each etcd release that is supported."""

from __future__ import annotations

import asyncio

import pytest

from etcdmaint import errors
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.types import (
    Alarm,
    AlarmKind,
    Compare,
    DeleteOp,
    DeleteResult,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    prefix_end,
)
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.processes import wait_until
from tests.etcd.dialling import Calls, client_of

pytestmark = pytest.mark.etcd


@pytest.fixture(params=["3.7", "3.6", "3.5"])
def single(request: pytest.FixtureRequest, etcd_cluster_factory: EtcdClusterFactory) -> EtcdCluster:
    """One member of each release."""
    return etcd_cluster_factory(size=1, version=request.param, quota_backend_bytes=32 * 1024 * 1024)


async def test_a_members_account_of_itself_has_every_field_that_its_release_knows(single) -> None:
    """D12, D21: header, sizes, indexes; quota and storage version from 3.6 on."""
    member = single.members[0]
    modern = single.version != "3.5"
    storage_version = f"{single.version}.0" if modern else ""

    def settled() -> bool:
        answer = member.gateway.post("/v3/maintenance/status", {})
        return answer.get("storageVersion", "") == storage_version

    # A member that has just begun still writes of its own accord, and learns its version from that.
    wait_until(settled, "it knows its storage version")
    async with client_of(member) as client, asyncio.timeout(60):
        told = None
        while told != (told := member.status()):
            status = await client.status()
        header, members = await client.member_list(linearizable=False)
    assert status.header.member_id == status.leader == told.member_id
    assert status.header.cluster_id == header.cluster_id != 0
    assert status.version.startswith(single.version)
    assert status.db_size == told.db_size
    assert 0 < status.db_size_in_use <= status.db_size
    assert status.raft_term == status.header.raft_term == told.raft_term
    assert 0 < status.raft_applied_index <= status.raft_index
    assert status.errors == ()
    assert not status.is_learner
    assert not status.downgrade_enabled
    assert status.db_size_quota == (32 * 1024 * 1024 if modern else 0)
    assert status.storage_version == storage_version
    (row,) = members
    assert row.id == told.member_id
    assert row.name == member.name
    assert row.started
    assert row.client_urls == (member.client_url,)
    assert row.peer_urls == (member.peer_url,)


async def test_keys_are_written_read_compared_and_deleted(single) -> None:
    async with client_of(single.members[0]) as client:
        put = await client.put(b"a/1", b"\x00\xff")
        await client.put(b"a/2", b"two")
        await client.put(b"b", b"")
        found = await client.range(b"a/", prefix_end(b"a/"), limit=1)
        assert [kv.key for kv in found.kvs] == [b"a/1"]
        assert (found.count, found.more) == (2, True)
        (kv,) = found.kvs
        assert (kv.value, kv.version, kv.lease) == (b"\x00\xff", 1, 0)
        assert kv.create_revision == kv.mod_revision == put.header.revision
        assert (await client.range(b"a/", b"\0", count_only=True)).count == 3
        keys = await client.range(b"a/", b"\0", keys_only=True, serializable=True)
        assert [kv.value for kv in keys.kvs] == [b"", b"", b""]
        old = await client.range(b"a/", b"\0", revision=put.header.revision)
        assert [kv.key for kv in old.kvs] == [b"a/1"]
        assert (await client.delete_range(b"a/", prefix_end(b"a/"))).deleted == 2
        assert (await client.range(b"a/1")).kvs == ()


async def test_a_txn_takes_the_branch_that_its_comparison_decides_and_answers_in_order(
    single,
) -> None:
    async with client_of(single.members[0]) as client:
        swap = [PutOp(b"k", b"new"), DeleteOp(b"x"), RangeOp(b"k")]
        won = await client.txn([Compare.version(b"k", 0)], swap, [RangeOp(b"k")])
        assert won.succeeded
        put, deleted, read = won.responses
        assert isinstance(put, PutResult)
        assert isinstance(deleted, DeleteResult)
        assert isinstance(read, RangeResult)
        assert read.kvs[0].value == b"new"
        lost = await client.txn([Compare.version(b"k", 0)], swap, [RangeOp(b"k")])
        assert not lost.succeeded
        (now,) = lost.responses
        assert isinstance(now, RangeResult)
        assert now.kvs[0].version == 1
        assert (
            await client.txn([Compare.mod_revision(b"k", now.kvs[0].mod_revision)], [])
        ).succeeded
        assert (await client.txn([Compare.mod_revision(b"k", 1)], [])).succeeded is False


async def test_a_lease_is_granted_kept_alive_and_revoked_with_its_keys(single) -> None:
    async with client_of(single.members[0]) as client:
        lease, ttl = await client.lease_grant(60)
        assert ttl == 60
        await client.put(b"leased", b"1", lease=lease)
        assert (await client.range(b"leased")).kvs[0].lease == lease
        assert await client.lease_keep_alive(lease) == 60
        await client.lease_revoke(lease)
        assert (await client.range(b"leased")).kvs == ()
        with pytest.raises(errors.LeaseNotFound):
            await client.lease_keep_alive(lease)
        with pytest.raises(errors.LeaseNotFound):
            await client.lease_revoke(lease)
        with pytest.raises(errors.LeaseNotFound):
            await client.put(b"leased", b"1", lease=lease)


async def test_compaction_cuts_the_history_off_and_says_which_revisions_it_cannot(single) -> None:
    async with client_of(single.members[0]) as client:
        for _ in range(5):
            head = (await client.put(b"k", b"v")).header.revision
        await client.compact(head - 1, physical=True)
        assert (await client.range(b"k", revision=head - 1)).count == 1
        with pytest.raises(errors.RevisionCompacted):
            await client.range(b"k", revision=head - 2)
        with pytest.raises(errors.RevisionCompacted):
            await client.compact(head - 1)
        with pytest.raises(errors.FutureRevision):
            await client.compact(head + 100)
        with pytest.raises(errors.FutureRevision):
            await client.range(b"k", revision=head + 100)


async def test_a_defragmentation_is_one_and_the_member_is_asked_who_it_is_before(single) -> None:
    """D12: where an identity is set, one Status goes before the one Defragment."""
    member = single.members[0]
    calls = Calls()
    async with client_of(member) as stranger:
        header = (await stranger.status()).header
    identity = Identity(header.cluster_id, header.member_id)
    async with client_of(member, observer=calls, identity=identity) as client:
        await client.defragment(30)
    assert calls.seen == [("Status", "OK"), ("Defragment", "OK")]
    assert member.defrag_count() == 1


async def test_nothing_that_changes_a_member_is_sent_when_the_last_check_fails(single) -> None:
    """D37: it comes after the member was asked who it is."""
    member = single.members[0]
    calls = Calls()

    def lost() -> None:
        calls.rpc("last check", "", 0.0)
        raise errors.LeadershipLost("another one leads")

    async with client_of(member) as stranger:
        header = (await stranger.status()).header
    identity = Identity(header.cluster_id, header.member_id)
    async with client_of(member, observer=calls, identity=identity) as client:
        with pytest.raises(errors.LeadershipLost):
            await client.defragment(30, last_check=lost)
        with pytest.raises(errors.LeadershipLost):
            await client.move_leader(identity.member_id, last_check=lost)
    assert calls.seen == [("Status", "OK"), ("last check", "")] * 2
    assert member.defrag_count() == 0


async def test_a_defragmentation_is_not_sent_to_a_member_that_is_not_the_one_expected(
    single,
) -> None:
    """D12: another member, and another cluster."""
    member = single.members[0]
    async with client_of(member) as stranger:
        header = (await stranger.status()).header
    for identity in (
        Identity(header.cluster_id, header.member_id ^ 1),
        Identity(header.cluster_id ^ 1, header.member_id),
    ):
        async with client_of(member, identity=identity) as client:
            with pytest.raises(errors.WrongMember, match="answered, not"):
                await client.defragment(30)
            with pytest.raises(errors.WrongMember):
                await client.range(b"k")
    assert member.defrag_count() == 0


async def fill(client: MemberClient) -> None:
    """Write more than the quota holds."""
    for _ in range(60):
        await client.put(b"k", b"x" * 1_000_000)


async def test_space_that_is_used_up_is_told_from_a_message_that_is_too_large(single) -> None:
    """D64, D40: both are RESOURCE_EXHAUSTED or near it; the alarm is listed and disarmed by ID."""
    member = single.members[0]
    async with client_of(member) as client:
        with pytest.raises(errors.MessageTooLarge):
            await client.put(b"k", b"x" * 1_700_000)
        with pytest.raises(errors.SpaceExceeded):
            await fill(client)
        assert await client.alarms() == (Alarm(member.id, AlarmKind.NOSPACE),)
        with pytest.raises(errors.SpaceExceeded):
            await client.lease_grant(10)
        with pytest.raises(errors.SpaceExceeded):
            await client.txn([Compare.version(b"none", 5)], [PutOp(b"a", b"b")])
        assert f"memberID:{member.id}" in "".join((await client.status()).errors)
        head = (await client.range(b"k")).header.revision
        await client.compact(head, physical=True)
        await client.defragment(30)
        await client.disarm(member.id ^ 1, AlarmKind.NOSPACE)
        assert len(await client.alarms()) == 1
        await client.disarm(member.id, AlarmKind.NOSPACE)
        assert await client.alarms() == ()
        await client.put(b"k", b"small")


async def test_an_answer_of_many_megabytes_is_received(single) -> None:
    """More than gRPC's own 4 MiB."""
    async with client_of(single.members[0]) as client:
        for number in range(8):
            await client.put(b"big/%d" % number, b"x" * 1_000_000)
        found = await client.range(b"big/", prefix_end(b"big/"))
    assert sum(len(kv.value) for kv in found.kvs) == 8_000_000


async def test_leadership_goes_to_nobody_that_cannot_have_it(single) -> None:
    """D31."""
    member = single.members[0]
    async with client_of(member) as client:
        await client.move_leader(member.id)
        with pytest.raises(errors.BadTransferee):
            await client.move_leader(member.id ^ 1)


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_leadership_moves_only_by_the_leaders_own_doing(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """D31."""
    cluster = etcd_cluster_factory(version=version)
    leader = cluster.leader()
    follower, other = cluster.followers()
    async with client_of(follower) as client:
        with pytest.raises(errors.NotLeader):
            await client.move_leader(other.id)
    async with client_of(leader) as client:
        await client.move_leader(other.id)
        assert (await client.status()).leader == other.id


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_learner_says_that_it_is_one_and_refuses_what_it_cannot_answer(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """D30: code 14 on 3.5, 9 since: the same class, and not retryable."""
    cluster = etcd_cluster_factory(size=1, version=version)
    learner = cluster.add_member(learner=True)
    async with client_of(learner) as client:
        assert (await client.status()).is_learner
        await client.range(b"k", serializable=True)
        for refused in (
            client.defragment(5),
            client.member_list(linearizable=False),
            client.range(b"k"),
            client.alarms(),
            client.put(b"k", b"v"),
        ):
            with pytest.raises(errors.LearnerRefused) as refusal:
                await refused
            assert not refusal.value.retryable
    async with client_of(cluster.leader()) as client:
        _, members = await client.member_list()
        assert [row.is_learner for row in members if row.id == learner.id] == [True]
        with pytest.raises(errors.BadTransferee):
            await client.move_leader(learner.id)


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_corrupt_cluster_is_told_from_every_other_refusal(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """D15."""
    cluster = etcd_cluster_factory(size=1, version=version)
    member = cluster.members[0]
    member.gateway.post(
        "/v3/maintenance/alarm", {"action": "ACTIVATE", "memberID": member.id, "alarm": "CORRUPT"}
    )
    async with client_of(member) as client:
        assert await client.alarms() == (Alarm(member.id, AlarmKind.CORRUPT),)
        with pytest.raises(errors.ClusterCorrupt):
            await client.put(b"k", b"v")


async def test_a_cluster_without_a_quorum_still_tells_its_members_and_not_its_leader(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11, D13: what needs a quorum ends as an unknown outcome, never as "not carried out"."""
    cluster = etcd_cluster_factory(election_ms=500)
    for member in cluster.members[1:]:
        member.kill()
    async with client_of(cluster.members[0], timeout=1.0) as client:
        with pytest.raises((errors.RPCTimeout, errors.NoLeader)):
            await client.put(b"k", b"v")
        # Status waits for the election timeout to notice.
        async with asyncio.timeout(60):
            status = await client.status()
            while status.leader:
                status = await client.status()
        assert status.errors == ("etcdserver: no leader",)
        assert len((await client.member_list(linearizable=False))[1]) == 3
        with pytest.raises(errors.RPCTimeout):
            await client.member_list(linearizable=True)
