"""kms v2: values under keys that are derived from a seed, and the seed under a plugin's key.

Reads what kube-apiserver wrote since kms v2 exists, and writes what it has written since 1.29. A
data key of the older form is only ever read with: its nonces count up within one process, and a
second writer would repeat them (A23). The plugin's status is asked for every minute, by whoever
needs it then or by a poll ahead of them; a new key id there makes a new seed, and everything else
stale. This module must not know what the prefix of a value is.

Source: apiserver's `storage/value/encrypt/envelope/kmsv2` and `encryptionconfig`. Unlike there, no
seed is made before the first write: reading needs no Encrypt.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from etcdmaint.clock import Clock
from etcdmaint.compression.encryption.ciphers import SEED_BYTES, ExtendedGcm, Gcm
from etcdmaint.compression.encryption.data_keys import DataKeys
from etcdmaint.compression.encryption.kms import (
    SOURCE_KEY,
    SOURCE_SEED,
    EncryptedObject,
    PluginV2,
    Status,
    Wrapped,
    dump_object,
    parse_object,
)
from etcdmaint.errors import DecryptionFailed, KmsUnavailable

POLL_SECONDS = 60.0
RETRY_SECONDS = 10.0
# A seed may be written with for so long after the status last named its key.
SEED_SECONDS = 180.0

_MAX_KEY_ID = 1024
_MAX_SOURCE = 1024
_MAX_ANNOTATIONS = 32 * 1024
_MAX_DOMAIN = 253
_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})+\.?")

_log = logging.getLogger(__name__)

Decrypt = Callable[[bytes, bytes], bytes]


@dataclass(frozen=True, slots=True, repr=False)
class _Seed:
    wrapped: Wrapped
    cipher: ExtendedGcm


class KmsV2:
    """One provider of kms v2; thread-safe. Calls may block for as long as its plugin may take."""

    def __init__(self, plugin: PluginV2, *, cache_size: int, clock: Clock) -> None:
        self._plugin = plugin
        self._clock = clock
        # The bound method alone: what is kept can decrypt and nothing else.
        self._keys: DataKeys[Decrypt] = DataKeys(cache_size, clock)
        self._asking = threading.Lock()
        # How often the status was asked for, and why the last time came to nothing.
        self._asked = 0
        self._fault = ""
        self._due = 0.0
        self._key_id = ""
        self._seed: _Seed | None = None
        self._seed_until = 0.0
        self._unhealthy = ""

    def encrypt(self, plaintext: bytes, key: bytes) -> bytes:
        """The body of a stored value. Raises KmsUnavailable."""
        seed = self._writer()
        data = seed.cipher.encrypt(plaintext, key)
        return dump_object(EncryptedObject(data, seed.wrapped, SOURCE_SEED))

    def decrypt(self, body: bytes, key: bytes) -> tuple[bytes, bool, str]:
        """The plaintext, whether it is stale, and the id of the plugin's key that it is under.

        Raises DecryptionFailed, KmsRefused, KmsUnavailable.
        """
        stored = parse_object(body)
        if not stored.data:
            raise DecryptionFailed("the value holds no data")
        decrypt = self._keys.get(_digest(stored), lambda: self._open(stored))
        plaintext = decrypt(stored.data, key)
        key_id = stored.wrapped.key_id
        return plaintext, key_id != self._current() or stored.source_type != SOURCE_SEED, key_id

    def refresh(self) -> None:
        """Ask for the status now. Raises KmsUnavailable; what was known before stays in use."""
        with self._asking:
            self._ask(writing=False)

    def _open(self, stored: EncryptedObject) -> Decrypt:
        if fault := _fault_of_wrapped(stored.wrapped):
            raise DecryptionFailed(fault)
        if stored.source_type not in (SOURCE_KEY, SOURCE_SEED):
            raise DecryptionFailed(f"the type {stored.source_type} of its data key is not known")
        secret = self._plugin.decrypt(stored.wrapped)
        try:
            cipher = Gcm(secret) if stored.source_type == SOURCE_KEY else ExtendedGcm(secret)
        except DecryptionFailed as error:
            raise self._plugin.useless(error) from None
        return cipher.decrypt

    def _current(self) -> str:
        """The key id that a value must have so as not to be stale."""
        if not self._key_id:
            self._ask_or_share(lambda: not self._is_due(), writing=False)
        # Where an answer is known, one caller asks again and the others go on with that.
        elif self._is_due() and self._asking.acquire(blocking=False):
            try:
                if self._is_due():
                    self._ask(writing=False)
            except KmsUnavailable as error:
                _log.warning("kms status is not known: %s", error)
            finally:
                self._asking.release()
        seed = self._seed
        return seed.wrapped.key_id if seed else self._key_id

    def _is_due(self) -> bool:
        return not self._key_id or self._clock.monotonic() >= self._due

    def _writer(self) -> _Seed:
        self._current()
        seed = self._usable_seed()
        if seed is None:
            self._ask_or_share(lambda: self._usable_seed() is not None, writing=True)
            seed = self._seed
        assert seed is not None
        return seed

    def _usable_seed(self) -> _Seed | None:
        return self._seed if self._clock.monotonic() < self._seed_until else None

    def _ask_or_share(self, done: Callable[[], bool], *, writing: bool) -> None:
        """Ask, unless somebody did while this thread waited for its turn to.

        Their failure is this thread's as well: else a plugin that hangs would cost every thread the
        timeouts of all before it.
        """
        asked = self._asked
        with self._asking:
            if done():
                return
            if self._asked != asked and self._fault:
                raise KmsUnavailable(self._fault)
            self._ask(writing=writing)

    def _ask(self, *, writing: bool) -> None:
        self._fault = "the KMS plugin was not asked to the end"
        try:
            self._learn(writing=writing)
            self._fault = ""
        except KmsUnavailable as error:
            self._fault = str(error)
            raise
        finally:
            self._asked += 1

    def _learn(self, *, writing: bool) -> None:
        now = self._clock.monotonic()
        self._due = now + RETRY_SECONDS
        status = self._plugin.status()
        if fault := _fault_of_key_id(status.key_id):
            raise self._wrong(f"has a status in which {fault}")
        self._note_health(status)
        if self._seed is None:
            # Enough to read with, whatever becomes of a seed.
            self._note_key(status.key_id)
        # The seed first: a key id that the plugin does not encrypt with makes nothing stale.
        if self._seed is None:
            self._seed = self._new_seed(status.key_id) if writing else None
        elif self._seed.wrapped.key_id != status.key_id:
            self._seed = self._new_seed(status.key_id)
        self._seed_until = now + SEED_SECONDS
        self._note_key(status.key_id)
        self._due = now + POLL_SECONDS

    def _note_key(self, key_id: str) -> None:
        if self._key_id != key_id:
            extra = {"provider": self._plugin.name, "key_id": _short(key_id)}
            _log.info("kms key", extra=extra)
        self._key_id = key_id

    def _new_seed(self, key_id: str) -> _Seed:
        secret = os.urandom(SEED_BYTES)
        wrapped = self._plugin.encrypt(secret)
        if wrapped.key_id != key_id:
            raise self._wrong("encrypts with another key than its status names")
        if fault := _fault_of_wrapped(wrapped):
            raise self._wrong(f"gives an encrypted seed of which {fault}")
        cipher = ExtendedGcm(secret)
        self._keys.put(_digest(EncryptedObject(b"", wrapped, SOURCE_SEED)), cipher.decrypt)
        return _Seed(wrapped, cipher)

    def _note_health(self, status: Status) -> None:
        # As upstream: an unhealthy plugin is still used, for it may well answer.
        unhealthy = "" if status.healthz == "ok" else "is not healthy"
        if status.version not in ("v2", "v2beta1"):
            unhealthy = "does not call its version v2"
        if unhealthy and unhealthy != self._unhealthy:
            _log.warning("kms plugin %s", unhealthy, extra={"provider": self._plugin.name})
        self._unhealthy = unhealthy

    def _wrong(self, what: str) -> KmsUnavailable:
        return KmsUnavailable(f"the KMS plugin {self._plugin.name!a} {what}")


def _fault_of_wrapped(wrapped: Wrapped) -> str:
    if fault := _fault_of_key_id(wrapped.key_id):
        return fault
    if not 1 <= len(wrapped.ciphertext) <= _MAX_SOURCE:
        return f"the encrypted data key is not 1 to {_MAX_SOURCE} bytes long"
    size = 0
    for name, value in wrapped.annotations.items():
        size += len(name.encode()) + len(value)
        if len(name.rstrip(".")) > _MAX_DOMAIN or not _DOMAIN.fullmatch(name):
            return "the name of an annotation is not a domain"
    if size > _MAX_ANNOTATIONS:
        return f"the annotations are longer than {_MAX_ANNOTATIONS} bytes"
    return ""


def _fault_of_key_id(key_id: str) -> str:
    if not 1 <= len(key_id.encode()) <= _MAX_KEY_ID:
        return f"the key id is not 1 to {_MAX_KEY_ID} bytes long"
    return ""


def _digest(stored: EncryptedObject) -> bytes:
    """Equal for what the plugin would be asked alike."""
    wrapped = stored.wrapped
    parts = [b"%d" % stored.source_type, wrapped.ciphertext, wrapped.key_id.encode()]
    for name in sorted(wrapped.annotations):
        parts += (name.encode(), wrapped.annotations[name])
    # Lengths first, so that no two lists of parts run together alike.
    lengths = ",".join([str(len(part)) for part in parts]).encode()
    return hashlib.sha256(b":".join((lengths, *parts))).digest()


def _short(key_id: str) -> str:
    # Key ids can be long, and are the plugin's business: enough to tell two apart.
    return f"sha256:{hashlib.sha256(key_id.encode()).hexdigest()[:12]}"
