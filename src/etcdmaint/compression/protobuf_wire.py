"""Protobuf without a schema: the wire format alone, bounded, for bytes that may be hostile.

Kubernetes' messages are known here only as far as `stored_value` needs them. Every function raises
ValueError for bytes that are no message, and for nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# A ConfigMap at the ceiling, of the shortest entries there can be, has fewer.
_MAX_FIELDS = 1 << 18
_MAX_DEPTH = 32


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number and its value: a number for varints and fixed widths, else its bytes."""
    position, end = 0, len(message)
    for _ in range(_MAX_FIELDS):
        if position == end:
            return
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError("no field has this number")
        if wire_type == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            length, position = _varint(message, position)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            # Groups: no message of Kubernetes has any.
            raise ValueError("unknown wire type")
        if length > end - position:
            raise ValueError("a field is longer than its message")
        octets = message[position : position + length]
        yield number, octets if wire_type == 2 else int.from_bytes(octets, "little")
        position += length
    raise ValueError("too many fields")


def last(message: bytes, *numbers: int) -> tuple[bytes, ...]:
    """The last occurrence of each of these fields of bytes; b"" for one that is not there."""
    found = dict.fromkeys(numbers, b"")
    for number, value in fields(message):
        if number in found and isinstance(value, bytes):
            found[number] = value
    return tuple(found.values())


def dump(message: bytes, depth: int = 0) -> dict[str, Any]:
    """Every field by its number, for people: text as text, what reads as a message taken apart.

    Without a schema that is a guess: a short text may be shown as a message, or the other way round.
    """
    shown: dict[str, Any] = {}
    for number, value in fields(message):
        name = str(number)
        told = _told(value, depth) if isinstance(value, bytes) else value
        if name not in shown:
            shown[name] = told
        elif isinstance(shown[name], list):
            shown[name].append(told)
        else:
            shown[name] = [shown[name], told]
    return shown


def _told(octets: bytes, depth: int) -> Any:
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not octets):
        return text
    if depth < _MAX_DEPTH:
        with contextlib.suppress(ValueError):
            return dump(octets, depth + 1)
    return text if text and not any(ord(letter) < 9 for letter in text) else {"hex": octets.hex()}


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for byte in message[position : position + 10]:
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
    raise ValueError("a number does not end")
