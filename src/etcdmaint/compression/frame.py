"""The frame of KEP-6264 (Design Details, The at-rest byte format): one value, framed and unframed.

::

    0  1  00           no storage serializer emits it: the value is a frame
    1  3  6b 38 73     "k8s"
    4  1  algorithm    0 stored, 1 deflate
    5  4  CRC-32C      little endian, over every byte but these four
    9     stored:  the plaintext
          deflate: its length (LEB128), then a raw DEFLATE stream

The first nine bytes are fixed for ever; what follows belongs to the algorithm. The order of the
checks is the format's safety: damage is told before anything is interpreted, a newer algorithm
before anything behind the header is read, a length before a byte is inflated.

ISA-L writes, since it is the fastest. It must not read: it accepts incomplete Huffman codes that
Go's compress/flate refuses. zlib and zlib-ng accept exactly what Go does, so zlib-ng reads.

This module knows no policy, no encryption and no etcd.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import google_crc32c

from etcdmaint.errors import (
    ChecksumMismatch,
    FrameError,
    MalformedFrame,
    PlaintextTooLarge,
    UnsupportedAlgorithm,
)

__all__ = [
    "HEADER_BYTES",
    "MAX_PLAINTEXT_BYTES",
    "Algorithm",
    "ChecksumMismatch",
    "Description",
    "FrameError",
    "MalformedFrame",
    "PlaintextTooLarge",
    "UnsupportedAlgorithm",
    "decode",
    "describe",
    "encode",
    "is_framed",
]

# etcd's default request limit less 64 KiB: what was framed can always be rewritten bare.
MAX_PLAINTEXT_BYTES: Final = 1536 * 1024 - 64 * 1024
HEADER_BYTES: Final = 9

# Ten bytes of seven bits hold any 64-bit number.
_MAX_LENGTH_BYTES: Final = 10


class Algorithm(IntEnum):
    """The algorithm byte. The set may grow; a number, once given, is never given again."""

    STORED = 0
    DEFLATE = 1


@dataclass(frozen=True, slots=True)
class Description:
    """A frame's header taken apart, for tools. What the value is too short to hold is None."""

    framed: bool
    algorithm: int | None = None
    magic: bytes | None = None
    stored_checksum: int | None = None
    computed_checksum: int | None = None
    declared_length: int | None = None
    body_length: int | None = None

    @property
    def intact(self) -> bool:
        """Whether the checksum is there and right."""
        return self.stored_checksum is not None and self.stored_checksum == self.computed_checksum


if google_crc32c.implementation != "c":
    # The fallback in Python is a thousand times slower: an outage in front of every read.
    raise ImportError("etcdmaint needs the C implementation of google-crc32c")

_crc: Final[Callable[[bytes], int]] = google_crc32c.value
_extend_crc: Final[Callable[[int, bytes], int]] = google_crc32c.extend

_STORED_HEAD: Final = b"\x00k8s\x00"
_DEFLATE_HEAD: Final = b"\x00k8s\x01"
_STORED_CRC: Final[int] = _crc(_STORED_HEAD)
_DEFLATE_CRC: Final[int] = _crc(_DEFLATE_HEAD)


def _writer() -> Callable[[bytes], bytes]:
    try:
        from isal import igzip_lib
    except ImportError:
        import zlib

        return lambda plaintext: zlib.compress(plaintext, 1, wbits=-15)
    compress, raw = igzip_lib.compress, igzip_lib.COMP_DEFLATE
    return lambda plaintext: compress(plaintext, 1, raw)


def _reader() -> Any:
    try:
        from zlib_ng import zlib_ng
    except ImportError:
        import zlib

        return zlib
    return zlib_ng


_deflate: Final = _writer()
_zlib: Final = _reader()
_new_inflater: Final[Callable[[int], Any]] = _zlib.decompressobj
_InflateError: Final[type[Exception]] = _zlib.error


def is_framed(value: bytes) -> bool:
    """Whether `value` is a frame: its first byte is zero, and nothing else is asked."""
    return value[:1] == b"\x00"


