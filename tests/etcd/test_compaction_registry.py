"""One compactor for each real cluster; and a cluster that is another one after a restore."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from etcdmaint.clock import SystemClock
from etcdmaint.compaction.line import Dial
from etcdmaint.compaction.registry import Registry
from etcdmaint.errors import MemberUnreachable
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane import build
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls
from tests.etcd.compacting import QUICK, Counts, all_rpcs, compacting, dial_to, read_key, until

pytestmark = pytest.mark.etcd


def way(urls: Sequence[str]) -> Dial:
    async def dial() -> ClusterClient:
        seeds = [Endpoint.parse(url) for url in urls]
        return await ClusterClient.connect(seeds, Access(), timeout=3.0)

    return dial


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Registry, Counts]]:
    counts = Counts()
    registry = Registry(SystemClock(), observer=counts, pace=QUICK)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(registry.run())
        yield registry, counts
        task.cancel()


async def test_endpoints_in_any_order_lead_to_one_compactor(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C31, C33, C34, C36, C37, C39: the election is held once, whoever leaves first."""
    cluster = etcd_cluster_factory()
    urls = cluster.client_urls
    async with running() as (registry, counts):
        first = await registry.hold(way(urls), 0.5)
        second = await registry.hold(way(urls[::-1]), 3600.0)
        third = await registry.hold(way(urls[1:2]), 1.0)
        assert first.compactor is second.compactor is third.compactor
        await until(lambda: len(counts.rounds) >= 3, "three rounds")
        assert counts.rounds[:3] == ["bootstrap", "won", "won"]
        assert first.compact_revision == second.compact_revision > 0
        await first.release()
        known = second.compact_revision
        await until(lambda: second.compact_revision > known, "goes on without the first")
        await third.release()
        assert second.compactor.interval == 3600.0
        await second.release()
        done = all_rpcs(cluster, "Txn")
        await asyncio.sleep(1.2)
        assert all_rpcs(cluster, "Txn") == done
        with pytest.raises(MemberUnreachable):
            await registry.hold(way(["http://127.0.0.1:1"]), 1.0)
        assert registry.compactors() == {}


async def test_a_user_who_may_less_does_not_keep_the_other_from_compacting(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """C37: one connection as root, a newer one as somebody who may write the key, but not compact."""
    tls = ClusterTls(tmp_path / "pki", client_certificates=False)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    cluster.enable_auth(users={"maint": ("secret", ["writer"])})

    def access(user: str, password: str) -> Access:
        return Access(tls=Tls(ca=tls.ca_file.read_bytes()), login=Login(user, password))

    async with running() as (registry, counts):
        root = await registry.hold(dial_to(cluster, access("root", "root")), 0.3)
        await until(lambda: "won" in counts.rounds, "won as root")
        maint = await registry.hold(dial_to(cluster, access("maint", "secret")), 0.3)
        assert root.used is maint
        await until(lambda: "error" in counts.rounds, "refused as the other")
        known = root.compact_revision
        await until(lambda: root.compact_revision > known + 1, "goes on as root")
        assert root.used is root
        assert counts.rounds.count("error") <= 2


def restore(cluster: EtcdCluster, snapshot: Path, *, token: str) -> None:
    """Put a snapshot in the place of a one-member cluster's data, and start it again."""
    (member,) = cluster.members
    member.kill()
    shutil.rmtree(member.data_dir)
    command = [str(build.program("etcdutl")), "snapshot", "restore", str(snapshot)]
    command += [f"--name={member.name}", f"--data-dir={member.data_dir}"]
    command += [f"--initial-cluster={member.name}={member.peer_url}"]
    command += [f"--initial-advertise-peer-urls={member.peer_url}"]
    command += [f"--initial-cluster-token={token}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    member.start()


async def test_a_cluster_restored_from_a_snapshot_is_compacted_anew(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """C15, C17: the revision goes back under it: everything remembered is void; and no error but one."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with compacting(cluster, 0.5) as (compactor, counts):
        await until(lambda: len(counts.rounds) >= 3, "three rounds")
        snapshot = tmp_path / "snapshot.db"
        await asyncio.to_thread(cluster.etcdctl, "snapshot", "save", str(snapshot), member=member)
        for _ in range(50):
            member.gateway.put(b"later", b"x")
        await until(lambda: compactor.compact_revision > 50, "knows the later ones")
        await asyncio.to_thread(restore, cluster, snapshot, token="etcd-cluster")
        assert read_key(member).head < 50
        await until(lambda: compactor.compact_revision < 50, "begins anew")
        known = compactor.compact_revision
        await until(lambda: compactor.compact_revision > known, "compacts again")
        assert compactor.compact_revision <= read_key(member).head


async def test_a_cluster_restored_under_a_new_id_is_told_to_its_holder(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """C37: it is another cluster by now, and is held anew."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with running() as (registry, _):
        hold = await registry.hold(dial_to(cluster), 0.5)
        snapshot = tmp_path / "snapshot.db"
        await asyncio.to_thread(cluster.etcdctl, "snapshot", "save", str(snapshot), member=member)
        await asyncio.to_thread(restore, cluster, snapshot, token="another")
        await until(lambda: hold.astray, "noticed")
        fresh = await registry.hold(dial_to(cluster), 0.5)
        await hold.release()
        assert fresh.cluster_id != hold.cluster_id
        await until(lambda: fresh.compact_revision > 0, "compacts")
