"""What must hold for any bytes at all: one function a target, which raises AssertionError if not."""

from __future__ import annotations

from collections.abc import Callable

from etcdmaint.compression import frame

OUTCOMES = ("untouched", "decoded", "checksum", "unsupported", "malformed")


def decode(value: bytes) -> str:
    """R64 to R67: one of three classes or a plaintext within the ceiling, the input as it was."""
    before = bytes(bytearray(value))
    try:
        plaintext = frame.decode(value)
    except frame.ChecksumMismatch:
        outcome = "checksum"
    except frame.UnsupportedAlgorithm:
        outcome = "unsupported"
    except frame.MalformedFrame:
        outcome = "malformed"
    else:
        outcome = "decoded" if frame.is_framed(value) else "untouched"
        assert len(plaintext) <= frame.MAX_PLAINTEXT_BYTES or outcome == "untouched"
        assert outcome == "decoded" or plaintext is value
    assert value == before
    description = frame.describe(value)
    assert description.framed is (outcome != "untouched")
    # R90: what carries its own checksum is never told to be damaged, and the other way round.
    assert not description.framed or description.intact is (outcome != "checksum")
    return outcome


TARGETS: dict[str, Callable[[bytes], str]] = {"decode": decode}
