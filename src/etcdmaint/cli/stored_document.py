"""A stored object as a document: for people, and with nothing in it that steers their terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from etcdmaint.compression import frame
from etcdmaint.compression.stored_value import Form, StoredValue, identify

_MOST_DEPTH = 128
MOST_LAYERS = 8
"""More than any writer puts on."""


def told_of(found: StoredValue) -> dict[str, Any]:
    """What a value says of itself."""
    told = {name: content for name, content in asdict(found).items() if content != ""}
    return told | {"form": str(found.form)}


def holds_secret(value: bytes, at: tuple[str, str] | None) -> bool:
    """Whether anybody could read a Secret out of these bytes: ciphertext alone is none.

    It is one by what it says, or by where it lies, if that is known; or it is too damaged to say so and
    has the word in it.
    """
    for _ in range(MOST_LAYERS):
        found = identify(value)
        if found.form is Form.ENCRYPTED:
            return False
        damaged = found.form in (Form.OPAQUE, Form.FRAME)
        if at == ("", "secrets") or found.is_secret or (damaged and b"Secret" in value):
            return True
        if found.form is not Form.FRAME:
            return False
        try:
            value = frame.decode(value)
        except frame.FrameError:
            return False
    return True


def document_of(value: bytes, *, hide: bool) -> dict[str, Any]:
    """The object as a document; of a Secret only what it is called."""
    found = identify(value)
    told = told_of(found)
    if hide:
        return told | {"hidden": "the value of a Secret; --show-secrets shows it"}
    try:
        return _bounded(_decoded(value, found)) or told | {"hex": value.hex()}
    except (ValueError, RecursionError):
        # It began as an object and does not go on as one.
        return told | {"hex": value.hex()}


def _decoded(value: bytes, found: StoredValue) -> dict[str, Any]:
    from etcdmaint.compression import cbor, kinds, protobuf_wire

    document: dict[str, Any] = {}
    if found.form is Form.JSON:
        document = json.loads(value)
    elif found.form is Form.CBOR:
        document = cbor.loads(value)
    elif found.form is Form.YAML:
        document = {"yaml": value.decode("utf-8", "replace")}
    elif found.form is Form.PROTOBUF:
        (raw,) = protobuf_wire.last(value[4:], 2)
        document = kinds.read(raw, found.api_version, found.kind) or {
            "apiVersion": found.api_version,
            "kind": found.kind,
            "fields": protobuf_wire.dump(raw),
        }
    return document


def _bounded(document: dict[str, Any]) -> dict[str, Any]:
    """The same document. Raises ValueError where it is deeper than whatever writes it could go."""
    level: list[Any] = [document]
    for _ in range(_MOST_DEPTH):
        level = [
            below
            for each in level
            for below in (each.values() if isinstance(each, dict) else each)
            if isinstance(below, dict | list)
        ]
        if not level:
            return document
    raise ValueError("nested too deeply")
