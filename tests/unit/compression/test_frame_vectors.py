"""Every vector of the frame: bytes made by Go's compress/flate and hash/crc32."""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.compression import frame

from .vectors import octets, parameters, same

CLASSES = {
    "checksum": frame.ChecksumMismatch,
    "unsupported": frame.UnsupportedAlgorithm,
    "malformed": frame.MalformedFrame,
}


@pytest.mark.parametrize("case", parameters("frames"))
def test_a_good_value_decodes_to_its_plaintext(case: dict[str, Any]) -> None:
    """R1 to R12, R16, R61 to R63, R68, A9, A10: what others wrote reads back."""
    value = octets(case["value"])

    assert frame.is_framed(value) is case["framed"]
    assert same(frame.decode(value), case["plaintext"])
    description = frame.describe(value)
    assert description.framed is case["framed"]
    if case["framed"]:
        assert frame.Algorithm[case["algorithm"].upper()] == description.algorithm
        assert description.intact
    if case.get("algorithm") == "deflate":
        assert description.declared_length == case["declared_length"]
        assert description.body_length == len(value) - 9 - case["length_bytes"]


@pytest.mark.parametrize("case", parameters("frames_rejected"))
def test_a_bad_value_is_refused_with_its_class(case: dict[str, Any]) -> None:
    """R13 to R15, R69 to R76, R85 to R88, R90 to R92, A1, A2, A9: the class, and nothing else."""
    value = octets(case["value"])

    if case["class"] == "passthrough":
        assert frame.decode(value) is value
        assert not frame.describe(value).framed
        return
    accepted = tuple(CLASSES[name] for name in case.get("accept", [case["class"]]))
    with pytest.raises(frame.FrameError) as refusal:
        frame.decode(value)
    assert type(refusal.value) in accepted
    corrupt = case.get("corrupt", False)
    assert refusal.value.corrupt is corrupt
    assert frame.describe(value).intact is not corrupt
