"""etcd's own auth: who is let in, who is told what, and how a token is renewed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Tls
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import AlarmKind
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls
from tests.etcd.dialling import Calls, client_of, logged_in, seeds, tls_of

pytestmark = pytest.mark.etcd


@pytest.fixture
def tls(tmp_path: Path) -> ClusterTls:
    return ClusterTls(tmp_path / "tls", client_certificates=False)


def guarded(
    factory: EtcdClusterFactory, tls: ClusterTls, version: str, *arguments: str
) -> EtcdCluster:
    """One member with auth on, a user root and a user who may only read and write keys."""
    cluster = factory(size=1, version=version, tls=tls, extra_arguments=arguments)
    cluster.enable_auth(users={"jane": ("jane's", ["reader"])})
    return cluster


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_root_may_do_everything_and_everybody_else_is_told_what_is_missing(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
) -> None:
    """D50: no credentials, wrong password, unknown user, not root: four errors, none retryable."""
    cluster = guarded(etcd_cluster_factory, tls, version)
    member = cluster.members[0]
    async with client_of(member, logged_in(tls, "root", "root")) as root:
        status = await root.status()
        await root.put(b"k", b"v")
        await root.defragment(30)
        await root.disarm(status.header.member_id, AlarmKind.NOSPACE)
        await root.move_leader(status.header.member_id)
    async with client_of(member, logged_in(tls, "jane", "jane's")) as jane:
        await jane.put(b"k", b"v")
        for forbidden in (
            jane.defragment(30),
            jane.move_leader(status.header.member_id),
        ):
            with pytest.raises(errors.PermissionDenied) as refused:
                await forbidden
            assert not refused.value.retryable
    for user, password in (("root", "wrong"), ("nobody", "x")):
        async with client_of(member, logged_in(tls, user, password)) as stranger:
            with pytest.raises(errors.AuthenticationFailed) as failed:
                await stranger.status()
            assert not failed.value.retryable
            assert "wrong" not in str(failed.value)
    async with client_of(member, Access(tls=Tls(tls.authority.certificate))) as anonymous:
        with pytest.raises(errors.AuthenticationRequired):
            await anonymous.defragment(30)
        with pytest.raises(errors.AuthenticationRequired):
            await anonymous.put(b"k", b"v")
    assert member.defrag_count() == 1


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_an_expired_token_is_renewed_once_for_all_calls_that_meet_it(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
) -> None:
    """D50: single flight, one retry; the Defragment that met it runs once."""
    cluster = guarded(etcd_cluster_factory, tls, version)
    member = cluster.members[0]
    calls = Calls()
    access = logged_in(tls, "root", "root")
    async with client_of(member, access, observer=calls) as client:
        await asyncio.gather(*(client.put(b"k/%d" % n, b"v") for n in range(20)))
        assert calls.count("Authenticate") == 1
        forget_tokens(cluster)
        await asyncio.gather(*(client.put(b"k/%d" % n, b"v") for n in range(20)))
        assert calls.count("Authenticate") == 2
        forget_tokens(cluster)
        await client.defragment(30)
        assert calls.count("Authenticate") == 3
    assert member.defrag_count() == 1


def forget_tokens(cluster: EtcdCluster) -> None:
    """etcd forgets a user's tokens when the password is set, even to what it was."""
    root = {"name": "root", "password": "root"}
    cluster.leader().gateway.post("/v3/auth/user/changepw", root)


async def test_a_token_of_an_older_revision_of_the_users_is_renewed(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, tmp_path: Path
) -> None:
    """D50: signed tokens (JWT) name the revision of the users that they were given at."""
    pair = tls.authority.issue("signer")
    _, key = pair.write(tmp_path, "signer")
    token = f"--auth-token=jwt,priv-key={key},sign-method=ES256,ttl=10m"
    cluster = guarded(etcd_cluster_factory, tls, "3.7", token)
    calls = Calls()
    async with client_of(
        cluster.members[0], logged_in(tls, "root", "root"), observer=calls
    ) as client:
        await client.put(b"k", b"v")
        cluster.leader().gateway.post("/v3/auth/user/add", {"name": "late", "password": "x"})
        assert (await client.range(b"k")).count == 1
    assert calls.count("Authenticate") == 2


async def test_a_token_that_expires_by_time_is_renewed_too(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls
) -> None:
    """D50."""
    cluster = guarded(etcd_cluster_factory, tls, "3.7", "--auth-token-ttl=2")
    calls = Calls()
    async with client_of(
        cluster.members[0], logged_in(tls, "root", "root"), observer=calls
    ) as client:
        assert (await client.range(b"k")).count == 0
        async with asyncio.timeout(60):
            while calls.count("Authenticate") < 2:
                # Each use prolongs a token, and etcd looks once a second for those that expired.
                await asyncio.sleep(4.0)
                assert (await client.range(b"k")).count == 0
    assert calls.count("Authenticate") == 2


async def test_a_password_that_was_changed_ends_in_one_refusal_for_all_and_no_storm(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls
) -> None:
    """D50: no hot loop."""
    cluster = guarded(etcd_cluster_factory, tls, "3.7")
    member = cluster.members[0]
    calls = Calls()
    async with client_of(member, logged_in(tls, "root", "old"), observer=calls) as client:
        results = await asyncio.gather(
            *(client.range(b"k") for _ in range(30)), return_exceptions=True
        )
    assert {type(result) for result in results} == {errors.AuthenticationFailed}
    assert calls.count("Authenticate") == 1


@pytest.mark.parametrize("version", ["3.7", "3.6", "3.5"])
async def test_a_log_in_where_auth_is_off_is_told_as_that(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
) -> None:
    """D50: and the password has gone over TLS only."""
    cluster = etcd_cluster_factory(size=1, version=version, tls=tls)
    async with client_of(cluster.members[0], logged_in(tls, "root", "root")) as client:
        with pytest.raises(errors.AuthNotEnabled):
            await client.status()
    with pytest.raises(errors.AuthNotEnabled):
        await ClusterClient.connect(seeds(cluster), logged_in(tls, "root", "root"))


async def test_a_client_certificate_named_root_needs_no_password(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    tls = ClusterTls(tmp_path / "mutual", client_name="root")
    cluster = guarded(etcd_cluster_factory, tls, "3.7")
    async with client_of(cluster.members[0], Access(tls=tls_of(tls))) as client:
        await client.defragment(30)


@pytest.mark.parametrize("version", ["3.7", "3.5"])
async def test_a_learner_is_asked_with_a_token_that_a_voter_gave(
    etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
) -> None:
    """D11, D50: a learner takes no log-ins but knows the tokens."""
    cluster = guarded(etcd_cluster_factory, tls, version)
    learner = cluster.add_member(learner=True)
    access = logged_in(tls, "root", "root")
    async with await ClusterClient.connect(seeds(cluster)[:1], access) as client:
        statuses = await client.statuses()
        for status in statuses.values():
            assert not isinstance(status, errors.EtcdError)
        with pytest.raises(errors.LearnerRefused):
            await client.client(learner.id).defragment(30)
    # And as a seed: it says who it is, but not who the others are.
    with pytest.raises(errors.EtcdError):
        await ClusterClient.connect(seeds(cluster)[1:], access)
