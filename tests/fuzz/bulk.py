"""A plain driver for the bulk: mutated frames into `frame.decode`, counted by family and outcome.

A coverage-guided fuzzer sees nothing inside of the C libraries that do the work here, so its
guidance buys little and its bookkeeping costs most of the time. This loop does nothing but mutate,
decode and count; what costs more than decoding is checked on every hundredth input.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from itertools import islice

from etcdmaint.compression.frame import (
    MAX_PLAINTEXT_BYTES,
    ChecksumMismatch,
    MalformedFrame,
    UnsupportedAlgorithm,
    decode,
)

from . import targets
from .mutation import frames

_BATCH = 200_000


def run(inputs: int, seed: int, seconds: float = float("inf")) -> Counter[tuple[str, str]]:
    """Decode so many mutated frames, or as many as fit into the time; tell each minute."""
    counts: Counter[tuple[str, str]] = Counter()
    source = frames(seed)
    start = spoken = time.monotonic()
    total = 0
    while total < inputs and time.monotonic() - start < seconds:
        batch = min(_BATCH, inputs - total)
        for number, (family, value) in enumerate(islice(source, batch)):
            try:
                plaintext = decode(value)
            except ChecksumMismatch:
                outcome = "checksum"
            except MalformedFrame:
                outcome = "malformed"
            except UnsupportedAlgorithm:
                outcome = "unsupported"
            else:
                outcome = "untouched" if plaintext is value else "decoded"
                if len(plaintext) > MAX_PLAINTEXT_BYTES:
                    raise AssertionError(value.hex())
            counts[family, outcome] += 1
            if number % 100 == 0 and targets.decode(value) != outcome:
                raise AssertionError(value.hex())
        total += batch
        if time.monotonic() - spoken > 60:
            spoken = time.monotonic()
            print(summary(counts, spoken - start, seed), flush=True)
    print(summary(counts, time.monotonic() - start, seed), flush=True)
    return counts


def summary(counts: Counter[tuple[str, str]], seconds: float, seed: int) -> str:
    """The counts of each family, and the most memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = [
        f"decode: {counts.total():,} inputs in {seconds:.0f} s, seed {seed}, peak {peak:.0f} MiB"
    ]
    for family in sorted({family for family, _ in counts}):
        row = {name: counts[family, name] for name in targets.OUTCOMES if counts[family, name]}
        told = ", ".join(f"{name} {number:,}" for name, number in row.items())
        lines.append(f"  {family:8} {sum(row.values()):>13,}: {told}")
    return "\n".join(lines)
