"""kms v1, read only: a data key for each value, itself encrypted by the plugin.

Kubernetes has it off by default since 1.29. A value from before 1.25 is CBC, which is what is tried
where AES-GCM fails; as in kube-apiserver a damaged value can so come out as garbage, stale, about
once in 256 where its length allows it. This module must not know how to write.

Source: apiserver's `storage/value/encrypt/envelope`.
"""

from __future__ import annotations

import hashlib

from etcdmaint.clock import Clock
from etcdmaint.compression.encryption.ciphers import Cbc, Gcm
from etcdmaint.compression.encryption.data_keys import DataKeys
from etcdmaint.compression.encryption.kms import PluginV1
from etcdmaint.errors import DecryptionFailed, EncryptionUnsupported


class KmsV1:
    """One provider of kms v1; thread-safe. Calls may block for as long as its plugin may take."""

    def __init__(self, plugin: PluginV1, *, cache_size: int, clock: Clock) -> None:
        self._plugin = plugin
        self._keys: DataKeys[tuple[Gcm, Cbc]] = DataKeys(cache_size, clock)
        self._greeted = False

    def encrypt(self, _plaintext: bytes, _key: bytes) -> bytes:
        """Refused, always: raises EncryptionUnsupported."""
        raise EncryptionUnsupported("kms v1 is only read here: make another provider the first")

    def decrypt(self, body: bytes, key: bytes) -> tuple[bytes, bool, str]:
        """The plaintext and whether it is stale; the third part is empty, there is no key id.

        Raises DecryptionFailed, KmsRefused, KmsUnavailable.
        """
        end = 2 + int.from_bytes(body[:2], "big")
        if len(body) < max(end, 2):
            raise DecryptionFailed("the value's data key is cut off")
        wrapped, data = body[2:end], body[end:]
        gcm, cbc = self._keys.get(hashlib.sha256(wrapped).digest(), lambda: self._open(wrapped))
        try:
            return gcm.decrypt(data, key), False, ""
        except DecryptionFailed as error:
            first = error
        try:
            return cbc.decrypt(data, key), True, ""
        except DecryptionFailed as error:
            second = error
        raise DecryptionFailed(f"as AES-GCM {first}; as CBC {second}")

    def refresh(self) -> None:
        """See that the plugin speaks v1beta1. Raises KmsUnavailable."""
        # Two threads may both ask; neither has to wait for the other's timeout.
        if not self._greeted:
            self._plugin.version()
            self._greeted = True

    def _open(self, wrapped: bytes) -> tuple[Gcm, Cbc]:
        self.refresh()
        secret = self._plugin.decrypt(wrapped)
        try:
            return Gcm(secret), Cbc(secret)
        except DecryptionFailed as error:
            raise self._plugin.useless(error) from None
