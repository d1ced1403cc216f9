"""The kinds that are known by their fields, from real objects and from hostile bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression import kinds, protobuf_wire
from etcdmaint.compression.stored_value import identify

from . import objects
from .objects import field
from .vectors import cases, octets

KNOWN = [
    case
    for case in cases("storage_values")
    if octets(case["value"]).startswith(b"k8s\0")
    and (identify(octets(case["value"])).api_version, identify(octets(case["value"])).kind)
    in kinds.KINDS
]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case["name"])
def test_real_objects_are_read_with_no_field_left_over(case: dict) -> None:
    value = octets(case["value"])
    told = identify(value)
    (raw,) = protobuf_wire.last(value[4:], 2)
    found = kinds.read(raw, told.api_version, told.kind)
    assert found is not None
    assert found["metadata"]["name"] == told.name
    assert "fieldsNotKnown" not in repr(found)


def test_there_are_real_objects_among_the_vectors() -> None:
    assert KNOWN


def test_a_field_that_is_not_known_is_told_by_its_number() -> None:
    raw = field(1, field(1, b"x")) + field(99, b"new") + field(99, b"again") + field(77, b"n")
    found = kinds.read(raw, "v1", "ConfigMap")
    assert found is not None
    assert found["fieldsNotKnown"] == [99, 77]


def test_another_kind_is_left_to_others() -> None:
    assert kinds.read(b"", "v1", "Pod") is None
    assert kinds.read(b"", "example.com/v1", "Secret") is None


@given(st.sampled_from(sorted(kinds.KINDS)), st.binary(max_size=300))
def test_hostile_bytes_are_refused_with_a_value_error_or_read(
    kind: tuple[str, str], rubbish: bytes
) -> None:
    for raw in (rubbish, field(1, rubbish), field(2, rubbish), field(1, field(8, rubbish))):
        with contextlib.suppress(ValueError):
            kinds.read(raw, *kind)


def test_moments_are_written_as_kubernetes_writes_them() -> None:
    def lease(seconds: int, nanos: int) -> dict:
        time = b"\x08" + objects.varint(seconds % (1 << 64)) + b"\x10" + objects.varint(nanos)
        raw = field(1, field(1, b"x")) + field(2, field(4, time))
        found = kinds.read(raw, "coordination.k8s.io/v1", "Lease")
        assert found is not None
        return found

    assert lease(1_700_000_000, 123_456_000)["spec"]["renewTime"] == "2023-11-14T22:13:20.123456Z"
    assert (
        "spec" not in lease(-62_135_596_800, 0)
        or "renewTime" not in lease(-62_135_596_800, 0)["spec"]
    )
    with pytest.raises(ValueError, match="moment"):
        lease(1 << 60, 0)
