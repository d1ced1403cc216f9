"""Compactors on real etcd servers: what they send, what etcd makes of it, and what they learn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from etcdmaint.compaction.election import Result, State, run_round
from etcdmaint.errors import NoLeader, PermissionDenied
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import text
from tests.controlplane.tls import ClusterTls

from .compacting import (
    KEY,
    all_rpcs,
    compacted_to,
    compacting,
    read_key,
    rpcs,
    until,
)

pytestmark = pytest.mark.etcd

VERSIONS = pytest.mark.parametrize("version", ["3.5", "3.6", "3.7"])


def client_of(url: str) -> MemberClient:
    return MemberClient(Endpoint.parse(url), Access(), timeout=5.0)


@VERSIONS
async def test_rounds_on_a_fresh_etcd(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """C1, C3, C5, C6, C9, C10, C11, C14, C16, C18: the whole protocol, read back raw."""
    cluster = etcd_cluster_factory(size=1, version=version)
    (member,) = cluster.members
    async with client_of(member.client_url) as client:
        head = read_key(member).head
        first = await run_round(client, State())
        assert first.result is Result.BOOTSTRAP
        assert read_key(member) == replace(
            read_key(member), version=1, value=b"0", mod_revision=head + 1, head=head + 1
        )
        put = member.gateway.put(b"a", b"1")
        won = await run_round(client, first.state)
        assert (won.result, won.revision) == (Result.WON, put - 1)
        assert compacted_to(member) == put - 1
        assert read_key(member).value == b"%d" % (put - 1)

        lost = await run_round(client, State())
        assert (lost.result, lost.state, lost.revision) == (Result.LOST, won.state, put - 1)

        member.gateway.compact(member.gateway.put(b"a", b"2"))
        benign = await run_round(client, won.state)
        assert (benign.result, benign.revision) == (Result.ALREADY_COMPACTED, won.state.revision)

        member.gateway.put(KEY, b"abc")
        rubbish = await run_round(client, benign.state)
        assert (rubbish.result, rubbish.revision) == (Result.LOST, 0)
        assert rubbish.state.version == 4

        member.gateway.post("/v3/kv/deleterange", {"key": text(KEY)})
        gone = await run_round(client, rubbish.state)
        assert (gone.result, gone.state) == (Result.LOST, State(0, read_key(member).head))
        again = await run_round(client, gone.state)
        assert (again.result, again.revision) == (Result.WON, gone.state.revision)


async def test_the_winner_costs_one_txn_and_one_compact_the_loser_one_txn(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C2, C18: counted on etcd's side; no read, no other write."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with client_of(member.client_url) as client:
        state = (await run_round(client, State())).state

        def counted() -> list[int]:
            return [all_rpcs(cluster, rpc) for rpc in ("Txn", "Compact", "Range", "Put")]

        before, head = counted(), read_key(member).head
        before = counted()
        await run_round(client, state)
        won = counted()
        assert [b - a for a, b in zip(before, won, strict=True)] == [1, 1, 0, 0]
        await run_round(client, State())
        assert [b - a for a, b in zip(won, counted(), strict=True)] == [1, 0, 0, 0]
        assert read_key(member).head == head + 1


async def test_a_compactor_compacts_once_an_interval_and_says_so(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C4, C7, C19, C22: loop and watch together, on three members."""
    cluster = etcd_cluster_factory()
    member = cluster.members[0]
    async with compacting(cluster, 0.5) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 6, "six rounds")
        view = compactor.view()
        assert counts.rounds[:6] == ["bootstrap", *["won"] * 5]
        assert view.won_last is True
        assert not view.stalled
        await until(lambda: compacted_to(member) >= view.revision, "applied there too")
        # The next round may begin while they are counted, with its Txn.
        await until(
            lambda: all_rpcs(cluster, "Compact") == all_rpcs(cluster, "Txn") - 1,
            "a Compact for each Txn but the first",
        )


