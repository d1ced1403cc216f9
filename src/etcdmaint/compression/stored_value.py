"""What lies in a value of etcd, as far as its bytes tell without a key and without a schema.

For tools: an answer is for people, never for deciding how to read. Nothing is decoded beyond the
object's identity, nothing is inflated, and no bytes make it raise. `opaque` says that no serializer
and no encryption of Kubernetes wrote this; under a key that holds no object that is not damage.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from etcdmaint.compression import cbor, protobuf_wire
from etcdmaint.compression.frame import is_framed

PROTOBUF_MAGIC: Final = b"k8s\x00"
ENCRYPTED_MAGIC: Final = b"k8s:enc:"

# Provider, version and the name of the key or the plugin: more than this is no prefix.
_MAX_PREFIX = 4096
# Enough for apiVersion, kind and the metadata of anything that is not made to be slow.
_YAML_LINE = re.compile(rb"(?m)^([A-Za-z]+|  [a-z]+): *(\S.*)?$")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Form(StrEnum):
    """How a value is written."""

    FRAME = "frame"
    ENCRYPTED = "encrypted"
    PROTOBUF = "protobuf"
    JSON = "json"
    CBOR = "cbor"
    YAML = "yaml"
    EMPTY = "empty"
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class StoredValue:
    """What a value is. Text that the value does not tell is "".

    For an encrypted one, `provider`, `version` and `key_name` are its prefix (kms: the plugin's
    name), `key_id` is the key-encryption key that a kms v2 value names.
    """

    form: Form
    size: int
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    provider: str = ""
    version: str = ""
    key_name: str = ""
    key_id: str = ""

    @property
    def is_secret(self) -> bool:
        """Whether this says of itself that it is a Secret of the core group."""
        return self.kind == "Secret" and "/" not in self.api_version


def identify(value: bytes) -> StoredValue:
    """Tell what `value` is. Never raises, whatever the bytes."""
    size = len(value)
    if not value:
        return StoredValue(Form.EMPTY, size)
    if is_framed(value):
        return StoredValue(Form.FRAME, size)
    if value.startswith(ENCRYPTED_MAGIC):
        return _encrypted(value)
    try:
        if value.startswith(PROTOBUF_MAGIC):
            return _protobuf(value)
        if value.startswith(b"{"):
            return _from_object(Form.JSON, size, _json_head(value.decode("utf-8")))
        if value.startswith(cbor.SELF_DESCRIBED):
            return _from_object(Form.CBOR, size, cbor.loads(value))
        head = _yaml_head(value)
    except (ValueError, IndexError, RecursionError):
        return StoredValue(Form.OPAQUE, size)
    return _from_object(Form.YAML, size, head) if head else StoredValue(Form.OPAQUE, size)


def _encrypted(value: bytes) -> StoredValue:
    parts = value[len(ENCRYPTED_MAGIC) : _MAX_PREFIX].split(b":", 3)
    if len(parts) < 4:
        return StoredValue(Form.ENCRYPTED, len(value))
    provider, version, name = (part.decode("utf-8", "replace") for part in parts[:3])
    key_id = b""
    if (provider, version) == ("kms", "v2"):
        start = len(ENCRYPTED_MAGIC) + sum(len(part) + 1 for part in parts[:3])
        try:
            (key_id,) = protobuf_wire.last(value[start:], 2)
        except ValueError:
            key_id = b""
    return StoredValue(
        Form.ENCRYPTED,
        len(value),
        provider=provider,
        version=version,
        key_name=name,
        key_id=key_id.decode("utf-8", "replace"),
    )


def _protobuf(value: bytes) -> StoredValue:
    type_meta, raw = protobuf_wire.last(value[len(PROTOBUF_MAGIC) :], 1, 2)
    if not type_meta:
        raise ValueError("no type")
    # Every kind that is stored has its ObjectMeta in field 1.
    (meta,) = protobuf_wire.last(raw, 1)
    found = (*protobuf_wire.last(type_meta, 1, 2), *protobuf_wire.last(meta, 3, 1, 5))
    api_version, kind, namespace, name, uid = (
        octets.decode("utf-8", "replace") for octets in found
    )
    return StoredValue(Form.PROTOBUF, len(value), api_version, kind, namespace, name, uid)


def _json_head(text: str) -> dict[str, Any]:
    """The leading fields of a JSON object, up to the last of those that tell what it is."""
    found: dict[str, Any] = {}
    position = _skip(text, 1)
    while text[position] != "}":
        name, position = _DECODER.raw_decode(text, position)
        position = _skip(text, position)
        if not isinstance(name, str) or text[position] != ":":
            raise ValueError("no field")
        found[name], position = _DECODER.raw_decode(text, _skip(text, position + 1))
        if {"apiVersion", "kind", "metadata"} <= found.keys():
            break
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        elif text[position] != "}":
            raise ValueError("no end of a field")
    return found


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _yaml_head(value: bytes) -> dict[str, Any]:
    """The same from YAML as Kubernetes writes it: block style, two spaces; {} for anything else."""
    top: dict[str, Any] = {}
    meta: dict[str, str] = {}
    section = ""
    for match in _YAML_LINE.finditer(value):
        name = match[1].decode()
        text = _scalar((match[2] or b"").decode("utf-8", "replace"))
        if not name.startswith(" "):
            section = name
            top.setdefault(name, text)
        elif section == "metadata":
            meta.setdefault(name.strip(), text)
    if not top.get("apiVersion") or not top.get("kind"):
        return {}
    return top | {"metadata": meta}


def _scalar(text: str) -> str:
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text[1:-1].replace("''", "'") if text[:1] == "'" else text


def _from_object(form: Form, size: int, found: object) -> StoredValue:
    if not isinstance(found, dict):
        raise ValueError("no object")
    meta = found.get("metadata")
    if not isinstance(meta, dict):
        meta = {}
    texts = (
        *(found.get(name) for name in ("apiVersion", "kind")),
        *(meta.get(name) for name in ("namespace", "name", "uid")),
    )
    return StoredValue(form, size, *(text if isinstance(text, str) else "" for text in texts))
