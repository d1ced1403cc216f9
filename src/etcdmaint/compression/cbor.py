"""CBOR as Kubernetes stores custom resources in it (gate CBORServingAndStorage): a small reader.

Kubernetes writes field names and strings as byte strings, and real byte strings in tag 22. Depth and
the number of items are bounded, lengths are checked before anything is allocated. Raises ValueError
for bytes that are not this, and for nothing else.
"""

from __future__ import annotations

import base64
import struct
from typing import Any, Final

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"

_MAX_DEPTH = 128
_MAX_ITEMS = 1 << 20
_SIMPLE = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_ENCODED = 22


def loads(data: bytes) -> Any:
    """The one item of `data`, with or without the tag that says it is CBOR."""
    reader = _Reader(data, len(SELF_DESCRIBED) if data.startswith(SELF_DESCRIBED) else 0)
    item = reader.item(0)
    if reader.position != len(data):
        raise ValueError("bytes after the end")
    return item


class _Reader:
    __slots__ = ("_data", "_items", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._items = 0
        self.position = position

    def item(self, depth: int) -> Any:
        self._items += 1
        if depth > _MAX_DEPTH or self._items > _MAX_ITEMS:
            raise ValueError("nested too deeply, or too many items")
        initial = self._take(1)[0]
        major, info = initial >> 5, initial & 31
        if major == 7:
            return self._simple(info)
        number = self._number(info)
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major in (2, 3):
            return self._take(number).decode("utf-8", "replace")
        if major == 4:
            return [self.item(depth + 1) for _ in range(self._count(number))]
        if major == 5:
            return {self._name(depth): self.item(depth + 1) for _ in range(self._count(number))}
        if number == _ENCODED and self._data[self.position : self.position + 1] >= b"\x40":
            return self._base64()
        return self.item(depth + 1)

    def _name(self, depth: int) -> str:
        name = self.item(depth + 1)
        if not isinstance(name, str):
            raise ValueError("a field's name is no text")
        return name

    def _base64(self) -> str:
        initial = self._take(1)[0]
        if initial >> 5 != 2:
            raise ValueError("tag 22 is for bytes")
        return base64.b64encode(self._take(self._number(initial & 31))).decode()

    def _simple(self, info: int) -> bool | float | None:
        if info in _FLOATS:
            layout = _FLOATS[info]
            number: float = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
            return number
        if info not in _SIMPLE:
            raise ValueError("unknown simple value")
        return _SIMPLE[info]

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise ValueError("indefinite lengths are not used")
        return int.from_bytes(self._take(1 << (info - 24)), "big")

    def _count(self, number: int) -> int:
        # An item takes a byte at least: more than are left is a lie.
        if number > len(self._data) - self.position:
            raise ValueError("more items than bytes")
        return number

    def _take(self, length: int) -> bytes:
        end = self.position + length
        if end > len(self._data):
            raise ValueError("ends in mid-item")
        taken = self._data[self.position : end]
        self.position = end
        return taken
