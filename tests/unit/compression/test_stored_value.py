"""What lies in a value: real objects of every form, and bytes made to hurt."""

from __future__ import annotations

import base64
import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression import cbor, frame, protobuf_wire
from etcdmaint.compression.stored_value import Form, identify

from .vectors import cases, octets, parameters

VALUES = cases("storage_values")


@pytest.mark.parametrize("case", parameters("storage_values"))
def test_an_object_of_kubernetes_tells_what_it_is(case: dict[str, Any]) -> None:
    """R20, R61, R63, R163: no form begins with a zero byte, and each reads back as it was."""
    value = octets(case["value"])
    found = identify(value)

    assert value[0] != 0
    assert frame.decode(value) is value
    assert found.form == case["form"]
    assert found.size == len(value)
    assert (found.api_version, found.kind) == (case["api_version"], case["object_kind"])
    assert (found.namespace, found.name) == (case["namespace"], case["object_name"])
    assert found.uid == case["uid"]
    assert found.is_secret is (case["object_kind"] == "Secret")
    assert frame.decode(frame.encode(value)) == value


WHOLE_CBOR = [
    case for case in parameters("storage_values", form="cbor") if "object" in case.values[0]
]


@pytest.mark.parametrize("case", WHOLE_CBOR)
def test_a_custom_resource_in_cbor_is_the_object_that_was_written(case: dict[str, Any]) -> None:
    assert cbor.loads(octets(case["value"])) == case["object"]


ENCRYPTED = [
    case
    for case in cases("encryption")
    if case.get("operation") == "read" and case.get("outcome") == "ok"
]


def test_every_stored_value_of_every_provider_tells_its_provider_without_a_key() -> None:
    """R17, R61: the prefix is all there is to see; a plain value is not taken for one."""
    seen = set()
    for case in ENCRYPTED:
        stored = octets(case["stored"])
        found = identify(stored)
        encrypted = stored.startswith(b"k8s:enc:")
        assert (found.form is Form.ENCRYPTED) is encrypted, case["name"]
        if encrypted:
            prefix = stored.split(b":", 5)
            told = (found.provider.encode(), found.version.encode(), found.key_name.encode())
            assert told == tuple(prefix[2:5])
            seen.add((found.provider, found.version))
            assert bool(found.key_id) is ((found.provider, found.version) == ("kms", "v2"))
    assert seen >= {("aescbc", "v1"), ("aesgcm", "v1"), ("secretbox", "v1"), ("kms", "v2")}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"", Form.EMPTY),
        (b"\0", Form.FRAME),
        (b"\0anything", Form.FRAME),
        (b"k8s:enc:", Form.ENCRYPTED),
        (b"k8s:enc:aescbc:v1:key1:\xff\0", Form.ENCRYPTED),
        (b"k8s:enc:new:v9:x:", Form.ENCRYPTED),
        (b"12345", Form.OPAQUE),
        (b"k8s", Form.OPAQUE),
        (b"k8s\0", Form.OPAQUE),
        (b"k8s\0\xff\xff", Form.OPAQUE),
        (b"\x01k8s\0", Form.OPAQUE),
        (b"{", Form.OPAQUE),
        (b'{"a"', Form.OPAQUE),
        (b'{"a":}', Form.OPAQUE),
        (b'{"a":1 "b":2}', Form.OPAQUE),
        (b"{1:2}", Form.OPAQUE),
        (b'{"kind":"\xff"}', Form.OPAQUE),
        (b"{}", Form.JSON),
        (b' {"kind": "Pod"}', Form.OPAQUE),
        (b'{ "kind" : "Pod" , "apiVersion" : 7 , "metadata" : [] }', Form.JSON),
        (b"\xd9\xd9\xf7", Form.OPAQUE),
        (b"\xd9\xd9\xf7\xa0", Form.CBOR),
        (b"\xd9\xd9\xf7\xa0\0", Form.OPAQUE),
        (b"\xd9\xd9\xf7\x01", Form.OPAQUE),
        (b"kind: Pod\n", Form.OPAQUE),
        (b"kind: Pod\napiVersion: v1\n", Form.YAML),
        (base64.b64encode(b"k8s\0 the old fallback"), Form.OPAQUE),
    ],
    ids=repr,
)
def test_each_form_is_told_by_what_its_serializer_writes(value: bytes, form: Form) -> None:
    """A1: what nobody could have written is opaque, which is not damage by itself."""
    assert identify(value).form is form


