"""The health probe on real etcd servers: what counts as reachable, and how seldom it asks."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from etcdmaint.clock import SystemClock
from etcdmaint.compaction.probe import Ask, Probe, read_once, voters
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.access import Access, Login, Tls
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls
from tests.etcd.compacting import all_rpcs, dial_to, until

pytestmark = pytest.mark.etcd

PROGRAM = Path(sys.executable).with_name("etcdmaint")


async def test_a_flapping_etcd_gets_one_real_probe_a_second(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """H2, H3: a hundred questions, counted on etcd's side."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    async with await dial_to(cluster)() as client:

        async def connect() -> Ask:
            return partial(voters, client)

        probe = Probe(connect, SystemClock())
        await probe.connect()
        begun = time.monotonic()
        before = all_rpcs(cluster, "Range")
        for _ in range(20):
            assert await probe.check() is None
            await asyncio.sleep(0.05)
        # At most one at the beginning, and one for each second that has gone by.
        assert 1 <= all_rpcs(cluster, "Range") - before <= 1 + int(time.monotonic() - begun)
        member.pause()
        try:
            await asyncio.sleep(1.0)
            assert isinstance(await probe.check(), EtcdError)
        finally:
            member.resume()
        async with asyncio.timeout(60):
            while await probe.check() is not None:  # noqa: ASYNC110 - the condition is etcd's
                await asyncio.sleep(0.2)


async def test_a_member_held_in_its_defragmentation_does_not_make_it_unreachable(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """H5: the others answer; without a quorum nobody does."""
    cluster = etcd_cluster_factory()
    cluster.fill(bytes_live=6_000_000)
    held = cluster.followers()[0]
    async with await dial_to(cluster)() as client:
        with cluster.hold_snapshot(held):
            defragment = asyncio.create_task(client.client(held.id).defragment(timeout=30))
            await until(held.defragmenting, "it is held")
            await read_once(voters(client), b"health", 3.0)
        await defragment
        others = [member for member in cluster.members if member is not cluster.members[0]]
        for other in others:
            other.pause()
        try:
            with pytest.raises(EtcdError):
                await read_once(voters(client), b"health", 3.0)
        finally:
            for other in others:
                other.resume()


async def test_a_user_without_rights_finds_it_reachable(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """H2: PermissionDenied is an answer."""
    tls = ClusterTls(tmp_path / "pki", client_certificates=False)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    cluster.enable_auth(users={"nobody": ("secret", [])})
    access = Access(tls=Tls(ca=tls.ca_file.read_bytes()), login=Login("nobody", "secret"))
    async with await dial_to(cluster, access)() as client:

        async def connect() -> Ask:
            return partial(voters, client)

        probe = Probe(connect, SystemClock())
        await probe.connect()
        assert await probe.check() is None


def test_status_says_whether_reads_are_answered(etcd_cluster_factory: EtcdClusterFactory) -> None:
    """H2: beside the members, which answer their Status without a quorum as well."""
    cluster = etcd_cluster_factory()

    def status() -> dict[str, object]:
        command = [str(PROGRAM), "--endpoints", cluster.client_urls[0], "status", "-o", "json"]
        command += ["--command-timeout", "4s"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        found = json.loads(done.stdout)["reads"]
        assert isinstance(found, dict)
        return found

    assert status() == {"answered": True, "error": None}
    for member in cluster.members[1:]:
        member.kill()
    assert status()["answered"] is False
