"""The etcd behind a real kube-apiserver is full: no operator can help there, `etcdmaint rescue` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until
from tests.etcd.compacting import read_key, rpcs

pytestmark = pytest.mark.cluster

QUOTA = 24 << 20
PROGRAM = Path(sys.executable).with_name("etcdmaint")
MAPS = "/api/v1/namespaces/default/configmaps"


def config_map(number: int) -> dict[str, object]:
    # Different each time: an update that changes nothing is not written.
    data = {"text": f"{number} " + "x" * 1_000_000}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "rewritten"},
        "data": data,
    }


def rewrite(plane: ControlPlane, times: int) -> None:
    for number in range(times):
        plane.api.request("PUT", f"{MAPS}/rewritten", config_map(number))


def test_the_etcd_of_an_api_server_is_healed_while_the_api_can_write_nothing(
    tmp_path: Path,
) -> None:
    """C8, C14, D40, D64: full of history; neither status nor Lease could be written meanwhile."""
    with EtcdCluster(tmp_path / "etcd", size=1, quota_backend_bytes=QUOTA) as etcd:
        (member,) = etcd.members
        plane = ControlPlane(tmp_path / "plane", etcd=etcd, compaction_interval="10s")
        try:
            plane.start()
            plane.api.request("POST", MAPS, config_map(0))
            with pytest.raises(ApiError, match="database space exceeded"):
                rewrite(plane, 1000)
            before = read_key(member)
            refused = rpcs(member, "Txn", "ResourceExhausted")
            # Its own compactor is dead as well from here on: the swap is refused.
            wait_until(
                lambda: rpcs(member, "Txn", "ResourceExhausted") > refused, "the swap is refused"
            )
            command = [str(PROGRAM), "--endpoints", member.client_url, "rescue", "--yes"]
            done = subprocess.run(
                [*command, "--keep", "3s"], capture_output=True, text=True, timeout=200, check=False
            )
            assert done.returncode == 0, done.stderr
            assert "/registry/configmaps/" in done.stdout
            assert etcd.etcdctl("alarm", "list").stdout == ""
            assert member.status().db_size < QUOTA // 2
            assert int(read_key(member).value) >= before.head
            rewrite(plane, 3)
            found = plane.api.request("GET", f"{MAPS}/rewritten")
            assert found["data"]["text"].startswith("2 ")
            plane.wait_ready()
        finally:
            plane.stop()
