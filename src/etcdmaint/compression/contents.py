"""What is stored in a value, so far as it can be counted: its form, or what is wrong with it.

Quick, since it is asked for every value of an etcd: a protobuf value is told by its envelope, JSON by
its two ends, a frame by being read whole, which is the only way to know that it can be. Who asks
says how to decrypt, or nothing; then an encrypted value is counted as such.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from etcdmaint.compression import stored_value
from etcdmaint.compression.frame import (
    Algorithm,
    ChecksumMismatch,
    MalformedFrame,
    UnsupportedAlgorithm,
    decode,
)
from etcdmaint.compression.inflation import LIMITER
from etcdmaint.compression.protobuf_wire import last
from etcdmaint.compression.stored_value import ENCRYPTED_MAGIC, PROTOBUF_MAGIC
from etcdmaint.errors import DecryptionFailed, EncryptionKeyMissing

if TYPE_CHECKING:
    from etcdmaint.compression.encryption.chain import Decrypted

Decrypt = Callable[[bytes, bytes], "Decrypted"]
"""Opens a stored value under its etcd key, raising EncryptionErrors: `ResourceChain.decrypt`."""


class Content(StrEnum):
    """The forms, and the kinds of damage."""

    PROTOBUF = "protobuf"
    JSON = "json"
    CBOR = "cbor"
    YAML = "yaml"
    DEFLATE = "deflate frame"
    STORED = "stored frame"
    ENCRYPTED = "encrypted"
    EMPTY = "empty"
    OPAQUE = "opaque"
    CHECKSUM = "checksum mismatch"
    MALFORMED = "malformed frame"
    NEWER = "newer format"
    ENVELOPE = "broken protobuf envelope"
    UNDECRYPTABLE = "decryption failed"


FRAMED: Final = frozenset({Content.DEFLATE, Content.STORED})
DAMAGED: Final = frozenset(
    {Content.CHECKSUM, Content.MALFORMED, Content.NEWER, Content.ENVELOPE, Content.UNDECRYPTABLE}
)


class Form(NamedTuple):
    """A content, and what it is encrypted with: `aescbc`, `kms:v2`, …, and the name of its key.

    ENCRYPTED is what was not looked into; another content with a provider was.
    """

    content: Content
    provider: str = ""
    key_name: str = ""

    def __str__(self) -> str:
        told = " ".join(part for part in (self.provider, self.key_name) if part)
        if self.content is Content.ENCRYPTED:
            return f"encrypted by {told or 'something unknown'}"
        return f"{self.content} in {told}" if told else str(self.content)


_BARE: Final = {content: Form(content) for content in Content}
_FRAME: Final = {Algorithm.STORED: Content.STORED, Algorithm.DEFLATE: Content.DEFLATE}
_OF_FORM: Final = {
    stored_value.Form.CBOR: Content.CBOR,
    stored_value.Form.JSON: Content.JSON,
    stored_value.Form.YAML: Content.YAML,
    stored_value.Form.PROTOBUF: Content.PROTOBUF,
}
# A prefix with a provider, its version and a name; names longer than this are cut.
_MOST_PREFIX: Final = 256
# What a real writer leaves at the end of an envelope: no encoding, no type of content.
_USUAL_END: Final = b"\x1a\x00\x22\x00"


def examine(
    value: bytes, key: bytes, decrypt: Decrypt | None = None
) -> tuple[Form, bytes | None, bool]:
    """The form, the plaintext as far as it can be had, and whether its encryption is outdated.

    Raises KmsUnavailable where a plugin is needed and does not answer, nothing else.
    """
    provider = name = ""
    stale = False
    plaintext = value
    if decrypt is not None:
        try:
            plaintext, stale, provider, name, _ = decrypt(value, key)
        except DecryptionFailed:
            return _under(value, Content.UNDECRYPTABLE), None, False
        except EncryptionKeyMissing:
            if value.startswith(ENCRYPTED_MAGIC):
                return _under(value, Content.ENCRYPTED), None, False
            # Plain where the configuration has no identity: kube-apiserver cannot read it.
            stale = True
        if provider == "identity":
            provider = ""
    elif value.startswith(ENCRYPTED_MAGIC):
        return _under(value, Content.ENCRYPTED), None, False
    if plaintext[:1] == b"\x00":
        content, plain = _unframed(plaintext)
    else:
        content = _content(plaintext)
        plain = None if content is Content.ENVELOPE else plaintext
    return (Form(content, provider, name) if provider else _BARE[content]), plain, stale


def _unframed(value: bytes) -> tuple[Content, bytes | None]:
    try:
        plaintext = decode(value, LIMITER.turn())
    except ChecksumMismatch:
        return Content.CHECKSUM, None
    except UnsupportedAlgorithm:
        return Content.NEWER, None
    except MalformedFrame:
        return Content.MALFORMED, None
    if _content(plaintext) is Content.ENVELOPE:
        return Content.ENVELOPE, None
    return _FRAME[Algorithm(value[4])], plaintext


def _content(value: bytes) -> Content:
    if value[:4] == PROTOBUF_MAGIC:
        return Content.PROTOBUF if _intact(value) else Content.ENVELOPE
    if not value:
        return Content.EMPTY
    if value[:1] == b"{":
        if value[-8:].rstrip()[-1:] != b"}":
            # `identify` reads the head alone, and would not miss the end.
            return Content.OPAQUE
        if value[:2] == b'{"':
            return Content.JSON
    return _OF_FORM.get(stored_value.identify(value).form, Content.OPAQUE)


def _intact(value: bytes) -> bool:
    """Whether the envelope is whole: a type and an object, each as long as it says."""
    try:
        # What kube-apiserver writes: a short type, the object, two empty fields.
        position = 6 + value[5]
        if value[4] == 0x0A and 0 < value[5] < 128 and value[position] == 0x12:
            length = shift = 0
            for _ in range(5):
                position += 1
                byte = value[position]
                length |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            if position + length + 5 == len(value) and value[-4:] == _USUAL_END:
                return True
        type_meta, raw = last(value[len(PROTOBUF_MAGIC) :], 1, 2)
    except (IndexError, ValueError):
        return False
    return bool(type_meta and raw)


def _under(value: bytes, content: Content) -> Form:
    """The form of what was not decrypted, by the prefix of the value."""
    parts = value[len(ENCRYPTED_MAGIC) : _MOST_PREFIX].split(b":", 3)
    if len(parts) < 4:
        return _BARE[content]
    provider, version, name = (part.decode("utf-8", "replace") for part in parts[:3])
    return Form(content, f"{provider}:{version}" if provider == "kms" else provider, name)
