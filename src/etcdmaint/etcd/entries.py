"""A lot of keys and values at once, as cheaply as Python can have them off the wire.

Two parsers give the same: protobuf's own copies each value twice and is quick with many small ones,
the walk over the wire form copies once and is quick with large ones. Which is better follows from
the size of the values (`parse` chooses). Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.types import KeyValue

# Above this mean size of an entry, in bytes, the walk wins.
WALK_BYTES = 16 * 1024

# The fields of RangeResponse and KeyValue as tags: number and wire type in one byte.
_KVS = 2 << 3 | 2
_KEY, _CREATED, _MODIFIED, _VERSION, _VALUE, _LEASE = 0x0A, 0x10, 0x18, 0x20, 0x2A, 0x30


Entry = KeyValue
"""What a chunk is made of."""


class Chunk(NamedTuple):
    """Some entries in the order of their keys, and how many bytes they were on the wire."""

    entries: list[Entry]
    size: int

    def __repr__(self) -> str:
        return f"Chunk({len(self.entries)} entries, {self.size} bytes)"


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A RangeResponse. A part of a stream has no header: `revision` and the others are then 0."""

    entries: list[Entry]
    more: bool
    count: int
    revision: int
    cluster_id: int
    member_id: int


def parse(data: bytes, *, streamed: bool, mean: float) -> Answer:
    """Read a RangeResponse, inside a RangeStreamResponse when `streamed`.

    `mean` is the mean size of the entries that came before, in bytes. Raises DecodeError.
    """
    if mean >= WALK_BYTES:
        try:
            entries, rest = _walk(data, streamed=streamed)
            return _answer(entries, pb.RangeResponse.FromString(rest))
        except (IndexError, DecodeError):
            # Fields of a later release, perhaps, which protobuf's own parser passes by.
            pass
    if streamed:
        message = pb.RangeStreamResponse.FromString(data).range_response
    else:
        message = pb.RangeResponse.FromString(data)
    return _answer(_entries(message), message)


def _answer(entries: list[Entry], message: Any) -> Answer:
    header = message.header
    return Answer(
        entries,
        message.more,
        message.count,
        header.revision,
        header.cluster_id,
        header.member_id,
    )


def _entries(message: Any) -> list[Entry]:
    return [
        Entry(kv.key, kv.value, kv.version, kv.create_revision, kv.mod_revision, kv.lease)
        for kv in message.kvs
    ]


def _walk(data: bytes, *, streamed: bool) -> tuple[list[Entry], bytes]:
    """The entries, and the message without them."""
    position, end = 0, len(data)
    if streamed and end:
        if data[0] != 0x0A:
            raise DecodeError("no RangeStreamResponse")
        length, position = _varint(data, 1)
        end = position + length
        if end != len(data):
            raise DecodeError("no RangeStreamResponse")
    entries = []
    rest = []
    while position < end:
        start = position
        tag, position = data[position], position + 1
        if tag > 127:
            raise DecodeError("no field of a RangeResponse")
        if tag & 7 == 0:
            _, position = _varint(data, position)
        elif tag & 7 == 2:
            length, position = _varint(data, position)
            position += length
            if position > end:
                raise DecodeError("a field is longer than its message")
            if tag == _KVS:
                entries.append(_entry(data, position - length, position))
                continue
        else:
            raise DecodeError("no field of a RangeResponse")
        rest.append(data[start:position])
    return entries, b"".join(rest)


def _entry(data: bytes, position: int, end: int) -> Entry:
    key = value = b""
    numbers = {_CREATED: 0, _MODIFIED: 0, _VERSION: 0, _LEASE: 0}
    while position < end:
        tag = data[position]
        number, position = _varint(data, position + 1)
        if tag in (_KEY, _VALUE):
            octets = data[position : position + number]
            position += number
            if tag == _KEY:
                key = octets
            else:
                value = octets
        elif tag in numbers:
            # A lease's ID is a signed number; etcd gives out no negative ones.
            numbers[tag] = number
        else:
            raise DecodeError("no field of a KeyValue")
    if position != end:
        raise DecodeError("a field is longer than its message")
    return Entry(
        key, value, numbers[_VERSION], numbers[_CREATED], numbers[_MODIFIED], numbers[_LEASE]
    )


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 128:
        return byte, position + 1
    number, shift = byte & 127, 7
    for step in range(1, 10):
        byte = data[position + step]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position + step + 1
        shift += 7
    raise DecodeError("a number does not end")
