"""The fuzz target itself: its good inputs are good, and a short run of it finds nothing."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from .fuzzing import corpus, fuzz_one


def test_every_seed_of_the_corpus_is_read() -> None:
    assert [fuzz_one(seed) for seed in corpus()] == ["loaded", *["read"] * 7]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert fuzz_one(data)


def test_mutated_seeds_are_read_or_refused() -> None:
    """Flips, cuts, inserts and splices of good values, files and messages; seeded."""
    rng = random.Random(6264)
    seeds = corpus()
    seen = set()
    for _ in range(5000):
        value = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(1, len(value)) if len(value) > 1 else 0
            match rng.randrange(4):
                case 0:
                    value[at] ^= 1 << rng.randrange(8)
                case 1:
                    del value[at : at + rng.randrange(20)]
                case 2:
                    value[at:at] = rng.randbytes(rng.randrange(8))
                case _:
                    other = rng.choice(seeds)
                    value[at:] = other[rng.randrange(1, len(other)) :]
        seen.add(fuzz_one(bytes(value)))

    assert seen >= {"read", "refused", "DecryptionFailed", "loaded"}
