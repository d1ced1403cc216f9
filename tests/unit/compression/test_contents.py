"""Each value is counted as what it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression.contents import Content, Form, examine
from etcdmaint.compression.encryption.chain import Decrypted
from etcdmaint.compression.stored_value import identify
from etcdmaint.errors import DecryptionFailed, EncryptionKeyMissing, KmsUnavailable

from . import objects
from .vectors import octets, parameters

KEY = b"/registry/configmaps/default/x"
KINDS = {
    "protobuf": (objects.protobuf(size=100), Content.PROTOBUF),
    "a protobuf object with an encoding": (
        objects.protobuf()[:-4] + objects.field(3, b"gzip"),
        Content.PROTOBUF,
    ),
    "json": (objects.JSON, Content.JSON),
    "json, indented": (b'{\n  "apiVersion": "v1",\n  "kind": "A"\n}\n', Content.JSON),
    "yaml": (objects.YAML, Content.YAML),
    "cbor": (objects.CBOR, Content.CBOR),
    "a deflate frame": (objects.DEFLATED, Content.DEFLATE),
    "a stored frame": (objects.STORED, Content.STORED),
    "nothing": (b"", Content.EMPTY),
    "a number": (b"12345", Content.OPAQUE),
    "json that is cut off": (objects.JSON[:-4], Content.OPAQUE),
    "braces around rubbish": (b"{rubbish}", Content.OPAQUE),
    "a flip in a frame's first byte": (b"\x01" + objects.DEFLATED[1:], Content.OPAQUE),
    "a frame with a flipped bit": (objects.DAMAGED_CHECKSUM, Content.CHECKSUM),
    "a zero byte alone": (b"\x00", Content.CHECKSUM),
    "a frame of a newer release": (objects.NEWER, Content.NEWER),
    "a frame that no writer made": (objects.MALFORMED, Content.MALFORMED),
    "protobuf that is cut off": (objects.BROKEN_ENVELOPE, Content.ENVELOPE),
    "an envelope without an object": (b"k8s\x00\x0a\x04\x0a\x02v1\x1a\x00\x22\x00", Content.ENVELOPE),
    "the magic alone": (b"k8s\x00", Content.ENVELOPE),
    "protobuf that is cut off, in a frame": (objects.FRAMED_BROKEN_ENVELOPE, Content.ENVELOPE),
}  # fmt: skip


@pytest.mark.parametrize(("value", "content"), KINDS.values(), ids=KINDS)
def test_a_value_is_what_it_is(value: bytes, content: Content) -> None:
    """R150, A1, A2: frames by being read whole, damage by its class."""
    form, plaintext, stale = examine(value, KEY)
    assert form == Form(content)
    assert not stale
    assert (plaintext is None) is (content in _UNREADABLE)


_UNREADABLE = {Content.CHECKSUM, Content.NEWER, Content.MALFORMED, Content.ENVELOPE}


@pytest.mark.parametrize("case", parameters("storage_values"))
def test_what_kubernetes_itself_stored_is_whole(case: dict[str, Any]) -> None:
    """The quick look agrees with the thorough one on every object of the vectors."""
    value = octets(case["value"])
    found, _, _ = examine(value, KEY)
    told = identify(value)
    if told.form in ("frame", "encrypted"):
        return
    assert str(found.content) == str(told.form)


@pytest.mark.parametrize("case", parameters("frames_rejected"))
def test_every_rejected_frame_has_its_class(case: dict[str, Any]) -> None:
    """R85 to R88, R90: the classes of the vectors are the columns of a scan."""
    classes = {
        "checksum": {Content.CHECKSUM},
        "unsupported": {Content.NEWER},
        "malformed": {Content.MALFORMED},
        "passthrough": set(Content) - {Content.CHECKSUM, Content.NEWER, Content.MALFORMED},
    }
    wanted = (
        {each for name in case["accept"] for each in classes[name]}
        if case["class"] == "either"
        else classes[case["class"]]
    )
    assert examine(octets(case["value"]), KEY)[0].content in wanted


def test_without_keys_an_encrypted_value_is_told_by_provider_and_key() -> None:
    told = examine(b"k8s:enc:kms:v2:vault:whatever", KEY)
    assert told == (Form(Content.ENCRYPTED, "kms:v2", "vault"), None, False)
    assert str(told[0]) == "encrypted by kms:v2 vault"
    told = examine(b"k8s:enc:aescbc:v1:key:1", KEY)
    assert told[0] == Form(Content.ENCRYPTED, "aescbc", "key")
    assert examine(b"k8s:enc:", KEY)[0] == Form(Content.ENCRYPTED)
    assert str(Form(Content.ENCRYPTED)) == "encrypted by something unknown"


def opened(value: bytes, stale: bool = False) -> Any:
    return lambda _stored, _key: Decrypted(value, stale, "aesgcm", "key-1", "")


def test_a_decrypted_value_is_told_by_both() -> None:
    """R19: the frame is inside of the encryption."""
    form, plaintext, stale = examine(b"k8s:enc:any", KEY, opened(objects.DEFLATED, stale=True))
    assert form == Form(Content.DEFLATE, "aesgcm", "key-1")
    assert str(form) == "deflate frame in aesgcm key-1"
    assert plaintext == objects.protobuf(size=4000)
    assert stale


def refusing(error: Exception) -> Any:
    def decrypt(_stored: bytes, _key: bytes) -> Decrypted:
        raise error

    return decrypt


def test_failures_to_decrypt_are_told_apart() -> None:
    """R86, R95: damage under a key that we hold is damage, a key that we lack is not."""
    value = b"k8s:enc:aesgcm:v1:key-1:xyz"
    damaged, _, _ = examine(value, KEY, refusing(DecryptionFailed("no")))
    missing, _, _ = examine(value, KEY, refusing(EncryptionKeyMissing("no")))
    assert damaged == Form(Content.UNDECRYPTABLE, "aesgcm", "key-1")
    assert missing == Form(Content.ENCRYPTED, "aesgcm", "key-1")
    with pytest.raises(KmsUnavailable):
        examine(value, KEY, refusing(KmsUnavailable("away")))


def test_a_plain_value_that_the_configuration_cannot_read_is_stale() -> None:
    """R48: kube-apiserver would encrypt it."""
    value = objects.protobuf()
    told = examine(value, KEY, refusing(EncryptionKeyMissing("not encrypted")))
    assert told == (Form(Content.PROTOBUF), value, True)


@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(value: bytes) -> None:
    examine(value, KEY)
    examine(b"\x00k8s\x01" + value, KEY)
    examine(b"k8s\x00" + value, KEY)
    examine(b"k8s:enc:" + value, KEY)
