"""What an audit costs the operator: `python -m tests.bench.bench_audit`.

Resident memory before it and its peak during it, by the kernel's own high-water mark, at the default rate
and without a limit worth the name. The values are kube-apiserver's own protobuf, real objects in frames.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from etcdmaint.compression.frame import encode
from tests.cluster.objects import connect, install_crds, path_of
from tests.cluster.operators import OperatorProcess, grant_in
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.gateway import text
from tests.controlplane.processes import wait_until

from .page import table

VALUES = 50_000
PLURAL = "storagecompressionconfigurations"
MERGE = "application/merge-patch+json"


def resident(pid: int, field: str) -> float:
    """MiB: `VmRSS` now, `VmHWM` the most since it was last reset."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(field)


def plant(etcd: EtcdCluster, count: int, words: int) -> int:
    """So many ConfigMaps below /registry, every other namespace's in frames; their bytes.

    Small and large ones in turn: the worst that a reader can meet, which learns sizes as it goes.
    """
    gateway, size = etcd.members[0].gateway, 0
    body = json.dumps(
        {"kind": "ConfigMap", "data": {"text": "how now, brown cow? " * words}}
    ).encode()
    framed = encode(body)
    for first in range(0, count, 100):
        puts = []
        for number in range(first, min(first + 100, count)):
            value = framed if number % 2 else body
            size += len(value)
            key = f"/registry/configmaps/ns-{number % 50}/map-{number:06}".encode()
            puts.append({"requestPut": {"key": text(key), "value": text(value)}})
        gateway.post("/v3/kv/txn", {"success": puts})
    return size


def measure(
    folder: Path, plane: ControlPlane, etcd: EtcdCluster, namespace: str, rate: str
) -> list[str]:
    """One operator, one audit at that rate."""
    plane.api.create_namespace(namespace)
    grant_in(plane, "operator", namespace)
    connect(plane, namespace, etcd)
    body = {
        "apiVersion": "etcdmaint.io/v1alpha1",
        "kind": "StorageCompressionConfiguration",
        "metadata": {"name": "policy"},
        "spec": {
            "clusterRef": {"name": "etcd", "kind": "EtcdConnection"},
            "audit": {"interval": "0s", "bytesPerSecond": rate},
        },
    }
    path = path_of(PLURAL, namespace)
    plane.api.request("POST", path, body)
    with OperatorProcess(
        folder, plane, namespaces=[namespace], lease_namespace=namespace
    ) as operator:
        operator.wait_leading()

        def audited() -> bool:
            status = plane.api.request("GET", f"{path}/policy").get("status", {})
            return bool(status.get("lastAudit"))

        def looked_at() -> bool:
            return bool(plane.api.request("GET", f"{path}/policy").get("status"))

        wait_until(looked_at, "is looked at", timeout=60.0)
        time.sleep(5.0)
        pid = operator.server.pid
        before = resident(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        began = time.monotonic()
        change = {"spec": {"audit": {"interval": "24h"}}}
        plane.api.request("PATCH", f"{path}/policy", change, content_type=MERGE)
        wait_until(audited, "is audited", timeout=300.0, pause=0.1)
        seconds = time.monotonic() - began
        peak = resident(pid, "VmHWM")
        values = plane.api.request("GET", f"{path}/policy")["status"]["lastAudit"]["values"]
        assert values == VALUES, values
    return [f"{before:.0f}", f"{peak:.0f}", f"{peak - before:.1f}", f"{seconds:.1f}"]


def main() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        plane = stack.enter_context(ControlPlane(folder / "plane"))
        install_crds(plane)
        for words in (100, 400):
            etcd = stack.enter_context(EtcdCluster(folder / f"etcd-{words}", size=1))
            size = f"{plant(etcd, VALUES, words) / 2**20:.0f}"
            for rate in ("20Mi", "1Gi"):
                namespace = f"bench-{words}-{rate.lower()}"
                rows.append([size, rate, *measure(folder, plane, etcd, namespace, rate)])
                print(rows[-1], file=sys.stderr, flush=True)
    print(f"{VALUES} values:\n")
    head = [
        "MiB",
        "bytesPerSecond",
        "resident before MiB",
        "peak MiB",
        "more MiB",
        "until it is told s",
    ]
    print(table(head, rows))


if __name__ == "__main__":
    main()