@pytest.mark.parametrize("bit", range(8))
def test_a_frame_whose_first_byte_was_hit_is_opaque(bit: int) -> None:
    """A1: the one damage that no checksum sees."""
    damaged = bytearray(frame.encode(octets(VALUES[0]["value"])))
    damaged[0] ^= 1 << bit
    assert identify(bytes(damaged)).form is Form.OPAQUE


def test_a_stored_frame_is_not_taken_for_the_protobuf_it_looks_like() -> None:
    """R24: its bytes 1 to 4 are protobuf's magic."""
    value = frame.encode(b"\0")
    assert value[1:5] == b"k8s\0"
    assert identify(value).form is Form.FRAME


def test_yaml_of_quoted_scalars_and_blocks_is_read_at_the_right_depth() -> None:
    value = (
        b"apiVersion: v1\ndata:\n  name: |\n    kind: Fake\n    metadata:\n  uid: no\nkind: ConfigMap\n"
        b"metadata:\n  labels:\n    name: deeper\n  name: \"a\\u00e9\"\n  namespace: 'it''s'\n  uid: 1-2\n"
    )
    found = identify(value)
    assert (found.kind, found.name, found.namespace, found.uid) == (
        "ConfigMap",
        "aé",
        "it's",
        "1-2",
    )


def nested(opening: bytes, closing: bytes, depth: int) -> bytes:
    return opening * depth + closing * depth


