"""The proof that an etcd is the API server's own: read undecoded, and nothing else is one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.compression.frame import encode
from etcdmaint.defrag.run import Target
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.kube.client import Forbidden, NotFound
from etcdmaint.kube.storage_compression_identity import look_at, stored_uid

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


class Reachable:
    """A cluster of one member that has a Namespace kube-system; entered as `ClusterClient` is."""

    cluster_id = 7
    members = (SimpleNamespace(id=1),)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    def client(self, _: int) -> Reachable:
        return self

    async def range(self, key: bytes, **_: Any) -> Any:
        assert key == b"/registry/namespaces/kube-system"
        return SimpleNamespace(kvs=(SimpleNamespace(value=protobuf()),))


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [
        (UID, ""),
        ("another", "another UID"),
        (None, "another UID"),
        (Forbidden("get namespaces: no"), "may not read"),
        (NotFound("get namespaces: none"), "has no Namespace kube-system"),
    ],
)
async def test_what_the_api_says_of_the_namespace_decides(answer: Any, doubt: str) -> None:
    """Without the right, or the Namespace, nothing is proven; and that is told."""

    async def get(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return {"metadata": {"uid": answer}}

    async def dial(*_: Any, **__: Any) -> Reachable:
        return Reachable()

    parts: Any = SimpleNamespace(api=SimpleNamespace(get=get), dial=dial)
    standing = await look_at(parts, Target(seeds=(Endpoint("a", 2379),)), timeout=1.0)
    assert standing.cluster_id == 7
    assert standing.own is (doubt == "")
    assert doubt in standing.doubt
