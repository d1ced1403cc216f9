"""A sweep of three members beside `etcdctl defrag --cluster`: `python -m tests.bench.bench_sweep`.

Both work on copies of the same prepared databases, in turns, under 50 writes a second through all members
and a lease that a client keeps alive, trying the next member after a second. etcd's own metrics say how
many defragmentations each member ran and how long they took.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from etcdmaint.errors import EtcdError, LeaseNotFound
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.etcd import EtcdCluster

from .page import table

MB = 1_000_000
WRITES_PER_SECOND = 50
AROUND_TRANSFER = 0.2


@dataclass(frozen=True, slots=True)
class Shape:
    """What each member holds, and the lease that must survive."""

    name: str
    live: int
    dead: int
    lease_ttl: int


SHAPES = (
    Shape("480 MB, half reclaimable", 240 * MB, 240 * MB, 2),
    Shape("1.1 GB, a quarter reclaimable", 825 * MB, 275 * MB, 5),
)


@dataclass(slots=True)
class Watched:
    """What the clients of the cluster saw while a tool was at it."""

    puts: list[tuple[float, float, bool]] = field(default_factory=list)
    lease_lost: bool = False
    transfers: list[float] = field(default_factory=list)
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one tool."""

    wall: float
    rpcs: float
    longest_rpc: float
    stall: float
    apart: int
    failed_puts: int
    lease_lost: bool
    counts: tuple[int, ...]
    overlap: bool


class Bench:
    """A prepared cluster that is put back to its first state before every run."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self._pristine = folder / "pristine"
        self.cluster = EtcdCluster(folder / "etcd", quota_backend_bytes=8_000 * MB)

    def prepare(self) -> None:
        """Fill it once, and keep a copy of the members' data."""
        (self.cluster.folder).mkdir(parents=True, exist_ok=True)
        self.cluster.start()
        self.cluster.fill(
            bytes_live=self.shape.live, bytes_deleted=self.shape.dead, value_size=20_000
        )
        for member in self.cluster.members:
            member.stop()
            shutil.copytree(member.data_dir, self._pristine / member.name)

    def restore(self) -> None:
        """Every member as it was prepared, in a new process."""
        for member in self.cluster.members:
            member.kill()
            shutil.rmtree(member.data_dir)
            shutil.copytree(self._pristine / member.name, member.data_dir)
        self.cluster.start()

    def commands(self) -> dict[str, list[str]]:
        """The tools that are compared."""
        ours = [sys.executable, "-m", "etcdmaint", "defrag", "--all", "-o", "json"]
        ours.append("--endpoints=" + ",".join(self.cluster.client_urls))
        return {
            "etcdmaint": ours,
            "etcdmaint --move-leader never": [*ours, "--move-leader", "never"],
            "etcdctl --cluster": self.cluster.etcdctl_command(
                "defrag", "--cluster", "--command-timeout=600s"
            ),
        }


async def run(bench: Bench, commands: list[list[str]]) -> Sample:
    """Run the commands at once while the clients write and keep their lease."""
    watched = Watched()
    clients = [MemberClient(Endpoint.parse(url), Access()) for url in bench.cluster.client_urls]
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(_write(client, number, stop, watched))
            group.create_task(_keep_lease(clients, bench.shape.lease_ttl, stop, watched))
            group.create_task(_watch_members(bench.cluster, stop, watched))
            await asyncio.sleep(1.0)
            began = time.monotonic()
            processes = [
                await asyncio.create_subprocess_exec(
                    *command,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={k: v for k, v in os.environ.items() if not k.startswith("ETCDCTL_")},
                )
                for command in commands
            ]
            for process in processes:
                await process.wait()
            wall = time.monotonic() - began
            # A lease that was lost shows within its TTL, a put that hangs within etcd's own 7 s.
            await asyncio.sleep(max(bench.shape.lease_ttl, 7.5))
            stop.set()
    finally:
        for client in clients:
            await client.close()
    name = "etcd_disk_backend_defrag_duration_seconds"
    pages = [await asyncio.to_thread(member.metrics) for member in bench.cluster.members]
    sums = [page[f"{name}_sum"] for page in pages]
    counts = tuple(int(page[f"{name}_count"]) for page in pages)
    calm, apart, failed = _stalls(watched)
    return Sample(
        wall=wall,
        rpcs=sum(sums),
        longest_rpc=max(s / max(1, c) for s, c in zip(sums, counts, strict=True)),
        stall=calm,
        apart=apart,
        failed_puts=failed,
        lease_lost=watched.lease_lost,
        counts=counts,
        overlap=watched.overlap,
    )


