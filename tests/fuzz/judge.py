"""Go's verdict on mutated streams: compress/flate must refuse and accept exactly what we do (A14)."""

from __future__ import annotations

import io
import struct
import subprocess
from itertools import islice
from pathlib import Path

import google_crc32c
from isal import isal_zlib

from etcdmaint.compression import frame
from tests.controlplane.gosource import go_program

from .mutation import Family, frames

GO_MODULE = Path(__file__).parents[1] / "bench" / "go" / "flate"
_VERDICTS = {
    frame.ChecksumMismatch: "c",
    frame.UnsupportedAlgorithm: "u",
    frame.MalformedFrame: "m",
}


def go_flate() -> Path:
    """Go's own compress/flate and hash/crc32 behind a pipe."""
    return go_program(GO_MODULE / "main.go", GO_MODULE)


def ours(value: bytes) -> tuple[str, int]:
    """Our verdict, and the checksum of what was decoded."""
    plaintext, verdict = b"", "o"
    try:
        plaintext = frame.decode(value)
    except frame.FrameError as error:
        verdict = _VERDICTS[type(error)]
    return verdict, google_crc32c.value(plaintext)


def differences(values: list[bytes]) -> list[bytes]:
    """Those that Go judges otherwise, or decodes to something else."""
    asked = io.BytesIO()
    for value in values:
        asked.write(struct.pack("<I", len(value)) + value)
    answer = subprocess.run(
        [str(go_flate()), "judge"], input=asked.getvalue(), capture_output=True, check=True
    ).stdout
    if len(answer) != 5 * len(values):
        raise AssertionError(f"{len(answer)} bytes for {len(values)} verdicts")
    theirs = ((chr(letter), crc) for letter, crc in struct.iter_unpack("<BI", answer))
    return [value for value, told in zip(values, theirs, strict=True) if ours(value) != told]


def run(count: int, seed: int) -> int:
    """Judge so many frames of which the stream alone was mutated; how many were accepted.

    As a control it tells on how many of them ISA-L, which does not read here, would have differed:
    a run in which it never does proves nothing about anybody.
    """
    streams = (value for family, value in frames(seed) if family is Family.STREAM)
    accepted = control = 0
    for left in range(count, 0, -10_000):
        batch = list(islice(streams, min(left, 10_000)))
        found = differences(batch)
        if found:
            raise AssertionError(f"Go differs on {len(found)} frames, {found[0].hex()} is one")
        for value in batch:
            accepts = ours(value)[0] == "o"
            accepted += accepts
            control += accepts is not _isal_accepts(value)
    print(
        f"judge: {count:,} mutated streams, {accepted:,} accepted by both, no difference, "
        f"seed {seed} (control: ISA-L differs on {control:,})"
    )
    return accepted


def _isal_accepts(value: bytes) -> bool:
    described = frame.describe(value)
    declared = described.declared_length or 0
    stream = value[len(value) - (described.body_length or 0) :]
    inflater = isal_zlib.decompressobj(-15)
    try:
        return len(inflater.decompress(stream, declared + 1)) == declared and inflater.eof
    except isal_zlib.error:
        return False
