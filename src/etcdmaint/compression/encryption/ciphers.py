"""The ciphers of encryption at rest, byte for byte as kube-apiserver has them.

A cipher turns a plaintext into the bytes after the prefix of a stored value, and back. The etcd key
is authenticated data for AES-GCM alone; CBC and secretbox do not know where a value lies, and CBC
does not notice damage. This module must not know about prefixes, configurations or KMS plugins; a
failure says why, never with what.

Source: apiserver's `storage/value/encrypt/{aes,secretbox}`.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import os
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from etcdmaint.errors import DecryptionFailed

SEED_BYTES = 32

_BLOCK = 16
_GCM_NONCE = 12
_BOX_NONCE = SecretBox.NONCE_SIZE
_BOX_OVERHEAD = _BOX_NONCE + SecretBox.MACBYTES
_INFO = 32
_AES_KEY_SIZES = (16, 24, 32)

# NIST's limit of 2^32 random nonces a key, with Kubernetes' margin for fleets of writers.
GCM_WRITES_PER_KEY = 200_000

_log = logging.getLogger(__name__)


class Cipher(Protocol):
    """One key. Both methods are synchronous and thread-safe."""

    def encrypt(self, plaintext: bytes, key: bytes) -> bytes:
        """The body of a stored value; `key` is the etcd key that it will lie under."""

    def decrypt(self, body: bytes, key: bytes) -> bytes:
        """The plaintext. Raises DecryptionFailed."""


class Gcm:
    """aesgcm: nonce(12) ‖ ciphertext ‖ tag(16), bound to the etcd key."""

    __slots__ = ("_aead", "_name", "_writes")

    def __init__(self, secret: bytes, *, name: str = "") -> None:
        self._aead = AESGCM(_checked(secret))
        self._name = name
        self._writes = itertools.count(1)

    def encrypt(self, plaintext: bytes, key: bytes) -> bytes:
        """A fresh random nonce each time; a warning when the key has had its share of them."""
        if next(self._writes) == GCM_WRITES_PER_KEY:
            _log.warning(
                "aesgcm key has written its share of values, rotate it",
                extra={"key_name": self._name, "writes": GCM_WRITES_PER_KEY},
            )
        nonce = os.urandom(_GCM_NONCE)
        return nonce + self._aead.encrypt(nonce, plaintext, key)

    def decrypt(self, body: bytes, key: bytes) -> bytes:
        """Raises DecryptionFailed: damaged, another key, or moved from another etcd key."""
        return _open(self._aead, body, 0, key)


class ExtendedGcm:
    """kms v2's seed: info(32) ‖ aesgcm under a key derived from the seed and the info.

    Each value has a key of its own, so that the number of writes has no limit that matters.
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: bytes) -> None:
        if len(seed) < SEED_BYTES:
            raise DecryptionFailed(f"a seed of {len(seed)} bytes is too short")
        self._seed = seed

    def encrypt(self, plaintext: bytes, key: bytes) -> bytes:
        """Draws the info, then the nonce."""
        info, nonce = os.urandom(_INFO), os.urandom(_GCM_NONCE)
        return b"".join((info, nonce, self._derive(info).encrypt(nonce, plaintext, key)))

    def decrypt(self, body: bytes, key: bytes) -> bytes:
        """Raises DecryptionFailed: damaged, another seed, or moved from another etcd key."""
        if len(body) < _INFO:
            raise DecryptionFailed("the value is too short")
        return _open(self._derive(body[:_INFO]), body, _INFO, key)

    def _derive(self, info: bytes) -> AESGCM:
        # HKDF-Expand (RFC 5869, 2.3) to 32 bytes is the first block alone.
        return AESGCM(hmac.digest(self._seed, info + b"\x01", "sha256"))


class Cbc:
    """aescbc: IV(16) ‖ AES-CBC of the PKCS#7-padded plaintext. No authentication at all."""

    __slots__ = ("_algorithm",)

    def __init__(self, secret: bytes) -> None:
        self._algorithm = AES(_checked(secret))

    def encrypt(self, plaintext: bytes, _key: bytes) -> bytes:
        """A fresh random IV each time."""
        iv = os.urandom(_BLOCK)
        padding = _BLOCK - len(plaintext) % _BLOCK
        encryptor = BlockCipher(self._algorithm, CBC(iv)).encryptor()
        padded = plaintext + bytes((padding,)) * padding
        return b"".join((iv, encryptor.update(padded), encryptor.finalize()))

    def decrypt(self, body: bytes, _key: bytes) -> bytes:
        """Raises DecryptionFailed for a wrong length or padding; other damage passes unnoticed."""
        if len(body) < _BLOCK:
            raise DecryptionFailed("the value is too short")
        if len(body) % _BLOCK:
            raise DecryptionFailed("the value is not a whole number of blocks")
        decryptor = BlockCipher(self._algorithm, CBC(body[:_BLOCK])).decryptor()
        padded = decryptor.update(memoryview(body)[_BLOCK:]) + decryptor.finalize()
        padding = padded[-1] if padded else 0
        # Go takes a padding of up to the whole value where PKCS#7 ends at a block.
        if not 0 < padding <= len(padded):
            raise DecryptionFailed("the value is empty or not padded")
        if not padded.endswith(bytes((padding,)) * padding):
            raise DecryptionFailed("the value's padding is wrong")
        return padded[:-padding]


class Box:
    """secretbox: nonce(24) ‖ tag(16) ‖ XSalsa20. Authenticated, but not bound to the etcd key."""

    __slots__ = ("_box",)

    def __init__(self, secret: bytes) -> None:
        self._box = SecretBox(secret)

    def encrypt(self, plaintext: bytes, _key: bytes) -> bytes:
        """A fresh random nonce each time."""
        return bytes(self._box.encrypt(plaintext, os.urandom(_BOX_NONCE)))

    def decrypt(self, body: bytes, _key: bytes) -> bytes:
        """Raises DecryptionFailed: damaged, or another key."""
        if len(body) < _BOX_OVERHEAD:
            raise DecryptionFailed("the value is too short")
        try:
            return self._box.decrypt(body)
        except CryptoError:
            raise DecryptionFailed("the value's authentication failed") from None


def _checked(secret: bytes) -> bytes:
    # A data key comes from outside: that it is none is told as whatever else is wrong with a value.
    if len(secret) not in _AES_KEY_SIZES:
        raise DecryptionFailed(f"AES has no keys of {len(secret)} bytes")
    return secret


def _open(aead: AESGCM, body: bytes, start: int, key: bytes) -> bytes:
    if len(body) < start + _GCM_NONCE:
        raise DecryptionFailed("the value is too short")
    sealed = start + _GCM_NONCE
    try:
        return aead.decrypt(body[start:sealed], memoryview(body)[sealed:], key)
    except InvalidTag:
        raise DecryptionFailed("the value's authentication failed") from None
