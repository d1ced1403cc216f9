"""Framing and unframing beside Go's compress/flate: `python -m tests.bench.bench_compression`.

One run, one core, the two taking turns, the best of many rounds each: a noisy machine slows both
alike. Go frames with a writer that is reset and a reader that is reset, as an API server would.
`--write PATH` renders what was measured as the page that docs/ has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
from isal import igzip_lib, isal_zlib
from zlib_ng import zlib_ng

from etcdmaint.compression import frame
from etcdmaint.compression.policy import Algorithm, Rule
from etcdmaint.compression.transformer import Identity, Transformer
from tests.controlplane.cache import cache_dir
from tests.controlplane.golang import toolchain
from tests.fuzz.judge import GO_MODULE, go_flate

from .bench_compression_objects import Objects, of_size

SIZES = {"1 KB": 1000, "14 KB": 14_000, "256 KB": 256_000}
TARGETS = {
    ("encode", "1 KB"): 2.0,
    ("encode", "14 KB"): 3.0,
    ("encode", "256 KB"): 3.0,
    ("decode", "1 KB"): 1.0,
    ("decode", "14 KB"): 1.5,
    ("decode", "256 KB"): 2.0,
}
_KEY = b"/registry/pods/default/web"


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison: bytes of plaintext a second."""

    operation: str
    size: str
    ours: float
    go: float

    @property
    def factor(self) -> float:
        return self.ours / self.go

    @property
    def target(self) -> float:
        return TARGETS[self.operation, self.size]


