"""The test clusters do what their names promise, on each version of etcd."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .etcd import VERSIONS
from .fixtures import EtcdClusterFactory
from .gateway import GatewayError
from .processes import NotReady, wait_until
from .programs import PROGRAMS
from .stalling import SnapshotNotHeld
from .tls import ClusterTls

pytestmark = pytest.mark.etcd


@pytest.mark.parametrize("version", VERSIONS)
def test_three_members_of_each_version_agree_on_a_leader(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    cluster = etcd_cluster_factory(version=version)

    assert len({member.id for member in cluster.members}) == 3
    assert {member.status().version for member in cluster.members} == {
        PROGRAMS[VERSIONS[version]].version
    }
    assert len(cluster.followers()) == 2
    cluster.etcdctl("put", "a", "b")
    assert all(member.gateway.get_value(b"a") == b"b" for member in cluster.members)


def test_a_defragmentation_lasts_as_long_as_a_snapshot_is_held(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory(size=1)
    member = cluster.members[0]
    cluster.fill(bytes_live=6_000_000, bytes_deleted=6_000_000)
    before = member.status()

    with cluster.hold_snapshot(member):
        defrag = subprocess.Popen(
            cluster.etcdctl_command("defrag", "--command-timeout=60s", member=member),
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(member.defragmenting, "the defragmentation has begun")
        # What tells a frozen member from a dead one: /metrics answers, Status does not.
        with pytest.raises(TimeoutError):
            member.status(timeout=0.5)
        assert defrag.poll() is None
        assert member.defrag_count() == 0

    said, _ = defrag.communicate(timeout=60)
    assert "Finished defragmenting" in said
    assert defrag.returncode == 0
    assert member.defrag_count() == 1
    assert not member.defragmenting()
    assert member.status().db_size < before.db_size


def test_a_snapshot_that_cannot_be_stalled_is_not_called_held(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory(size=1)

    with (
        pytest.raises(SnapshotNotHeld, match="too small"),
        cluster.hold_snapshot(cluster.members[0]),
    ):
        pytest.fail("held")


def test_a_paused_member_answers_nobody_and_a_resumed_one_catches_up(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory()
    member = cluster.followers()[0]

    member.pause()
    with pytest.raises(TimeoutError):
        member.status(timeout=0.3)
    cluster.leader().gateway.put(b"meanwhile", b"1")
    member.resume()
    cluster.wait_healthy()

    assert member.gateway.get_value(b"meanwhile") == b"1"


def test_a_killed_leader_is_replaced_and_comes_back_with_its_id_and_data(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory()
    leader = cluster.leader()
    leader.gateway.put(b"a", b"1")
    identity = leader.id

    leader.kill()
    with pytest.raises(OSError, match="refused"):
        leader.status()
    assert cluster.leader() is not leader
    leader.start()
    cluster.wait_healthy()

    assert leader.status().member_id == identity
    assert leader.gateway.get_value(b"a") == b"1"


def test_a_learner_joins_a_cluster_with_tls_and_authentication(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    cluster = etcd_cluster_factory(tls=ClusterTls(tmp_path), quota_backend_bytes=24 << 20)
    cluster.enable_auth(users={"bob": ("secret", ["reader"])})

    learner = cluster.add_member()

    assert learner.status().is_learner
    cluster.etcdctl("put", "a", "b")
    cluster.fill(bytes_live=1_000_000)
    assert cluster.members[0].metric("etcd_server_quota_backend_bytes") == 24 << 20


def test_a_stranger_is_refused_once_authentication_is_on(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory(size=1)
    cluster.enable_auth()
    gateway = cluster.members[0].gateway

    gateway.credentials = ("root", "wrong")
    gateway.forget_token()

    with pytest.raises(GatewayError, match="invalid user ID or password"):
        gateway.put(b"a", b"b")


def test_members_advertise_what_they_are_told_to(etcd_cluster_factory: EtcdClusterFactory) -> None:
    cluster = etcd_cluster_factory(
        advertise=lambda name, url: [url, f"http://{name}.etcd.invalid:2379"],
        metrics_urls=True,
    )

    listed = cluster.etcdctl("member", "list").stdout
    for member in cluster.members:
        assert f"{member.client_url},http://{member.name}.etcd.invalid:2379" in listed
        assert member.metrics_url is not None


def test_a_member_that_cannot_start_is_reported_with_its_last_words(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    with pytest.raises(NotReady, match="flag provided but not defined: -no-such-flag"):
        etcd_cluster_factory(size=1, extra_arguments=["--no-such-flag"])


def test_filling_leaves_the_promised_share_free(etcd_cluster_factory: EtcdClusterFactory) -> None:
    cluster = etcd_cluster_factory(size=1)

    cluster.fill(bytes_live=5_000_000, bytes_deleted=15_000_000, value_size=50_000)

    (member,) = cluster.members
    assert 20_000_000 < member.status().db_size < 30_000_000

    def in_use() -> bool:
        # What the last commit gave up is told by the next one.
        member.gateway.put(b"commit", b"")
        return member.status().db_size_in_use == pytest.approx(5_000_000, rel=0.2)

    wait_until(in_use, "only the live ones are in use", 60)
