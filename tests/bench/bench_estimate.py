"""How fast `storage estimate` is once it has the values: `python -m tests.bench.bench_estimate`.

One core, no reading and no decrypting: everything that the command does with a value, beside encoding it
alone. The objects are those of the compression's benchmark, of a Pod's and of an Event's size.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from etcdmaint.compression.census import Census
from etcdmaint.compression.estimate import Estimator
from etcdmaint.compression.frame import encode
from etcdmaint.compression.resources import Keyspace
from etcdmaint.etcd.entries import Entry

from .bench_compression_objects import of_size
from .page import table

RUNS = 9
_BYTES = 40_000_000


def entries(size: int) -> list[Entry]:
    """About 40 MB of objects, the same few hundred again and again."""
    made = of_size(size, 300)
    count = _BYTES // size
    return [
        Entry(b"/registry/pods/ns-%d/%06d" % (number % 9, number), made[number % 300], 1, 1, 1, 0)
        for number in range(count)
    ]


def megabytes_a_second(work: Callable[[], object], total: int) -> float:
    """By this thread's CPU time: what others on the machine do is not counted."""
    began = time.thread_time()
    work()
    return total / (time.thread_time() - began) / 1e6


def main() -> None:
    """Print the table."""
    print(f"load when it began: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    rows = []
    for size, wanted in ((1_000, 50), (14_000, 100), (256_000, 0)):
        found = entries(size)
        total = sum(len(entry.value) for entry in found)
        works: dict[str, Callable[[], object]] = {
            "estimate": lambda found=found: Estimator(Keyspace()).add(found),
            "encode alone": lambda found=found: [encode(each.value) for each in found],
            "scan's census": lambda found=found: Census(Keyspace()).add(found),
        }
        speeds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(RUNS):
            for name, work in works.items():
                speeds[name].append(megabytes_a_second(work, total))
        for name, values in speeds.items():
            target = f"at least {wanted}" if wanted and name == "estimate" else ""
            rows.append([f"{size:,} B", name, f"{statistics.median(values):.0f}", target])
    print(table(["objects of", "what", f"MB/s a core, median of {RUNS}", "wanted"], rows))


if __name__ == "__main__":
    main()