class Go:
    """The Go program with some objects in its memory."""

    def __init__(self, objects: list[bytes]) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            for value in objects:
                file.write(struct.pack("<I", len(value)) + value)
        self._process = subprocess.Popen(
            [str(go_flate()), "bench", file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"GOMAXPROCS": "1"},
        )
        told = self._answer()
        Path(file.name).unlink()
        self.ratio = told["plain"] / told["stored"]

    def seconds(self, operation: str, rounds: int) -> float:
        assert self._process.stdin
        self._process.stdin.write(f"{operation} {rounds}\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer


def seconds(work: Callable[[bytes], object], values: list[bytes], rounds: int) -> float:
    """How long so many rounds over all values take."""
    start = time.perf_counter()
    for _ in range(rounds):
        for value in values:
            work(value)
    return time.perf_counter() - start


def beside_go(repeats: int) -> tuple[list[Line], dict[str, tuple[float, float]]]:
    """The comparison, and the ratios (ours, Go's) of each size."""
    lines, ratios = [], {}
    for name, size in SIZES.items():
        objects = of_size(size, 32)
        frames = [frame.encode(value) for value in objects]
        plain = sum(map(len, objects))
        rounds = max(1, 1_500_000 // plain)
        go = Go(objects)
        ratios[name] = (plain / sum(map(len, frames)), go.ratio)
        for operation, work, values in (
            ("encode", frame.encode, objects),
            ("decode", frame.decode, frames),
        ):
            best = [float("inf")] * 2
            for _ in range(repeats):
                best[0] = min(best[0], seconds(work, values, rounds))
                best[1] = min(best[1], go.seconds(operation, rounds))
            ours, theirs = (plain * rounds / each for each in best)
            lines.append(Line(operation, name, ours, theirs))
            print(
                f"{operation} {name}: {ours / 1e6:.0f} MB/s, Go {theirs / 1e6:.0f}, {ours / theirs:.2f}"
            )
        go.close()
    return lines, ratios


def alternatives(repeats: int) -> list[tuple[str, str, list[float], str]]:
    """Other libraries at the same work without frame and checksum: MB/s for each size."""

    def reading(library: object) -> Callable[[bytes], object]:
        new = library.decompressobj
        return lambda stream: new(-15).decompress(stream, frame.MAX_PLAINTEXT_BYTES)

    writers: dict[str, Callable[[bytes], bytes]] = {
        "ISA-L, level 1": lambda value: igzip_lib.compress(value, 1, igzip_lib.COMP_DEFLATE),
        "zlib-ng, level 1": lambda value: zlib_ng.compress(value, 1, -15),
        "zlib-ng, level 2": lambda value: zlib_ng.compress(value, 2, -15),
        "zlib, level 1": lambda value: zlib.compress(value, 1, -15),
    }
    readers = {
        "zlib-ng": reading(zlib_ng),
        "zlib": reading(zlib),
        "ISA-L (verdict differs from Go's)": reading(isal_zlib),
    }
    rows = []
    for kind, candidates in (("write", writers), ("read", readers)):
        for name, work in candidates.items():
            speeds, note = [], ""
            for size in SIZES.values():
                objects = of_size(size, 32)
                values = objects
                if kind == "read":
                    values = [zlib.compress(value, 1, -15) for value in objects]
                plain = sum(map(len, objects))
                rounds = max(1, 500_000 // plain)
                best = min(seconds(work, values, rounds) for _ in range(repeats))
                speeds.append(plain * rounds / best / 1e6)
                if kind == "write":
                    note += f" {plain / sum(len(work(value)) for value in objects):.2f}"  # type: ignore[arg-type]
            rows.append((kind, name, speeds, note.strip()))
            print(kind, name, *(f"{speed:.0f}" for speed in speeds), note)
    return rows


def overhead(repeats: int) -> dict[str, float]:
    """Microseconds that a transformer adds to a value that is not framed."""
    rule = Rule(entry=0, algorithm=Algorithm.DEFLATE, min_size=1024)
    identity = Identity()
    subjects = {
        "selected": Transformer(rule, identity),
        "not selected": Transformer(Rule(), identity),
    }
    small = b"k8s\0" + b"x" * 500
    times = 20_000

    def each(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(times):
                work()
            best = min(best, time.perf_counter() - start)
        return best / times * 1e6

    bare = each(lambda: identity.from_storage(small, _KEY))
    told = {}
    for name, subject in subjects.items():
        told[f"read, {name}"] = each(lambda: subject.from_storage(small, _KEY)) - bare  # noqa: B023
        told[f"write, {name}"] = each(lambda: subject.to_storage(small, _KEY)) - bare  # noqa: B023
    for name, value in told.items():
        print(f"transformer, {name}: {value:.2f} µs")
    return told


def threads(repeats: int) -> list[tuple[str, str, dict[int, float]]]:
    """Throughput of 1, 2 and 16 threads, all of them at the same work, in MB/s."""
    rows = []
    for name, size in SIZES.items():
        objects = of_size(size, 16)
        frames = [frame.encode(value) for value in objects]
        plain = sum(map(len, objects))
        for operation, work, values in (
            ("encode", frame.encode, objects),
            ("decode", frame.decode, frames),
        ):
            speeds: dict[int, float] = dict.fromkeys((1, 2, 16), 0.0)
            for _ in range(repeats):
                for count in speeds:
                    # The same work in all, and little of it: on a shared machine only a short
                    # while has both CPUs to itself.
                    rounds = max(1, 6_000_000 // plain // count)
                    speed = plain * rounds * count / _together(work, values, rounds, count) / 1e6
                    speeds[count] = max(speeds[count], speed)
            rows.append((operation, name, speeds))
            print(
                "threads", operation, name, {count: round(speed) for count, speed in speeds.items()}
            )
    return rows


def _together(
    work: Callable[[bytes], object], values: list[bytes], rounds: int, count: int
) -> float:
    barrier = threading.Barrier(count + 1)

    def loop() -> None:
        barrier.wait()
        seconds(work, values, rounds)

    running = [threading.Thread(target=loop) for _ in range(count)]
    for thread in running:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in running:
        thread.join()
    return time.perf_counter() - start


_MEMORY = """
import re, sys, threading
from etcdmaint.compression import frame
count = int(sys.argv[1])
value = sys.stdin.buffer.read()
# Not getrusage: that begins with what the parent had.
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
gate = threading.Barrier(count)
class Held:
    # Everybody is inside before anybody inflates, and nobody lets go before all have.
    def __enter__(self): gate.wait()
    def __exit__(self, *error): gate.wait()
workers = [threading.Thread(target=lambda: frame.decode(value, Held())) for _ in range(count)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print((peak() - before) / count)
"""


def memory() -> list[tuple[int, float]]:
    """Bytes of resident memory for each inflation of a value at the ceiling, all at once."""
    rows = []
    block = random.Random(1).randbytes(frame.MAX_PLAINTEXT_BYTES // 2).hex().encode()
    value = frame.encode(block)
    for count in (4, 16, 64, 384):
        told = subprocess.run(
            [sys.executable, "-c", _MEMORY, str(count)],
            input=value,
            check=True,
            capture_output=True,
        )
        rows.append((count, float(told.stdout)))
        print(f"memory: {count} at once, {rows[-1][1] / 2**20:.2f} MiB each")
    return rows


# Of the proposal's production data: the class, the median ratio.
KEP_PODS = {
    3500: 1.75,
    6700: 2.43,
    14_600: 2.75,
    34_200: 2.56,
    76_600: 4.10,
    162_500: 3.36,
    278_500: 6.15,
}
# Of its fixtures: one real object of each kind.
KEP_FIXTURES = {"Event": 1.85, "Lease": 1.35, "Node": 2.05, "ConfigMap": 1.38, "Secret": 1.43,
                "Deployment": 4.72, "Job": 4.67, "Endpoints": 2.05, "Service": 1.66, "Pod": 4.87}  # fmt: skip


def ratios_of_kinds() -> list[tuple[str, int, float, float, float | None]]:
    """Kind, bytes, our ratio, Go's, the proposal's figure for the kind or the size class."""
    source = Objects(6264)
    samples: list[tuple[str, list[bytes], float | None]] = [
        (f"Pod of {size / 1000:.1f} KB, generated", [source.pod(size) for _ in range(8)], told)
        for size, told in KEP_PODS.items()
    ]
    samples += [
        ("Event, generated", [source.event() for _ in range(30)], KEP_FIXTURES["Event"]),
        ("Lease, generated", [source.lease() for _ in range(30)], KEP_FIXTURES["Lease"]),
        ("Node, generated", [source.node() for _ in range(8)], KEP_FIXTURES["Node"]),
        ("custom resource, generated", [source.custom(14_000) for _ in range(8)], None),
    ]
    samples += _vectors()
    rows = []
    for name, values, told in samples:
        plain = sum(map(len, values))
        go = Go(values)
        rows.append(
            (
                name,
                plain // len(values),
                plain / sum(len(frame.encode(value)) for value in values),
                go.ratio,
                told,
            )
        )
        go.close()
    return rows


def _vectors() -> list[tuple[str, list[bytes], float | None]]:
    from tests.unit.compression.vectors import cases, octets

    by_kind: dict[str, list[bytes]] = {}
    for case in cases("storage_values"):
        value = octets(case["value"])
        by_kind.setdefault(f"{case['object_kind']} ({case['form']})", []).append(value)
    rows = [
        (f"{kind}, vectors", values, KEP_FIXTURES.get(kind.split()[0]) if "proto" in kind else None)
        for kind, values in by_kind.items()
        if sum(map(len, values)) / len(values) > 250
    ]
    realistic = [case for case in cases("frames") if case["kind"] == "realistic"]
    rows += [(case["name"], [frame.decode(octets(case["value"]))], None) for case in realistic]
    return rows


def page(
    lines: list[Line],
    ratios: dict[str, tuple[float, float]],
    others: list[tuple[str, str, list[float], str]],
    added: dict[str, float],
    scaling: list[tuple[str, str, dict[int, float]]],
    resident: list[tuple[int, float]],
    kinds: list[tuple[str, int, float, float, float | None]],
) -> str:
    """Everything as Markdown."""
    go = subprocess.run([str(go_flate())], capture_output=True, text=True, check=False)
    assert "usage" in go.stderr
    version = toolchain(GO_MODULE, cache_dir()).version
    out = [
        "# Compression: figures",
        "",
        (
            f"Made by `python -m tests.bench.bench_compression --write "
            "docs/benchmarks/compression.md` with Python "
            f"{platform.python_version()} and Go {version} on {os.cpu_count()} shared CPUs "
            f"({_processor()}). ISA-L writes, zlib-ng reads. Both columns come from one run on one core, "
            "the two taking turns, the best of many rounds each. The objects are generated from a seed: "
            "Pods, Nodes and custom resources, and at 1 KB Events, Leases and custom resources."
        ),
        "",
        "## Beside Go's compress/flate at level 1 with hash/crc32",
        "",
        "Whole frames both ways, MB of plaintext a second.",
        "",
        "| | size | etcdmaint | Go | factor | target |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        out.append(
            f"| {line.operation} | {line.size} | {line.ours / 1e6:.0f} | {line.go / 1e6:.0f} "
            f"| {line.factor:.2f} | {line.target} |"
        )
    out += ["", "| ratio of these objects | etcdmaint | Go | better by |", "|---|---|---|---|"]
    for size, (ours, theirs) in ratios.items():
        out.append(f"| {size} | {ours:.3f} | {theirs:.3f} | {100 * (ours / theirs - 1):+.1f} % |")
    out += [
        "",
        "## The libraries that could have been taken",
        "",
        "The stream alone, without frame and checksum, MB of plaintext a second.",
        "",
        "| | library | 1 KB | 14 KB | 256 KB | ratios |",
        "|---|---|---|---|---|---|",
    ]
    for kind, name, speeds, note in others:
        out.append(
            f"| {kind} | {name} | {' | '.join(f'{speed:.0f}' for speed in speeds)} | {note} |"
        )
    out += [
        "",
        "## What the transformer adds to a value that is not framed",
        "",
        "| | µs |",
        "|---|---|",
        *(f"| {name} | {value:.2f} |" for name, value in added.items()),
        "",
        "## Threads",
        "",
        (
            "MB of plaintext a second, all threads together, two CPUs. The libraries let go of the "
            "interpreter's lock while they work; at 1 KB taking it back costs as much as the work, and "
            "threads gain little or lose. Each figure is the best of many short whiles; on a machine "
            "whose CPUs others use too, two threads seldom have both."
        ),
        "",
        "| | size | 1 | 2 | 16 | 2 against 1 | 16 against 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for operation, size, speed in scaling:
        out.append(
            f"| {operation} | {size} | {speed[1]:.0f} | {speed[2]:.0f} | {speed[16]:.0f} "
            f"| {speed[2] / speed[1]:.2f} | {speed[16] / speed[1]:.2f} |"
        )
    bound = 2 * frame.MAX_PLAINTEXT_BYTES + 128 * 1024
    out += [
        "",
        "## Memory",
        "",
        (
            f"Resident memory for each of n inflations at once, every value at the ceiling and random hex. "
            f"The bound is twice the ceiling + 128 KiB, {bound / 2**20:.2f} MiB: "
            f"{384 * bound / 2**20:.0f} MiB at the largest cap, 384."
        ),
        "",
        "| n | MiB each |",
        "|---|---|",
        *(f"| {count} | {each / 2**20:.2f} |" for count, each in resident),
        "",
        "## Ratio by kind",
        "",
        (
            "The proposal's Pods are of one production cluster, by size class; its other figures are of one "
            "fixture object of the kind, mostly of another size. Its rows must not be pooled, nor these."
        ),
        "",
        "| | bytes | etcdmaint | Go | the proposal |",
        "|---|---|---|---|---|",
    ]
    for name, size_of, ours, theirs, told in kinds:
        figure = f"{told:.2f}" if told else ""
        out.append(f"| {name} | {size_of:,} | {ours:.2f} | {theirs:.2f} | {figure} |")
    return "\n".join(out) + "\n"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    """Measure, print, and write the page where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(everything)})
    lines, ratios = beside_go(asked.repeats)
    others = alternatives(asked.repeats)
    added = overhead(asked.repeats)
    kinds = ratios_of_kinds()
    os.sched_setaffinity(0, everything)
    scaling = threads(16 * asked.repeats)
    text = page(lines, ratios, others, added, scaling, memory(), kinds)
    if asked.write:
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(text)
    missed = [line for line in lines if line.factor < line.target]
    for line in missed:
        print(f"missed: {line.operation} {line.size}: {line.factor:.2f} of {line.target}")


if __name__ == "__main__":
    # The version of the checksum matters as much as that of the others.
    assert google_crc32c.implementation == "c"
    main()
