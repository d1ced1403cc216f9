"""Stored values for tests: good ones of each form, and one of each kind of damage."""

from __future__ import annotations

import google_crc32c

from etcdmaint.compression import frame
from etcdmaint.etcd.entries import Entry


def varint(number: int) -> bytes:
    octets = b""
    while number > 127:
        octets += bytes([number & 127 | 128])
        number >>= 7
    return octets + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def protobuf(name: str = "x", size: int = 0, *, kind: str = "ConfigMap", uid: str = "u") -> bytes:
    """A protobuf object as kube-apiserver stores it, of about `size` bytes that compress well."""
    meta = field(1, name.encode()) + field(3, b"default") + field(5, uid.encode())
    data = field(1, b"key") + field(2, (b"some words again " * (size // 17 + 1))[:size])
    raw = field(1, meta) + (field(2, data) if size else b"")
    types = field(1, b"v1") + field(2, kind.encode())
    return b"k8s\x00" + field(1, types) + field(2, raw) + b"\x1a\x00\x22\x00"


JSON = b'{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"}}\n'
YAML = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\n"
CBOR = bytes.fromhex("d9d9f7a2446b696e64465769646765744a61706956657273696f6e427631")
DEFLATED = frame.encode(protobuf(size=4000))
STORED = frame.encode(b"\x00 begins with zero")


def resealed(value: bytes) -> bytes:
    """A frame with its checksum made right again."""
    crc = google_crc32c.value(value[:5] + value[9:])
    return value[:5] + crc.to_bytes(4, "little") + value[9:]


DAMAGED_CHECKSUM = DEFLATED[:-1] + bytes([DEFLATED[-1] ^ 1])
NEWER = resealed(b"\x00k8s\x07" + bytes(4) + b"something of the future")
MALFORMED = resealed(b"\x00k8s\x01" + bytes(4) + b"\x80\x01 no stream")
BROKEN_ENVELOPE = protobuf(size=50)[:-9]
FRAMED_BROKEN_ENVELOPE = frame.encode(protobuf(size=500)[:-9])


def entry(key: bytes, value: bytes, *, version: int = 1, revision: int = 5) -> Entry:
    return Entry(key, value, version, 2, revision, 0)
