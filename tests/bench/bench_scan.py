"""`etcdmaint storage scan` beside `etcdctl get --prefix`, in one run: `python -m tests.bench.bench_scan`.

Both read the same real objects, from an etcd of one member, without a limit, and take turns; what they
write is thrown away. etcdctl only writes what it reads, the scan tells what every value is. Of both: bytes
a second, peak resident memory, and what the reading cost etcd: CPU time, and how far three readings
drive up its memory after a start. With
`--quick` a tenth of the values. `--keys` also reads a million small keys.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import PutOp
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.member import Member

from .bench_compression_objects import of_size
from .page import table

RUNS = 7
# A child begins with the peak of its parent, so a small one starts it.
_LAUNCHER = """
import os, sys, time
began = time.monotonic()
null = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), time.monotonic() - began, usage.ru_maxrss,
      usage.ru_utime + usage.ru_stime)
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """One reading: seconds of wall clock and of CPU; bytes of memory; the same of etcd."""

    seconds: float
    cpu: float
    memory: int
    etcd_cpu: float
    etcd_peak: int


def stored(size: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Objects of about this size, in forty namespaces."""
    made = of_size(size, min(count, 200))
    for number in range(count):
        yield b"/registry/pods/ns-%02d/p-%07d" % (number % 40, number), made[number % len(made)]


def fill(cluster: EtcdCluster, values: Iterator[tuple[bytes, bytes]]) -> int:
    """Write them in transactions; the bytes of keys and values."""

    async def write() -> int:
        endpoint = Endpoint.parse(cluster.client_urls[0])
        total, batch, pending = 0, [], 0
        async with MemberClient(endpoint, Access(), timeout=60.0) as client:
            for key, value in values:
                batch.append(PutOp(key, value))
                total += len(key) + len(value)
                pending += len(value)
                if len(batch) == 100 or pending > 1_000_000:
                    await client.txn([], batch)
                    batch, pending = [], 0
            if batch:
                await client.txn([], batch)
        return total

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(write())).result()


def measure(command: Sequence[str], member: Member) -> Cost:
    """Run it to its end, with its output thrown away."""
    proc = Path(f"/proc/{member.pid}")
    before, peak = _cpu(proc), _anonymous(proc)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _LAUNCHER, *command], stdout=subprocess.PIPE
    ) as process:
        while process.poll() is None:
            peak = max(peak, _anonymous(proc))
            time.sleep(0.02)
        told = process.communicate()[0].split()
    assert int(told[0]) in (0, 10), command
    seconds, memory, cpu = float(told[1]), int(told[2]) * 1024, float(told[3])
    return Cost(seconds, cpu, memory, _cpu(proc) - before, peak)


def rise(command: Sequence[str], member: Member) -> int:
    """How far three such readings drive up the memory of an etcd that has just started."""
    member.stop()
    member.start()
    base = _anonymous(Path(f"/proc/{member.pid}"))
    return max(measure(command, member).etcd_peak for _ in range(3)) - base


def _cpu(proc: Path) -> float:
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _anonymous(proc: Path) -> int:
    """etcd's own memory: pages of the database that it has mapped come and go as the kernel likes."""
    for line in (proc / "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def compare(version: str, size: int, count: int, runs: int) -> list[list[str]]:
    """Rows of the table for one kind of content."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EtcdCluster(Path(folder), size=1, version=version, quota_backend_bytes=8 << 30) as cluster,
    ):
        total = fill(cluster, stored(size, count))
        member = cluster.members[0]
        endpoint = f"--endpoints={cluster.client_urls[0]}"
        scan = [sys.executable, "-m", "etcdmaint", "storage", "scan", endpoint]
        commands = {
            "storage scan": [*scan, "--limit-rate=0", "--command-timeout=60s"],
            "etcdctl get": cluster.etcdctl_command(
                "get", "--prefix", "/registry", "--command-timeout=300s"
            ),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for run in range(runs + 1):
            for name, command in commands.items():
                cost = measure(command, member)
                if run:
                    costs[name].append(cost)
        risen = {name: rise(command, member) for name, command in commands.items()}
    return [
        [
            version,
            f"{count:,} x {size:,} B",
            name,
            f"{statistics.median(total / cost.seconds for cost in found) / 1e6:.0f}",
            f"{_ratio(costs, total):.2f}" if name == "storage scan" else "1",
            f"{statistics.median(cost.cpu for cost in found):.2f}",
            f"{max(cost.memory for cost in found) / 2**20:.0f}",
            f"{statistics.median(cost.etcd_cpu for cost in found):.2f}",
            f"{risen[name] / 2**20:.0f}",
        ]
        for name, found in costs.items()
    ]


def _ratio(costs: dict[str, list[Cost]], _total: int) -> float:
    """Bytes a second of the scan to etcdctl's, pair by pair; the median."""
    pairs = zip(costs["storage scan"], costs["etcdctl get"], strict=True)
    return statistics.median(other.seconds / mine.seconds for mine, other in pairs)


def main() -> None:
    """Print the table."""
    quick = "--quick" in sys.argv
    share, runs = (10, 3) if quick else (1, RUNS)
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    rows = []
    for version in ("3.7", "3.6"):
        for size, count in ((2_000, 200_000), (200_000, 2_000)):
            rows += compare(version, size, count // share, runs)
    if "--keys" in sys.argv:
        for version in ("3.7", "3.6"):
            rows += compare(version, 300, 1_000_000 // share, 1)
    head = [
        "etcd",
        "values",
        "reader",
        "MB/s",
        "ratio",
        "CPU s",
        "peak MiB",
        "etcd CPU s",
        "etcd + MiB",
    ]
    print(table(head, rows))
    print(
        f"\nmedians of {runs} runs in turns, peaks are the highest; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
