"""What the operator costs: `python -m tests.bench.bench_operator`.

Ready time, resident memory with many objects, CPU time at rest, and writes a run. 200 etcds do not fit on
one machine: a stand-in answers for them (see `standin`), and eight real ones are measured beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from etcdmaint.defrag.timing import Timing
from etcdmaint.operator import OperatorOptions
from tests.cluster.objects import connect, install_crds, path_of
from tests.cluster.operators import QUICK, OperatorProcess, grant_everywhere
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.processes import wait_until

from .page import table

REST = 60.0
TICK = os.sysconf("SC_CLK_TCK")
LEASE = ("lease_duration", "renew_deadline", "retry_period")


@contextmanager
def standins(count: int) -> Iterator[list[str]]:
    """The URLs of so many stand-ins."""
    command = [sys.executable, "-m", "tests.bench.standin", str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        urls = []
        for line in process.stdout:
            if line.strip() == "ready":
                break
            urls.append(line.strip())
        yield urls
    finally:
        process.kill()
        process.wait()


def resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(line)


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def make_runs(plane: ControlPlane, namespace: str, count: int, connections: int) -> None:
    """Finished by nobody: paused runs, each with its daemon in the operator."""
    for number in range(count):
        plane.api.request(
            "POST",
            path_of("etcddefrags", namespace),
            {
                "apiVersion": "etcd-operator.cozystack.io/v1alpha2",
                "kind": "EtcdDefrag",
                "metadata": {
                    "name": f"run-{number}",
                    "annotations": {"etcdmaint.io/paused": "true"},
                },
                "spec": {
                    "clusterRef": {"kind": "EtcdConnection", "name": f"etcd-{number % connections}"}
                },
            },
        )


def measure(folder: Path, urls: list[str], runs: int, what: str) -> list[str]:
    """One operator with these connections and so many unfinished runs."""
    folder.mkdir()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(folder / "plane"))
        install_crds(plane)
        grant_everywhere(plane, "operator", "default")
        plane.api.create_namespace("bench")
        for number, url in enumerate(urls):
            connect(plane, "bench", [url], name=f"etcd-{number}")
        began = time.monotonic()
        # The timings that people have, not those that tests shrink.
        usual = {name: getattr(Timing(), name) for name in QUICK}
        lease = {name: getattr(OperatorOptions(), name) for name in LEASE}
        operator = OperatorProcess(folder, plane, timing=usual, **lease)
        stack.callback(operator.kill)
        operator.start()
        operator.wait_leading()
        ready = time.monotonic() - began

        def measured() -> bool:
            items = plane.api.request("GET", path_of("etcdconnections", "bench"))["items"]
            return all(item.get("status", {}).get("members") for item in items)

        wait_until(measured, "every connection is measured", timeout=300.0, pause=1.0)
        pid = operator.server.pid
        before = cpu_seconds(pid)
        time.sleep(REST)
        share = (cpu_seconds(pid) - before) / REST
        make_runs(plane, "bench", runs, len(urls))

        def waiting() -> bool:
            assert operator.server.running, "the operator ended; its log says why"
            items = plane.api.request("GET", path_of("etcddefrags", "bench"))["items"]
            return all(item.get("status", {}).get("phase") == "Pending" for item in items)

        wait_until(waiting, "every run waits", timeout=600.0, pause=1.0)
        memory = resident(pid)
    return [what, str(runs), f"{ready:.1f}", f"{memory:.0f}", f"{share * 100:.2f}"]


def main() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        real = []
        for number in range(8):
            cluster = EtcdCluster(folder / f"etcd-{number}", size=1)
            cluster.folder.mkdir()
            stack.enter_context(cluster)
            real += cluster.client_urls
        rows.append(measure(folder / "real", real, 100, "8 real etcds"))
        print(rows[-1], file=sys.stderr, flush=True)
        for count, runs in ((8, 100), (20, 100), (200, 1000)):
            with standins(count) as urls:
                rows.append(measure(folder / f"s{count}", urls, runs, f"{count} stand-ins"))
                print(rows[-1], file=sys.stderr, flush=True)
    head = ["connections", "unfinished EtcdDefrags", "ready s", "resident MiB", "CPU at rest %"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
