"""The proof that an etcd is the API server's own: read undecoded, and nothing else is one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.compression.frame import encode
from etcdmaint.kube.storage_compression_identity import stored_uid

UID = "0f62e595-83a5-46f2-86e0-7a09056f92cf"


def field(number: int, octets: bytes) -> bytes:
    """A protobuf field of bytes."""
    length = len(octets)
    assert length < 1 << 14
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + octets


def protobuf(name: str = "kube-system", kind: str = "Namespace", uid: str = UID) -> bytes:
    """A Namespace as kube-apiserver stores it."""
    meta = field(1, name.encode()) + field(5, uid.encode())
    unknown = field(1, field(1, b"v1") + field(2, kind.encode())) + field(2, field(1, meta))
    return b"k8s\x00" + unknown + field(3, b"") + field(4, b"")


def in_json(name: str = "kube-system", kind: str = "Namespace", api: str = "v1") -> bytes:
    """The same with --storage-media-type=application/json."""
    metadata = {"name": name, "uid": UID}
    return json.dumps({"apiVersion": api, "kind": kind, "metadata": metadata}).encode()


@pytest.mark.parametrize(
    "value", [protobuf(), in_json(), encode(protobuf()), encode(in_json() + b" " * 4000)]
)
def test_protobuf_and_json_prove_it_also_in_a_frame(value: bytes) -> None:
    assert stored_uid(value) == UID


@pytest.mark.parametrize(
    "value",
    [
        b"k8s:enc:aescbc:v1:key1:" + protobuf(),
        b"k8s:enc:kms:v2:vault:\x0a\x00",
        protobuf(name="kube-public"),
        protobuf(kind="ConfigMap"),
        protobuf(uid=""),
        in_json(api="example.com/v1"),
        in_json(name="default"),
        protobuf()[:-9],
        encode(protobuf())[:-1],
        b"",
        b"{" * 100_000,
        in_json() + b" " * (1 << 18),
        b"\x00k8s\x07" + protobuf(),
    ],
)
def test_nothing_else_does(value: bytes) -> None:
    """Encrypted, damaged, another object, or too large to be looked at: unknown."""
    assert stored_uid(value) == ""


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_no_bytes_make_it_raise(octets: bytes, cut: int) -> None:
    stored_uid(octets)
    stored_uid(protobuf()[:cut] + octets)
