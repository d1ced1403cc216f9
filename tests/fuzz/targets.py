"""What must hold for any bytes: one function a target, which raises AssertionError if it does not.

Each gives a word for what became of the input, so that a run can tell how many took which way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from etcdmaint.compression import frame, protobuf_wire
from etcdmaint.compression.policy import Policy, Stage, problems
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.stored_value import identify
from etcdmaint.errors import InvalidInput
from tests.unit.compression.encryption.fuzzing import fuzz_one

OUTCOMES = ("untouched", "decoded", "checksum", "unsupported", "malformed")


def decode(value: bytes) -> str:
    """R64 to R67, R162: one of three classes or a plaintext within the ceiling; nothing changed."""
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


def policy(value: bytes) -> str:
    """A policy, or a refusal that tells every problem."""
    found = problems(value, stage=Stage.BETA, min_compatibility_version="1.38")
    told = ""
    try:
        loaded = Policy.load(value, stage=Stage.BETA, min_compatibility_version="1.38")
    except InvalidInput as refusal:
        told = str(refusal)
    assert bool(told) is bool(found)
    if told:
        assert all(problem.fault in told for problem in found)
        return "refused"
    assert loaded.rule_for("", "pods").frames(b"\0")
    return "loaded"


def identification(value: bytes) -> str:
    """A form, whatever the bytes; as a key they are a place or none."""
    found = identify(value)
    assert found.size == len(value)
    with contextlib.suppress(ValueError):
        protobuf_wire.dump(value)
    location = Keyspace().locate(value)
    assert location is None or Keyspace().key(location) == value
    return str(found.form)


TARGETS: dict[str, Callable[[bytes], str]] = {
    "decode": decode,
    "policy": policy,
    "identify": identification,
    "encryption": fuzz_one,
}
