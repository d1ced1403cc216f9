"""Mutated frames by the million, in three families.

Random bytes hardly ever pass a checksum, so a fuzzer that only mutates tests nothing but the
checksum. Half of what is made here has its checksum renewed after the mutation, and two thirds of
that keep header and declared length and damage the DEFLATE stream alone. Everything follows from
the seed: a run can be repeated.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from enum import StrEnum
from itertools import repeat

import google_crc32c

from etcdmaint.compression import frame

_HEADER = frame.HEADER_BYTES


class Family(StrEnum):
    """What was done to a frame."""

    RAW = "raw"  # any mutation, the checksum as it was
    RENEWED = "renewed"  # any mutation, the checksum right again
    STREAM = "stream"  # header and length valid, the stream mutated, the checksum right


def sealed(body: bytes, head: bytes = b"\x00k8s\x01") -> bytes:
    """A frame of these five bytes and this body, under a right checksum."""
    crc = google_crc32c.extend(google_crc32c.value(head), body)
    return head + crc.to_bytes(4, "little") + body


def varint(number: int) -> bytes:
    """A number in LEB128."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def seeds(rng: random.Random) -> tuple[list[tuple[bytes, int]], list[bytes]]:
    """Good frames: deflated ones with the offset of the stream, of every block type; stored ones."""
    made = []
    stored = []
    strategies = (
        zlib.Z_DEFAULT_STRATEGY,
        zlib.Z_HUFFMAN_ONLY,
        zlib.Z_RLE,
        zlib.Z_FIXED,
    )
    for size in (1, 2, 17, 64, 127, 128, 300, 700, 1500):
        for alphabet in (2, 20, 256):
            plaintext = bytes(rng.randrange(alphabet) + 1 & 255 for _ in range(size))
            for strategy in strategies:
                for level in (0, 1, 6):
                    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
                    half = size // 2
                    stream = packer.compress(plaintext[:half])
                    if alphabet == 20:
                        stream += packer.flush(zlib.Z_FULL_FLUSH)
                    stream += packer.compress(plaintext[half:]) + packer.flush()
                    length = varint(size)
                    made.append((sealed(length + stream), _HEADER + len(length)))
            stored.append(sealed(plaintext, b"\x00k8s\x00"))
    return made, stored


def frames(seed: int) -> Iterator[tuple[Family, bytes]]:
    """Mutated frames without end: of six, three raw, one renewed, two stream."""
    rng = random.Random(seed)
    rand = rng.random
    bits = rng.getrandbits
    pool, stored = seeds(rng)
    count = len(pool)
    raw, renewed, stream = Family.RAW, Family.RENEWED, Family.STREAM
    value_of, extend = google_crc32c.value, google_crc32c.extend
    for _ in repeat(None):
        value, start = pool[int(rand() * count)]
        for family in (raw, stream, raw, renewed, raw, stream):
            damaged = bytearray(value)
            if family is not stream and bits(4) == 0:
                damaged[:] = stored[int(rand() * len(stored))]
            low = start if family is stream else 0
            for _ in range(1 + (bits(3) == 0) * bits(2)):
                room = len(damaged) - low
                if room <= 0:
                    break
                if family is stream and room > 60 and bits(1):
                    # Where the codes of a dynamic block are: most of the verdicts hang on them.
                    room = 60
                at = low + int(rand() * room)
                kind = bits(4)
                if kind < 8:
                    damaged[at] ^= 1 << (kind & 7)
                elif kind < 11:
                    damaged[at] = bits(8)
                elif kind == 11:
                    damaged[at : at + 4] = bits(32).to_bytes(4, "little")
                elif kind == 12:
                    del damaged[at:]
                elif kind == 13:
                    del damaged[at : at + 1 + bits(3)]
                elif kind == 14:
                    damaged[at:at] = damaged[at : at + 1 + bits(4)]
                else:
                    other = pool[int(rand() * count)][0]
                    damaged[at:] = other[int(rand() * len(other)) :]
            if family is not raw and len(damaged) >= _HEADER:
                if family is renewed and bits(2):
                    damaged[0:4] = b"\x00k8s"
                body = bytes(damaged[_HEADER:])
                crc = extend(value_of(bytes(damaged[:5])), body)
                damaged[5:_HEADER] = crc.to_bytes(4, "little")
            yield family, bytes(damaged)
