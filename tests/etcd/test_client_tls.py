"""TLS: what is let in, what is turned away, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import AddressMap, Endpoint
from etcdmaint.etcd.metrics import read_metrics
from tests.controlplane.certificates import CertificateAuthority
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls
from tests.etcd.dialling import at, client_of, tls_of

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ClusterTls:
    return ClusterTls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(tls: ClusterTls, tmp_path_factory: pytest.TempPathFactory):
    """A member that insists on client certificates; no test here changes it."""
    with EtcdCluster(tmp_path_factory.mktemp("secure"), size=1, tls=tls) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory):
    """A member without TLS."""
    with EtcdCluster(tmp_path_factory.mktemp("bare"), size=1) as cluster:
        yield cluster


async def refusal(endpoint: Endpoint, access: Access) -> errors.TLSFailed:
    """How the client says no; nothing was sent, which is what the class says."""
    async with MemberClient(endpoint, access, timeout=20.0) as client:
        with pytest.raises(errors.TLSFailed) as refused:
            await client.defragment(20.0)
    with pytest.raises(errors.TLSFailed):
        await read_metrics(endpoint, access, timeout=20.0)
    told = refused.value
    assert isinstance(told, errors.MemberUnreachable)
    assert told.reason == "TLSFailed"
    assert str(endpoint) in str(told)
    return told


async def test_a_verified_member_is_talked_to_over_tls(secure, tls) -> None:
    """D51: gRPC and /metrics both, with certificate and key from memory."""
    async with client_of(secure.members[0], Access(tls=tls_of(tls))) as client:
        status = await client.status()
    found = await read_metrics(at(secure.members[0]), Access(tls=tls_of(tls)))
    assert found.server_id == status.header.member_id


async def test_a_member_signed_by_another_authority_is_refused(secure, tls) -> None:
    """D51."""
    other = CertificateAuthority("somebody else").certificate
    told = await refusal(at(secure.members[0]), Access(tls=tls_of(tls, ca=other)))
    assert "its certificate is refused: unable to get local issuer certificate" in str(told)


async def test_an_expired_certificate_is_named_as_that(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D51."""
    tls = ClusterTls(tmp_path)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    # etcd reads its files at each handshake, so it starts with a good one and expires now.
    tls.authority.issue("", organizations=["etcd"], expired=True).write(tmp_path, "server")
    told = await refusal(at(cluster.members[0]), Access(tls=tls_of(tls)))
    assert "its certificate is refused: certificate has expired" in str(told)


async def test_a_wrong_name_is_refused_and_a_server_name_override_names_the_right_one(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D51: the name in the message is the one that we asked for."""
    tls = ClusterTls(tmp_path, server_names=["etcd.example"])
    cluster = etcd_cluster_factory(size=1, tls=tls)
    told = await refusal(at(cluster.members[0]), Access(tls=tls_of(tls)))
    assert "certificate is not valid for '127.0.0.1'" in str(told)
    assert "etcd.example" not in str(told)
    access = Access(tls=tls_of(tls, server_name="etcd.example"))
    async with client_of(cluster.members[0], access) as client:
        await client.status()
    assert (await read_metrics(at(cluster.members[0]), access)).server_id is not None


async def test_the_address_map_changes_where_it_dials_and_not_which_name_it_verifies(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D12, D51: a name that does not resolve here is verified all the same."""
    tls = ClusterTls(tmp_path, server_names=["etcd-0.etcd.invalid", "10.255.255.1"])
    cluster = etcd_cluster_factory(size=1, tls=tls)
    reachable = at(cluster.members[0]).target
    lines = [f"{name}:2379 {reachable}" for name in ("etcd-0.etcd.invalid", "10.255.255.1", "bad")]
    access = Access(tls=tls_of(tls), address_map=AddressMap.parse("\n".join(lines)))
    for name in ("etcd-0.etcd.invalid", "10.255.255.1"):
        endpoint = Endpoint(name, 2379, secure=True)
        async with MemberClient(endpoint, access) as client:
            await client.status()
        assert (await read_metrics(endpoint, access)).server_id is not None
    told = await refusal(Endpoint("bad", 2379, secure=True), access)
    assert "not valid for 'bad'" in str(told)


@pytest.mark.parametrize("version", ["3.7", "3.5"])
async def test_a_member_that_wants_a_client_certificate_says_so_when_there_is_none(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path, version: str
) -> None:
    """D51: not as a broken connection."""
    tls = ClusterTls(tmp_path)
    cluster = etcd_cluster_factory(size=1, tls=tls, version=version)
    told = await refusal(at(cluster.members[0]), Access(tls=Tls(tls.authority.certificate)))
    assert "it refuses our client certificate, or the lack of one" in str(told)


async def test_a_client_certificate_of_another_authority_is_refused_by_the_member(
    secure, tls
) -> None:
    """D51."""
    mine = CertificateAuthority("mine").issue("root")
    changed = tls_of(tls, certificate=mine.certificate, key=mine.key)
    told = await refusal(at(secure.members[0]), Access(tls=changed))
    assert "it refuses our client certificate" in str(told)


async def test_a_port_without_tls_gets_no_password_and_no_key(bare, tls) -> None:
    """D51: neither of them leaves before the peer is verified."""
    endpoint = Endpoint("127.0.0.1", at(bare.members[0]).port, secure=True)
    access = Access(tls=tls_of(tls), login=Login("root", "hunter2"))
    told = await refusal(endpoint, access)
    assert "TLS" in str(told)
    assert "hunter2" not in str(told)


async def test_a_tls_port_spoken_to_without_tls_says_that_it_is_one(secure) -> None:
    endpoint = Endpoint("127.0.0.1", at(secure.members[0]).port)
    async with MemberClient(endpoint, Access(), timeout=20.0) as client:
        with pytest.raises(errors.TLSFailed, match="this port speaks TLS: use https://"):
            await client.status()


async def test_a_plain_url_is_never_dialled_where_tls_is_configured(bare, tls) -> None:
    """D51: not even to find out."""
    member = bare.members[0]
    before = member.metric("grpc_server_started_total")
    async with client_of(member, Access(tls=tls_of(tls))) as client:
        with pytest.raises(errors.TLSFailed, match="not dialled where TLS is configured"):
            await client.status()
    assert member.metric("grpc_server_started_total") == before


async def test_https_without_an_authority_is_refused(secure) -> None:
    """There is no such thing as TLS that verifies nothing."""
    async with client_of(secure.members[0]) as client:
        with pytest.raises(errors.TLSFailed, match="needs a CA"):
            await client.status()


async def test_a_key_that_is_rubbish_is_named_before_the_handshake_is_blamed(secure, tls) -> None:
    """D51: from a Secret that somebody has edited by hand."""
    for changes, fault in (
        ({"ca": b"rubbish"}, "the ca holds no PEM certificate"),
        ({"key": CertificateAuthority().issue("x").key}, "the key does not belong"),
    ):
        told = await refusal(at(secure.members[0]), Access(tls=tls_of(tls, **changes)))
        assert fault in str(told)
