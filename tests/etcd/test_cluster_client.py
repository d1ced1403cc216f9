"""All members of a cluster: found from anywhere, each proven, none standing in for another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from etcdmaint import errors
from etcdmaint.errors import ClusterNotHealthy
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import AddressMap, Endpoint
from etcdmaint.etcd.types import MemberStatus
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import GatewayError
from tests.controlplane.member import Member
from tests.controlplane.processes import wait_until
from tests.controlplane.tls import ClusterTls
from tests.etcd.dialling import Calls, at, freeze, logged_in, seeds, tls_of, until

pytestmark = pytest.mark.etcd


class Relay:
    """A balancer: each connection goes to the next of its members."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self._turn = 0
        self._open: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Endpoint]:
        """Its address, for as long as it is there."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        finally:
            server.close()
            self.drop()

    def drop(self) -> None:
        """Break every connection."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member = self.members[self._turn % len(self.members)]
        self._turn += 1
        back, forth = await asyncio.open_connection("127.0.0.1", at(member).port)
        self._open += [writer, forth]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, forth))
            group.create_task(self._copy(back, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def ids(cluster: EtcdCluster) -> set[int]:
    return {member.id for member in cluster.members}


def answered(statuses: dict[int, MemberStatus | errors.EtcdError]) -> set[int]:
    """Who answered; and each answer is from the one it stands for."""
    found = set()
    for member_id, status in statuses.items():
        if isinstance(status, MemberStatus):
            assert status.header.member_id == member_id
            found.add(member_id)
    return found


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_one_seed_leads_to_all_members_each_over_a_channel_of_its_own(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """D12."""
    cluster = etcd_cluster_factory(version=version)
    calls = Calls()
    async with await ClusterClient.connect(seeds(cluster)[:1], Access(), observer=calls) as client:
        assert {row.id for row in client.members} == ids(cluster)
        assert answered(await client.statuses()) == ids(cluster)
        for member in cluster.members:
            assert client.endpoint(member.id) == at(member)
            await client.client(member.id).defragment(30)
            found = await client.metrics(member.id)
            assert found is not None
            assert found.defrag_count == 1
            assert found.server_id == member.id
        assert [member.defrag_count() for member in cluster.members] == [1, 1, 1]
    assert calls.count("Defragment") == 3


async def test_seeds_of_two_clusters_are_refused_naming_both(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: cluster_id is equal on all."""
    one, two = etcd_cluster_factory(size=1), etcd_cluster_factory(size=1)
    with pytest.raises(ClusterNotHealthy) as mixed:
        await ClusterClient.connect([*seeds(one), *seeds(two)], Access())
    assert mixed.value.reason == "MixedClusters"
    for member in (*one.members, *two.members):
        assert member.client_url in str(mixed.value)


async def test_shared_and_loopback_urls_that_lead_to_others_are_not_used(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: N members, N channels, however many URLs they advertise; none leads astray."""
    reserved = etcd_cluster_factory(size=1)
    # A port that is some member's own is, for the two others, a shared URL that answers.
    first: list[str] = []

    def advertise(name: str, url: str) -> list[str]:
        first.append(url)
        return [first[0], url, reserved.client_urls[0]]

    cluster = etcd_cluster_factory(advertise=advertise)
    async with await ClusterClient.connect([at(cluster.members[2])], Access()) as client:
        assert answered(await client.statuses()) == ids(cluster)
        for member in cluster.members:
            assert client.endpoint(member.id) == at(member)
            await client.client(member.id).defragment(30)
    assert [member.defrag_count() for member in cluster.members] == [1, 1, 1]
    assert reserved.members[0].defrag_count() == 0


async def test_a_member_whose_every_address_is_somebody_elses_says_so_for_each(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11, D12: MemberUnreachable with the URLs that were advertised, and why."""
    urls: list[str] = []

    def advertise(name: str, url: str) -> list[str]:
        urls.append(url)
        return [url] if len(urls) == 1 else [urls[0], "http://etcd.invalid:2379", "unix:///x"]

    cluster = etcd_cluster_factory(advertise=advertise)
    async with await ClusterClient.connect(seeds(cluster)[:1], Access()) as client:
        lost = cluster.members[1]
        with pytest.raises(errors.MemberUnreachable) as unreachable:
            client.client(lost.id)
        told = str(unreachable.value)
        assert f"member {lost.name} cannot be reached" in told
        assert f"{urls[0]}: member {cluster.members[0].id:016x} answered, not" in told
        assert "http://etcd.invalid:2379: the name does not resolve" in told
        assert "unix sockets are not supported" in told
        assert answered(await client.statuses()) == {cluster.members[0].id}
        assert await client.metrics(lost.id) is None


async def test_a_seed_stands_in_where_a_members_own_address_does_not_work(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: it has answered with this member's ID, and must go on doing so."""
    cluster = etcd_cluster_factory(advertise=lambda name, _: [f"http://{name}.etcd.invalid:2379"])
    async with await ClusterClient.connect(seeds(cluster), Access()) as client:
        assert answered(await client.statuses()) == ids(cluster)
        assert {client.endpoint(member.id) for member in cluster.members} == set(seeds(cluster))


async def test_names_that_do_not_resolve_are_reached_by_the_address_map_with_their_tls_names(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D12, D51: as for cozystack's clusters seen from outside."""
    names = [f"etcd-{number}.etcd.invalid" for number in range(3)]
    tls = ClusterTls(tmp_path, server_names=names)
    cluster = etcd_cluster_factory(
        tls=tls, advertise=lambda name, _: [f"https://{name}.etcd.invalid:2379"]
    )
    lines = [
        f"{name}:2379 {at(member).target}"
        for name, member in zip(names, cluster.members, strict=True)
    ]
    access = Access(tls=tls_of(tls), address_map=AddressMap.parse("\n".join(lines)))
    start = Endpoint(names[0], 2379, secure=True)
    async with await ClusterClient.connect([start], access) as client:
        assert answered(await client.statuses()) == ids(cluster)
        for name, member in zip(names, cluster.members, strict=True):
            assert client.endpoint(member.id) == Endpoint(name, 2379, secure=True)
            assert await client.metrics(member.id) is not None


async def test_a_member_that_advertises_plain_http_is_not_dialled_where_tls_is_configured(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D51: nor are its metrics read."""
    tls = ClusterTls(tmp_path)
    cluster = etcd_cluster_factory(
        tls=tls,
        advertise=lambda name, url: [url if name == "etcd-0" else url.replace("https", "http")],
    )
    async with await ClusterClient.connect(seeds(cluster)[:1], Access(tls=tls_of(tls))) as client:
        assert answered(await client.statuses()) == {cluster.members[0].id}
        for member in cluster.members[1:]:
            with pytest.raises(errors.TLSFailed, match="http:// is not dialled"):
                client.client(member.id)
            assert await client.metrics(member.id) is None


async def test_a_hung_seed_and_a_hung_member_cost_half_a_timeout_and_not_more(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11: connect and statuses answer within their timeouts and say who hangs."""
    cluster = etcd_cluster_factory()
    hung = cluster.members[1]
    loop = asyncio.get_running_loop()
    cluster.leader()
    known = ids(cluster)
    await freeze(hung)
    begun = loop.time()
    async with await ClusterClient.connect(seeds(cluster), Access(), timeout=4.0) as client:
        assert loop.time() - begun < 7.0
        begun = loop.time()
        statuses = await client.statuses(2.0)
        assert loop.time() - begun < 3.8
        assert answered(statuses) == known - {hung.id}
        assert isinstance(statuses[hung.id], errors.MemberUnreachable)
        assert hung.client_url in str(statuses[hung.id])
        # Found again as soon as it answers.
        hung.resume()
        await client.refresh()
        assert answered(await client.statuses()) == known
        # One that hangs later keeps its channel: a Defragment may be waiting on it.
        kept = client.client(hung.id)
        await freeze(hung)
        begun = loop.time()
        statuses = await client.statuses(2.0)
        assert loop.time() - begun < 3.8
        assert isinstance(statuses[hung.id], errors.RPCTimeout)
        await client.refresh()
        assert client.client(hung.id) is kept
        hung.resume()


async def test_a_member_held_in_a_defragmentation_is_found_and_known_by_its_own_metrics(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11, D16, D36: a new process meets a member that somebody else left defragmenting."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_live=8 << 20)
    busy = cluster.members[2]
    async with await ClusterClient.connect(seeds(cluster), Access()) as first:
        with cluster.hold_snapshot(busy):
            snapshots = await first.metrics(busy.id)
            assert snapshots is not None
            assert snapshots.snapshot_streams == 1
            running = asyncio.ensure_future(first.client(busy.id).defragment(60))

            async def defragmenting() -> bool:
                found = await first.metrics(busy.id)
                return found is not None and found.defrag_inflight == 1

            await until(defragmenting)
            async with await ClusterClient.connect(seeds(cluster), Access(), timeout=3.0) as second:
                statuses = await second.statuses(2.0)
                assert isinstance(statuses[busy.id], errors.RPCTimeout)
                assert answered(statuses) == ids(cluster) - {busy.id}
                found = await second.metrics(busy.id)
                assert found is not None
                assert found.defrag_inflight == 1
                # Neither a refresh nor a second client breaks the call that waits.
                await first.refresh()
                assert not running.done()
        await running
        found = await first.metrics(busy.id)
        assert found is not None
        assert (found.defrag_inflight, found.defrag_count) == (0, 1)


async def test_a_refresh_finds_who_came_and_drops_who_went_and_leaves_the_others_alone(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11, D39."""
    cluster = etcd_cluster_factory()
    async with await ClusterClient.connect(seeds(cluster), Access()) as client:
        before = {member.id: client.client(member.id) for member in cluster.members}
        learner = await asyncio.to_thread(cluster.add_member)

        async def listed() -> bool:
            await client.refresh()
            return any(row.id == learner.id and row.started for row in client.members)

        await until(listed)
        assert client.client(learner.id)
        (row,) = [row for row in client.members if row.id == learner.id]
        assert row.is_learner
        gone = cluster.followers()[0]
        if gone is learner:
            gone = cluster.followers()[1]
        gone_id = gone.id

        def removed() -> bool:
            try:
                cluster.leader().gateway.post("/v3/cluster/member/remove", {"ID": gone_id})
            except GatewayError as refusal:
                # Until its peers were healthy for 5 s.
                if "unhealthy" in refusal.message:
                    return False
                raise
            return True

        await asyncio.to_thread(wait_until, removed, "etcd lets the member go")

        async def dropped() -> bool:
            await client.refresh()
            return gone_id not in {row.id for row in client.members}

        await until(dropped)
        with pytest.raises(errors.MemberUnreachable, match="no member"):
            client.client(gone_id)
        with pytest.raises(errors.MemberUnreachable, match="no member"):
            client.endpoint(gone_id)
        for member_id, kept in before.items():
            if member_id != gone_id:
                assert client.client(member_id) is kept


async def test_a_member_added_but_never_started_is_listed_and_cannot_be_reached(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D11."""
    cluster = etcd_cluster_factory(size=1)
    cluster.leader().gateway.post(
        "/v3/cluster/member/add", {"peerURLs": ["http://127.0.0.1:1"], "isLearner": True}
    )
    async with await ClusterClient.connect(seeds(cluster), Access()) as client:
        (row,) = [row for row in client.members if not row.started]
        with pytest.raises(errors.MemberUnreachable, match="has not started yet"):
            client.client(row.id)
        assert isinstance((await client.statuses())[row.id], errors.MemberUnreachable)


async def test_a_cluster_that_goes_away_whole_and_comes_back_is_found_from_its_seeds(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory()
    known = ids(cluster)
    async with await ClusterClient.connect(seeds(cluster), Access(), timeout=5.0) as client:
        for member in cluster.members:
            member.kill()
        assert answered(await client.statuses()) == set()
        with pytest.raises(errors.MemberUnreachable, match="no endpoint answers"):
            await client.refresh()
        assert {row.id for row in client.members} == known
        for member in cluster.members:
            member.server.start()
        for member in cluster.members:
            await asyncio.to_thread(member.wait_serving)
        await client.refresh()
        assert answered(await client.statuses()) == known


async def test_seeds_that_lead_to_another_cluster_later_are_noticed(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: an address is no proof of who is there."""
    old, new = etcd_cluster_factory(size=1), etcd_cluster_factory(size=1)
    relay = Relay(old.members)
    async with (
        relay.listening() as address,
        await ClusterClient.connect([address], Access()) as client,
    ):
        assert answered(await client.statuses()) == ids(old)
        old.members[0].kill()
        relay.members = new.members

        async def noticed() -> bool:
            try:
                await client.refresh()
            except errors.WrongMember as error:
                return "is now of cluster" in str(error)
            except errors.EtcdError:
                # The relay has not yet heard that the old one is gone.
                return False
            pytest.fail("another cluster passed for the old one")

        await until(noticed)


async def test_a_balancer_as_the_only_seed_leads_to_the_members_themselves(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: what balances is asked who belongs to the cluster, and then left."""
    cluster = etcd_cluster_factory()
    async with (
        Relay(cluster.members).listening() as address,
        await ClusterClient.connect([address], Access()) as client,
    ):
        for _ in range(3):
            assert answered(await client.statuses()) == ids(cluster)
        assert {client.endpoint(member.id) for member in cluster.members} == set(seeds(cluster))


async def test_a_balancer_that_hides_the_members_never_makes_one_pass_for_another(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12: it stands in for the one that it led to, until a new connection leads elsewhere."""
    cluster = etcd_cluster_factory(advertise=lambda name, _: [f"http://{name}.etcd.invalid:2379"])
    relay = Relay(cluster.members)
    async with (
        relay.listening() as address,
        await ClusterClient.connect([address], Access()) as client,
    ):
        (reached,) = answered(await client.statuses())
        through = client.client(reached)

        async def led_elsewhere() -> bool:
            relay.drop()
            return isinstance((await client.statuses())[reached], errors.WrongMember)

        await until(led_elsewhere)
        with pytest.raises(errors.WrongMember):
            await through.defragment(30)
        assert [member.defrag_count() for member in cluster.members] == [0, 0, 0]
        # A refresh gives up what leads astray, and says whom it can reach by now.
        await client.refresh()
        assert len(answered(await client.statuses())) == 1


async def test_metrics_are_read_on_their_own_port_without_tls_where_there_is_none(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D16: as kubeadm and cozystack serve them; told to be this member's by its ID."""
    tls = ClusterTls(tmp_path)
    cluster = etcd_cluster_factory(size=1, tls=tls, metrics_urls=True)
    member = cluster.members[0]
    assert member.metrics_url is not None
    port = Endpoint.parse(member.metrics_url).port
    for access in (Access(tls=tls_of(tls)),):
        async with await ClusterClient.connect(seeds(cluster), access, metrics_port=port) as client:
            for _ in range(2):
                found = await client.metrics(member.id)
                assert found is not None
                assert found.server_id == member.id
    # A port on which another member answers is no source.
    other = etcd_cluster_factory(size=1)
    async with await ClusterClient.connect(
        seeds(cluster), Access(tls=tls_of(tls)), metrics_port=at(other.members[0]).port
    ) as client:
        assert await client.metrics(member.id) is None


@pytest.mark.parametrize("version", ["3.7", "3.5"])
async def test_a_learner_alone_is_no_way_into_a_cluster(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    cluster = etcd_cluster_factory(size=1, version=version)
    learner = cluster.add_member()
    with pytest.raises(errors.LearnerRefused, match="name an endpoint of a voter"):
        await ClusterClient.connect([at(learner)], Access())
    async with await ClusterClient.connect([at(learner), *seeds(cluster)], Access()) as client:
        assert answered(await client.statuses()) == ids(cluster)


async def test_what_a_seed_that_answers_says_is_told_rather_than_who_is_away(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D50: an etcd that refuses is not reported as an etcd that cannot be found."""
    tls = ClusterTls(tmp_path, client_certificates=False)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    cluster.enable_auth()
    away = Endpoint("127.0.0.1", 1, secure=True)
    with pytest.raises(errors.AuthenticationFailed):
        await ClusterClient.connect([away, *seeds(cluster)], logged_in(tls, "root", "no"))


async def test_no_seed_at_all_is_refused_and_the_same_one_twice_is_asked_once(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    with pytest.raises(errors.InvalidInput, match="endpoints"):
        await ClusterClient.connect([], Access())
    cluster = etcd_cluster_factory(size=1)
    calls = Calls()
    async with await ClusterClient.connect(seeds(cluster) * 3, Access(), observer=calls):
        assert calls.count("MemberList") == 1