HOSTILE = {
    "JSON nested a million deep": b'{"a":' + nested(b"[", b"]", 500_000) + b"}",
    "JSON with a number of a million digits": b'{"a":' + b"9" * 1_000_000 + b"}",
    "JSON with 100,000 fields before its kind": b"{" + b'"a":1,' * 100_000 + b'"kind":"x"}',
    "CBOR nested a million deep": cbor.SELF_DESCRIBED + b"\xa1\x41a" + b"\x81" * 1_000_000,
    "CBOR that declares 2^63 items": cbor.SELF_DESCRIBED + b"\x9b\x7f" + b"\xff" * 7,
    "CBOR that declares 2^63 bytes": cbor.SELF_DESCRIBED + b"\x5b\x7f" + b"\xff" * 7,
    "CBOR of a million tags": cbor.SELF_DESCRIBED + b"\xc1" * 1_000_000,
    "CBOR of a million items": cbor.SELF_DESCRIBED + b"\x9a\x00\x0f\x42\x40" + b"\0" * 1_000_000,
    "protobuf of a million fields": b"k8s\0" + b"\x08\x00" * 700_000,
    "protobuf that declares 2^63 bytes": b"k8s\0\x0a" + b"\xff" * 9 + b"\x01",
    "protobuf whose number does not end": b"k8s\0\x08" + b"\xff" * 100,
    "YAML of a million lines": b"a: b\n" * 300_000,
    "YAML of one line": b"a: " + b"x" * 1_500_000,
    "a prefix without an end": b"k8s:enc:" + b"x" * 1_500_000,
    "a prefix of colons": b"k8s:enc:" + b":" * 1_500_000,
    "kms v2 of a million fields": b"k8s:enc:kms:v2:p:" + b"\x08\x00" * 700_000,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_cost_little_time(value: bytes) -> None:
    """Depth, fields, varints and lengths are bounded; nothing raises."""
    start = time.thread_time()
    identify(value)
    assert time.thread_time() - start < 5


@given(st.binary(max_size=300))
def test_nothing_raises_whatever_the_bytes(value: bytes) -> None:
    for prefix in (b"", b"k8s\0", b"{", b"\xd9\xd9\xf7", b"k8s:enc:kms:v2:p:", b"apiVersion: "):
        identify(prefix + value)


@pytest.mark.parametrize("form", ["protobuf", "json", "cbor", "yaml"])
def test_damaged_objects_raise_nothing(form: str) -> None:
    rng = random.Random(form)
    values = [octets(case["value"]) for case in VALUES if case["form"] == form]
    for _ in range(1000):
        damaged = bytearray(rng.choice(values)[:600])
        for _ in range(rng.randrange(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        identify(bytes(damaged))


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values, json_values, st.text(max_size=20), st.text(max_size=20))
def test_json_tells_its_identity_whatever_stands_before_it(
    before: object, after: object, kind: str, name: str
) -> None:
    value = {"a": before, "kind": kind, "apiVersion": "v1", "metadata": {"name": name}, "z": after}
    for indent in (None, 2):
        found = identify(
            json.dumps(value, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
        )
        if found.form is Form.JSON:
            assert (found.kind, found.api_version, found.name) == (kind, "v1", name)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("a10102", None),
        ("00", 0),
        ("1864", 100),
        ("1bffffffffffffffff", 18446744073709551615),
        ("3903e7", -1000),
        ("f93c00", 1.0),
        ("fb3ff199999999999a", 1.1),
        ("f4", False),
        ("f5", True),
        ("f6", None),
        ("6449455446", "IETF"),
        ("4449455446", "IETF"),
        ("83010203", [1, 2, 3]),
        ("a201020304", None),
        ("a2416101416282020 3".replace(" ", ""), {"a": 1, "b": [2, 3]}),
        ("d64401020304", "AQIDBA=="),
        ("d9d9f780", []),
    ],
)
def test_cbor_of_the_rfcs_examples(data: str, value: object) -> None:
    """RFC 8949, Appendix A, as far as Kubernetes uses it; names of fields must be text."""
    if value is None and data != "f6":
        with pytest.raises(ValueError):
            cbor.loads(bytes.fromhex(data))
    else:
        assert cbor.loads(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    "data", ["", "18", "1c", "9f01ff", "ff", "e0", "f8ff", "61", "0000", "a161"]
)
def test_cbor_that_kubernetes_never_writes_is_refused(data: str) -> None:
    with pytest.raises(ValueError):
        cbor.loads(bytes.fromhex(data))


def test_the_last_of_a_repeated_field_counts() -> None:
    message = bytes.fromhex("0a01610a016210011d00000000210000000000000000")
    assert protobuf_wire.last(message, 1, 2, 9) == (b"b", b"", b"")
    assert [number for number, _ in protobuf_wire.fields(message)] == [1, 1, 2, 3, 4]


def test_a_message_without_a_schema_is_told_by_its_numbers() -> None:
    inner = b"\x0a\x03abc\x10\x96\x01"
    message = (
        b"\x0a" + bytes([len(inner)]) + inner + b"\x12\x01x\x12\x02\xff\xfe\x1a\x00\x22\x04a\nb\t"
    )
    assert protobuf_wire.dump(message) == {
        "1": {"1": "abc", "2": 150},
        "2": ["x", {"hex": "fffe"}],
        "3": "",
        "4": "a\nb\t",
    }


def test_a_message_nested_without_end_is_told_to_a_depth() -> None:
    message = b"\x08\x01"
    while len(message) < 100_000:
        length, size = bytearray(), len(message)
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        message = b"\x0a" + bytes(length) + bytes([size]) + message
    start = time.thread_time()
    assert "1" in protobuf_wire.dump(message)
    assert time.thread_time() - start < 5


@pytest.mark.parametrize("data", ["0a05", "0b", "00", "0a", "08", "ff" * 11, "1d0000", "2100"])
def test_bytes_that_are_no_message_are_refused(data: str) -> None:
    with pytest.raises(ValueError):
        list(protobuf_wire.fields(bytes.fromhex(data)))
