"""Whether a kube-apiserver feels a scan: `python -m tests.bench.bench_scan_serving`.

50,000 real objects of mixed kinds; a client GETs one after the other, at a pace that leaves the machine
air, for thirty seconds alone and for thirty beside scans at the default rate, the two in turns. Wanted:
the median of a GET within 20 %, its 99th percentile at most 5 ms or twice what it was. `--quick`: three
pairs of five seconds with 5,000 objects.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.storing import KINDS, WIDGETS, Stored, configuration
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.kubeconfig import context_for
from tests.kms_plugin import KmsPlugin

from .page import table

PAUSE = 0.005


class Client:
    """GETs objects over one connection, as a controller does."""

    def __init__(self, plane: ControlPlane, objects: int) -> None:
        self._plane = plane
        self._objects = objects
        self._random = random.Random(7)
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", plane.port, context=context_for(plane.authority)
        )

    def latencies(self, seconds: float) -> list[float]:
        """Of every GET within so many seconds."""
        found = []
        end = time.monotonic() + seconds
        headers = {"Authorization": f"Bearer {self._plane.api._token}"}
        while time.monotonic() < end:
            kind = KINDS[self._random.randrange(len(KINDS))]
            path = f"{kind.path}/seed-{self._random.randrange(1, self._objects):05d}"
            began = time.perf_counter()
            try:
                self._connection.request("GET", path, headers=headers)
                answer = self._connection.getresponse()
            except http.client.RemoteDisconnected:
                # Now and then an API server closes a connection; http.client opens another one.
                self._connection.close()
                continue
            answer.read()
            found.append(time.perf_counter() - began)
            assert answer.status == 200, path
            time.sleep(PAUSE)
        return found


class Scanning:
    """Scans, one after the other, until it is left."""

    def __init__(self, plane: ControlPlane) -> None:
        endpoint = f"--endpoints={plane.etcd.client_urls[0]}"
        scan = f"{sys.executable} -m etcdmaint storage scan {endpoint} > /dev/null 2>&1"
        # A shell that goes on for ever, in a group of its own.
        self._command = ["sh", "-c", f"while {scan}; do :; done"]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, start_new_session=True)
        # What a start costs is not what a scan costs.
        time.sleep(1.0)

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait()


def main() -> None:
    """Print the table."""
    quick = "--quick" in sys.argv
    pairs, seconds, objects = (3, 5.0, 5_000) if quick else (7, 30.0, 50_000)
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    each = objects // len(KINDS)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="kms") as short,
        KmsPlugin(f"{short}/kms.sock", ["kid-1"]) as plugin,
    ):
        file = Path(folder) / "encryption.json"
        file.write_bytes(configuration(plugin, writes=False))
        with ControlPlane(Path(folder) / "plane", encryption_config=file) as plane:
            plane.apply(WIDGETS)
            plane.wait_established("widgets.example.com")
            stored = Stored(plane, plugin, file)
            for kind in KINDS:
                stored.create(kind, size=1800)
                asyncio.run(stored.copy(kind, 1, each))
            exact = [f"bare: {_exact(stored, each + 1)}"]
            client = Client(plane, each)
            client.latencies(2.0)
            alone, beside = [], []
            for _ in range(pairs):
                alone.append(client.latencies(seconds))
                with Scanning(plane):
                    beside.append(client.latencies(seconds))
            stored.encrypt(writes=True)
            for kind in KINDS:
                asyncio.run(stored.copy(kind, 1, each))
            exact.append(f"encrypted: {_exact(stored, each + 1)}")
    rows = []
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        before = [_quantile(found, share) for found in alone]
        during = [_quantile(found, share) for found in beside]
        ratios = [b / a for a, b in zip(before, during, strict=True)]
        rows.append(
            [
                name,
                f"{statistics.median(before) * 1000:.2f}",
                f"{statistics.median(during) * 1000:.2f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    print(table(["GET", "alone, ms", "beside a scan, ms", "ratio (median)", "of all pairs"], rows))
    print(f"\nCounts of {objects:,} objects of six kinds: {'; '.join(exact)}.")
    print(f"{pairs} pairs of {seconds:g} s, {objects:,} objects; load {os.getloadavg()[0]:.1f}")


def _exact(stored: Stored, each: int) -> str:
    """A scan of everything against what was made; how long it took, or what is wrong."""
    began = time.monotonic()
    flags = ("--limit-rate=0", "-o", "json", f"--encryption-config={stored.file}")
    endpoint = f"--endpoints={stored.plane.etcd.client_urls[0]}"
    scan = subprocess.run(
        [sys.executable, "-m", "etcdmaint", "storage", "scan", endpoint, *flags],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - began
    found = {row["resource"]: row["values"] for row in json.loads(scan.stdout)["resources"]}
    wrong = {kind.name: found[kind.name] for kind in KINDS if found[kind.name] != each}
    # The control plane's own.
    for name in ("configmaps", "leases.coordination.k8s.io", "events"):
        if each <= wrong.get(name, 0) <= each + 20:
            del wrong[name]
    return f"{wrong} instead of {each} each" if wrong else f"exact, in {seconds:.1f} s"


def _quantile(found: list[float], share: float) -> float:
    return sorted(found)[int(share * (len(found) - 1))]


if __name__ == "__main__":
    main()
