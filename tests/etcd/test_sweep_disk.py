"""A member whose disk is full: etcd exits at its next write, so the run must stop at once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from etcdmaint.defrag.run import Ending, Outcome
from tests.controlplane.etcd import EtcdCluster

from .sweeping import MIB, World, request, row, run, target

pytestmark = pytest.mark.etcd


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 120 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=120m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs, so no disk can be filled")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_fails_the_member_and_stops_the_run(
    small_disk: Path, tmp_path: Path
) -> None:
    """D34, D24: its own reason, an event that says what happens next, the others untouched."""
    cluster = EtcdCluster(
        tmp_path / "etcd",
        data_dirs={0: small_disk / "data"},
        extra_arguments=["--snapshot-count=100000", "--max-wals=1"],
    )
    try:
        cluster.start()
        cluster.fill(bytes_live=8 * MIB, bytes_deleted=8 * MIB)
        ballast = small_disk / "ballast"
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(b"\0" * (free - 2 * MIB))
        full = cluster.members[0]
        if cluster.leader() is full:
            other = cluster.followers()[0]
            cluster.etcdctl("move-leader", other.id_hex, member=full)
        world = World(target(cluster))
        others = [m for m in cluster.members if m is not full]
        # The fullest follower comes first: make it the one with the full disk.
        for member in others:
            cluster.etcdctl("defrag", member=member)
        result = await run(world, request())
        failed = row(result, full.name)
        assert result.ending is Ending.FAILED
        assert (failed.outcome, failed.reason) == (Outcome.FAILED, "NoDiskSpace")
        assert "exits at its next write" in failed.message
        assert [member.defrag_count() for member in others] == [1, 1]
        assert any(r == "MemberFailed" and "exits" in text for r, text in world.events)
    finally:
        cluster.stop()