async def test_losers_learn_of_a_round_at_once_by_the_watch(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C22, C30: long before their own timers fire."""
    cluster = etcd_cluster_factory(size=1)
    async with (
        compacting(cluster, 0.3) as (winner, _),
        compacting(cluster, 3600.0) as (watcher, told),
    ):
        for _ in range(2):
            known = watcher.compact_revision
            await until(lambda known=known: watcher.compact_revision > known, "learned")
        assert told.rounds == []
        assert watcher.view().won_last is False
        assert winner.view().won_last is True


async def test_the_watch_heals_itself(etcd_cluster_factory: EtcdClusterFactory) -> None:
    """C22, C24, C27: compacted under it, the key deleted, the member restarted."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with compacting(cluster, 3600.0) as (watcher, _):
        member.gateway.put(KEY, b"1")
        await until(lambda: watcher.compact_revision == 1, "seen")
        member.gateway.compact(member.gateway.put(b"a", b"b"))
        member.gateway.post("/v3/kv/deleterange", {"key": text(KEY)})
        await until(lambda: watcher.view().clock == 0, "deletion seen")
        assert watcher.compact_revision == 1
        member.kill()
        member.gateway.close()
        member.start()
        member.gateway.put(KEY, b"3")
        await until(lambda: watcher.compact_revision == 3, "seen after the restart")


async def test_a_watch_on_a_member_without_a_leader_ends(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C29: it does not go silent: require-leader."""
    cluster = etcd_cluster_factory()
    first, *others = cluster.members
    async with client_of(first.client_url) as client:
        head = read_key(first).head
        async with client.watch(KEY, start_revision=head) as watch:
            for other in others:
                other.pause()
            try:
                with pytest.raises(NoLeader):
                    async with asyncio.timeout(60):
                        await anext(watch)
            finally:
                for other in others:
                    other.resume()


async def test_when_the_leader_dies_in_mid_round_the_next_interval_is_compacted(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C8, C12, C13: whatever the broken round came to; through another member."""
    cluster = etcd_cluster_factory()
    leader = cluster.leader()
    async with compacting(cluster, 0.4) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 2, "two rounds")
        # Frozen first, so that the next round is in flight when it dies.
        leader.pause()
        held = len(counts.rounds)
        await until(lambda: counts.rounds[held:], "a round that met it")
        leader.kill()
        known = compactor.compact_revision
        await until(lambda: compactor.compact_revision > known, "compacts again")
        assert "error" in counts.rounds[held:]


async def test_a_member_that_hangs_longer_than_the_interval_holds_up_no_more_than_a_round(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C12: SIGSTOP of the very member that the rounds are held with; the next one is asked."""
    cluster = etcd_cluster_factory()
    async with compacting(cluster, 0.5) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 2, "two rounds")
        asked = max(cluster.members, key=lambda member: rpcs(member, "Txn"))
        if asked is cluster.leader():
            # The leader's absence costs an election besides; here it is a follower's turn.
            cluster.etcdctl("move-leader", cluster.followers()[0].id_hex, member=asked)
        held = len(counts.rounds)
        asked.pause()
        try:
            known = compactor.compact_revision
            await until(lambda: compactor.compact_revision > known + 1, "compacts")
            assert counts.rounds[held:].count("error") <= 2
        finally:
            asked.resume()


async def test_three_foreign_compactors_at_once_and_rubbish_and_a_deleted_key(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C10, C11, C17, C23, C27: moved on, rewritten and deleted by others; it only goes on."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with compacting(cluster, 0.3) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 2, "two rounds")
        for value in (b"abc", b"99999999999999", b""):
            for _ in range(3):
                member.gateway.put(KEY, value)
            await asyncio.sleep(0.2)
        member.gateway.post("/v3/kv/deleterange", {"key": text(KEY)})
        known = compactor.compact_revision
        await until(lambda: compactor.compact_revision > known, "goes on")
        assert "error" not in counts.rounds
        assert compactor.compact_revision <= read_key(member).head


async def test_a_million_revisions_are_compacted_while_rounds_go_on(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C16: scaled to what runs in seconds (tests/bench has the million): no round waits for it."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with compacting(cluster, 0.5) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 2, "two rounds")

        def write() -> None:
            puts = [
                {"requestPut": {"key": text(b"k%d" % n), "value": text(b"v")}} for n in range(120)
            ]
            for _ in range(400):
                member.gateway.post("/v3/kv/txn", {"success": puts})

        await asyncio.to_thread(write)
        head = read_key(member).head
        await until(lambda: compactor.compact_revision >= head, "compacted")
        assert "error" not in counts.rounds
        done = len(counts.rounds)
        await until(lambda: len(counts.rounds) > done + 2, "goes on")


async def test_over_tls(etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path) -> None:
    """C39: the same client as everything else."""
    tls = ClusterTls(tmp_path / "pki")
    cluster = etcd_cluster_factory(size=1, tls=tls)
    access = Access(
        tls=Tls(
            ca=tls.ca_file.read_bytes(),
            certificate=tls.client_certificate_file.read_bytes(),
            key=tls.client_key_file.read_bytes(),
        )
    )
    async with compacting(cluster, 0.3, access=access) as (_, counts):
        await until(lambda: counts.rounds.count("won") >= 2, "won twice")
        assert "error" not in counts.rounds


@pytest.mark.parametrize("version", ["3.5.21", "3.7"])
async def test_a_user_who_may_write_but_not_compact_leaves_the_election_to_others(
    etcd_cluster_factory: EtcdClusterFactory, version: str, tmp_path: Path
) -> None:
    """C8, C13: newer etcds keep Compact for root; who cannot use an interval must not take it."""
    tls = ClusterTls(tmp_path / "pki", client_certificates=False)
    cluster = etcd_cluster_factory(size=1, version=version, tls=tls)
    cluster.enable_auth(users={"maint": ("secret", ["writer"])})
    (member,) = cluster.members
    access = Access(tls=Tls(ca=tls.ca_file.read_bytes()), login=Login("maint", "secret"))
    async with compacting(cluster, 0.3, access=access) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 4, "four rounds")
        if version == "3.5.21":
            assert counts.rounds[:4] == ["bootstrap", "won", "won", "won"]
        else:
            assert counts.rounds[:4] == ["bootstrap", "error", "error", "error"]
            assert isinstance(compactor.view().error, PermissionDenied)
            assert compactor.state.barred
            assert read_key(member).version == 2


async def test_a_user_without_rights_on_the_key_is_told_each_interval_and_heals(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C12: no hot loop; and once the rights are there, the election goes on by itself."""
    tls = ClusterTls(tmp_path / "pki", client_certificates=False)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    cluster.enable_auth(users={"nobody": ("secret", [])})
    (member,) = cluster.members
    access = Access(tls=Tls(ca=tls.ca_file.read_bytes()), login=Login("nobody", "secret"))
    async with compacting(cluster, 0.5, access=access) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 4, "four rounds")
        assert set(counts.rounds) == {"error"}
        assert isinstance(compactor.view().error, PermissionDenied)
        assert len(caplog.records) <= len(counts.rounds) + 1
        assert "secret" not in caplog.text
        grant = {"user": "nobody", "role": "root"}
        member.gateway.post("/v3/auth/user/grant", grant)
        await until(lambda: "won" in counts.rounds, "won")
