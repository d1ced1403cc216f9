"""The fuzz targets themselves: their corpus, a short run of each, and Go's verdict on a sample."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from etcdmaint.compression import frame
from tests.controlplane import cache, golang
from tests.fuzz import bulk, judge
from tests.fuzz.mutation import Family, frames
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_and_what_is_near_it_break_nothing(target: str) -> None:
    """R64 to R67, R162: the seeds replayed, and each of them damaged a few times."""
    seeds = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert len(seeds) >= 8
    rng = random.Random(target)
    outcomes = {TARGETS[target](seed) for seed in seeds}
    assert len(outcomes) > 1
    for seed in seeds:
        for _ in range(10):
            damaged = bytearray(seed)
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(damaged) + 1)
                damaged[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            TARGETS[target](bytes(damaged))


def test_a_run_in_bulk_takes_every_way_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """R64, R90: half of the checksums are renewed, a third have a valid length over a bad stream."""
    counts = bulk.run(30_000, seed=1)
    families = {
        family: sum(count for (of, _), count in counts.items() if of is family) for family in Family
    }
    assert families == {Family.RAW: 15_000, Family.RENEWED: 5_000, Family.STREAM: 10_000}
    assert counts[Family.STREAM, "decoded"] > 3_000
    assert counts[Family.STREAM, "malformed"] > 3_000
    assert counts[Family.STREAM, "checksum"] == 0
    for outcome in ("untouched", "checksum", "unsupported", "malformed", "decoded"):
        assert sum(count for (_, of), count in counts.items() if of == outcome) > 100, outcome
    assert "30,000 inputs" in capsys.readouterr().out


def test_the_same_seed_makes_the_same_frames() -> None:
    """A finding can be repeated."""
    first, second = frames(7), frames(7)
    assert all(next(first) == next(second) for _ in range(600))


def test_go_judges_mutated_streams_as_we_do(capsys: pytest.CaptureFixture[str]) -> None:
    """R12, R69, A14: by compress/flate; `python -m tests.fuzz --judge N` does any number."""
    if not golang.toolchain(judge.GO_MODULE, cache.cache_dir()).command.exists():
        pytest.skip("this machine has no Go; a test of this kind installs none")
    accepted = judge.run(20_000, seed=20_000)
    assert 5_000 < accepted < 15_000
    assert "no difference" in capsys.readouterr().out


def test_go_and_we_agree_on_every_frame_that_we_write() -> None:
    """A14: what ISA-L writes, compress/flate reads."""
    if not golang.toolchain(judge.GO_MODULE, cache.cache_dir()).command.exists():
        pytest.skip("this machine has no Go; a test of this kind installs none")
    rng = random.Random(5)
    values = [
        frame.encode(rng.randbytes(rng.randrange(1, 40)) * rng.randrange(1, 400))
        for _ in range(400)
    ]
    assert judge.differences(values) == []
    assert all(judge.ours(value)[0] == "o" for value in values)