def _stalls(watched: Watched) -> tuple[float, int, int]:
    """The longest stall of a writer; puts in flight around a transfer are counted apart."""
    longest, apart = 0.0, 0
    for began, ended, _ in watched.puts:
        near = any(
            began - AROUND_TRANSFER <= moved <= ended + AROUND_TRANSFER
            for moved in watched.transfers
        )
        if near and ended - began > AROUND_TRANSFER:
            apart += 1
        elif not near:
            longest = max(longest, ended - began)
    return longest, apart, sum(not good for _, _, good in watched.puts)


async def _write(client: MemberClient, number: int, stop: asyncio.Event, watched: Watched) -> None:
    pause = 3 / WRITES_PER_SECOND
    while not stop.is_set():
        began = time.monotonic()
        good = True
        try:
            await client.put(f"bench/{number}".encode(), b"x" * 100, timeout=60.0)
        except EtcdError:
            good = False
        ended = time.monotonic()
        watched.puts.append((began, ended, good))
        await asyncio.sleep(max(0.0, pause - (ended - began)))


async def _keep_lease(
    clients: list[MemberClient], ttl: int, stop: asyncio.Event, watched: Watched
) -> None:
    lease, _ = await clients[0].lease_grant(ttl)
    await clients[0].put(b"bench/leased", b"alive", lease=lease)
    at = 0
    while not stop.is_set():
        try:
            await clients[at].lease_keep_alive(lease, timeout=1.0)
        except LeaseNotFound:
            watched.lease_lost = True
            return
        except EtcdError:
            at = (at + 1) % len(clients)
            continue
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), ttl / 3)


async def _watch_members(cluster: EtcdCluster, stop: asyncio.Event, watched: Watched) -> None:
    """When leadership moved, and whether two members were ever defragmenting at once."""
    leader = 0
    while not stop.is_set():
        pages = await asyncio.to_thread(lambda: [member.metrics() for member in cluster.members])
        if sum(page.get("etcd_disk_defrag_inflight", 0) for page in pages) > 1:
            watched.overlap = True
        now = [at for at, page in enumerate(pages) if page.get("etcd_server_is_leader")]
        if now and leader not in (0, now[0] + 1):
            watched.transfers.append(time.monotonic())
        leader = now[0] + 1 if now else leader
        await asyncio.sleep(0.1)


def _row(name: str, samples: list[Sample]) -> list[str]:
    def median(value: Callable[[Sample], float]) -> str:
        return f"{statistics.median(map(value, samples)):.2f}"

    return [
        name,
        median(lambda s: s.wall),
        median(lambda s: s.rpcs),
        median(lambda s: (s.wall - s.rpcs) / 3),
        median(lambda s: s.wall / s.rpcs),
        median(lambda s: s.longest_rpc),
        median(lambda s: s.stall),
        median(lambda s: s.stall - s.longest_rpc),
        str(sum(s.apart for s in samples)),
        str(sum(s.failed_puts for s in samples)),
        f"{sum(s.lease_lost for s in samples)} of {len(samples)}",
        " ".join(sorted({"/".join(map(str, s.counts)) for s in samples})),
    ]


HEAD = [
    "tool",
    "wall s",
    "RPCs s",
    "(wall - RPCs) a member s",
    "wall / RPCs",
    "longest RPC s",
    "longest stall s",
    "stall - longest RPC s",
    "puts slow around a transfer",
    "puts failed",
    "leases lost",
    "defragmentations a member",
]


async def measure(shape: Shape, runs: int) -> str:
    """Every tool in turn, then two runs at once."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), shape)
        try:
            bench.prepare()
            samples: dict[str, list[Sample]] = {name: [] for name in bench.commands()}
            for _ in range(runs):
                for name, command in bench.commands().items():
                    bench.restore()
                    samples[name].append(await run(bench, [command]))
            twice = []
            for name in ("etcdmaint", "etcdctl --cluster"):
                bench.restore()
                command = bench.commands()[name]
                both = await run(bench, [command, command])
                counts = "/".join(map(str, both.counts))
                twice.append([name, counts, "yes" if both.overlap else "no"])
        finally:
            bench.cluster.stop()
    return (
        f"### {shape.name}, lease of {shape.lease_ttl} s, median of {runs} runs\n\n"
        + table(HEAD, [_row(name, rows) for name, rows in samples.items()])
        + "\n\nTwo runs at once:\n\n"
        + table(["tool", "defragmentations a member", "two members at once"], twice)
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="the smaller shape only")
    options = parser.parse_args()
    for shape in SHAPES[:1] if options.small else SHAPES:
        print(asyncio.run(measure(shape, options.runs)), flush=True)
        print()


if __name__ == "__main__":
    main()