def encode(plaintext: bytes) -> bytes:
    """Frame `plaintext`: deflated, or verbatim where that is not smaller (KEP-6264, Write path).

    Empty plaintexts and those that begin with a zero byte are always verbatim. The result is at
    most nine bytes longer than the plaintext. Raises PlaintextTooLarge above MAX_PLAINTEXT_BYTES.
    """
    size = len(plaintext)
    if size > MAX_PLAINTEXT_BYTES:
        raise PlaintextTooLarge(f"{size} bytes; a frame holds at most {MAX_PLAINTEXT_BYTES}")
    if size and plaintext[0]:
        stream = _deflate(plaintext)
        length = _varint(size)
        if len(length) + len(stream) < size:
            crc = _extend_crc(_extend_crc(_DEFLATE_CRC, length), stream)
            return b"".join((_DEFLATE_HEAD, crc.to_bytes(4, "little"), length, stream))
    crc = _extend_crc(_STORED_CRC, plaintext)
    return b"".join((_STORED_HEAD, crc.to_bytes(4, "little"), plaintext))


def decode(value: bytes, slot: AbstractContextManager[object] | None = None) -> bytes:
    """The plaintext of a frame; a value that is no frame comes back untouched.

    `slot` is entered around the inflation alone, so that a caller can bound how many run at once.
    Raises ChecksumMismatch, UnsupportedAlgorithm or MalformedFrame, decided in that order
    (KEP-6264, Error classification), and whatever entering `slot` raises.
    """
    if not value or value[0]:
        return value
    if len(value) < HEADER_BYTES:
        raise ChecksumMismatch(f"{len(value)} bytes, too short for the header of a frame")
    body = value[HEADER_BYTES:]
    head = value[:5]
    if _extend_crc(_crc(head), body) != int.from_bytes(value[5:HEADER_BYTES], "little"):
        raise ChecksumMismatch("the checksum is not that of the bytes")
    algorithm = head[4]
    if algorithm > Algorithm.DEFLATE:
        raise UnsupportedAlgorithm(f"algorithm {algorithm} was added by a newer release")
    if head[1:4] != b"k8s":
        raise MalformedFrame("the magic is not k8s")
    if algorithm == Algorithm.DEFLATE:
        declared, start = _declared_length(body)
        if slot is None:
            return _inflate(memoryview(body)[start:], declared)
        with slot:
            return _inflate(memoryview(body)[start:], declared)
    if len(body) > MAX_PLAINTEXT_BYTES:
        raise MalformedFrame(f"{len(body)} bytes stored, above the ceiling")
    return body


def describe(value: bytes) -> Description:
    """Take the header apart without inflating anything. Never raises, whatever the bytes."""
    if not is_framed(value):
        return Description(framed=False)
    magic = value[1:4] if len(value) >= 4 else None
    algorithm = value[4] if len(value) >= 5 else None
    if len(value) < HEADER_BYTES:
        return Description(framed=True, algorithm=algorithm, magic=magic)
    body = value[HEADER_BYTES:]
    declared: int | None = None
    start = 0
    if algorithm == Algorithm.DEFLATE:
        number, start = _read_varint(body)
        declared = number if start else None
    elif algorithm == Algorithm.STORED:
        declared = len(body)
    return Description(
        framed=True,
        algorithm=algorithm,
        magic=magic,
        stored_checksum=int.from_bytes(value[5:HEADER_BYTES], "little"),
        computed_checksum=_extend_crc(_crc(value[:5]), body),
        declared_length=declared,
        body_length=len(body) - start,
    )


def _varint(number: int) -> bytes:
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))


def _read_varint(body: bytes) -> tuple[int, int]:
    """The number and how many bytes it took; (0, 0) where it does not end in time."""
    number = shift = 0
    for position, byte in enumerate(body[:_MAX_LENGTH_BYTES], 1):
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    return 0, 0


def _declared_length(body: bytes) -> tuple[int, int]:
    declared, start = _read_varint(body)
    if not start:
        raise MalformedFrame("the declared length does not end")
    if not declared:
        # Also what the libraries take for "without a limit".
        raise MalformedFrame("the declared length is zero")
    if declared > MAX_PLAINTEXT_BYTES:
        raise MalformedFrame(f"declares {declared} bytes, above the ceiling")
    return declared, start


def _inflate(stream: memoryview, declared: int) -> bytes:
    inflater = _new_inflater(-15)
    try:
        # One byte more than declared: a longer stream shows, and is not followed any further.
        plaintext: bytes = inflater.decompress(stream, declared + 1)
    except _InflateError:
        # The library's text may quote the stream; the class says what a caller may know.
        raise MalformedFrame("the DEFLATE stream is invalid") from None
    if len(plaintext) != declared:
        longer = len(plaintext) > declared
        raise MalformedFrame(f"the stream is {'longer' if longer else 'shorter'} than declared")
    if not inflater.eof:
        raise MalformedFrame("the DEFLATE stream has no end")
    return plaintext
