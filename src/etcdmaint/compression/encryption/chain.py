"""What encrypts and decrypts the values of each resource, as kube-apiserver would.

The first provider's first key writes; whatever matches a value's prefix reads, in the order of the
file, and what fails is passed over for the next that matches. A value that is read by anything but
the first is stale. A `ResourceChain` has the two methods of KEP-6264's delegate, synchronous and
thread-safe. This module must not know what lies in the plaintext.

Source: apiserver's `storage/value` (PrefixTransformers) and `encryptionconfig`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from etcdmaint.clock import Clock, SystemClock
from etcdmaint.compression.encryption.ciphers import Box, Cbc, Cipher, Gcm
from etcdmaint.compression.encryption.configuration import (
    EncryptionConfiguration,
    Identity,
    Key,
    Kind,
    Kms,
    Provider,
)
from etcdmaint.compression.encryption.selectors import NEVER_ENCRYPTED
from etcdmaint.errors import (
    DecryptionFailed,
    EncryptionError,
    EncryptionKeyMissing,
    KmsRefused,
    KmsUnavailable,
)

if TYPE_CHECKING:
    from etcdmaint.compression.encryption.kms import Plugin

ENCRYPTED = b"k8s:enc:"

_CIPHERS: dict[Kind, Callable[[Key], Cipher]] = {
    Kind.AESCBC: lambda key: Cbc(key.secret),
    Kind.AESGCM: lambda key: Gcm(key.secret, name=key.name),
    Kind.SECRETBOX: lambda key: Box(key.secret),
}
# Of several failures the one that says most about the value, or what to do, is raised.
_WORST = (KmsUnavailable, DecryptionFailed, KmsRefused, EncryptionKeyMissing)
# Before an answer is too old for its readers: they never ask themselves while this goes on.
_POLL_SECONDS = 45.0
_MAX_SHOWN = 64

_log = logging.getLogger(__name__)


class Decrypted(NamedTuple):
    """A plaintext and how it was come by.

    `provider` is `identity`, `aescbc`, `aesgcm`, `secretbox`, `kms:v1` or `kms:v2`; `key_name` the
    key's name, or the provider's for kms; `key_id` the plugin's key, for kms v2 alone.
    """

    plaintext: bytes
    stale: bool
    provider: str
    key_name: str
    key_id: str

    def __repr__(self) -> str:
        told = f"stale={self.stale}, {self.provider} {self.key_name!r} {self.key_id!r}"
        return f"Decrypted(<{len(self.plaintext)} bytes>, {told})"


class _Envelope(Protocol):
    def encrypt(self, plaintext: bytes, key: bytes) -> bytes: ...
    def decrypt(self, body: bytes, key: bytes) -> tuple[bytes, bool, str]: ...
    def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Link:
    """One key, with the prefix of what it wrote. Neither a cipher nor an envelope: identity."""

    prefix: bytes
    provider: str
    key_name: str
    cipher: Cipher | None = None
    envelope: _Envelope | None = None

    def __str__(self) -> str:
        kind = "key" if self.cipher else "provider"
        return f"{self.provider} {kind} {self.key_name!a}"


_IDENTITY = _Link(b"", "identity", "")


class ResourceChain:
    """The keys of one resource: the delegate that a `Transformer` stands on."""

    __slots__ = ("_links", "_writer")

    def __init__(self, links: tuple[_Link, ...]) -> None:
        self._links = links
        self._writer = links[0]

    @property
    def writes(self) -> tuple[str, str]:
        """Provider and key name of what is written, named as in `Decrypted`."""
        return self._writer.provider, self._writer.key_name

    @property
    def prefix(self) -> bytes:
        """What every value that is written begins with; empty for identity."""
        return self._writer.prefix

    def to_storage(self, plaintext: bytes, key: bytes) -> bytes:
        """The value to store under the etcd key `key`, which is authenticated where the cipher can.

        Raises KmsUnavailable, EncryptionUnsupported.
        """
        writer = self._writer
        cipher = writer.cipher or writer.envelope
        return writer.prefix + cipher.encrypt(plaintext, key) if cipher else plaintext

    def from_storage(self, stored: bytes, key: bytes) -> tuple[bytes, bool]:
        """The plaintext of what lies under the etcd key `key`, and whether it is stale.

        Raises EncryptionKeyMissing, DecryptionFailed, KmsRefused, KmsUnavailable.
        """
        return self.decrypt(stored, key)[:2]

    def decrypt(self, stored: bytes, key: bytes) -> Decrypted:
        """As `from_storage`, and by which key: for tools that report it."""
        errors = []
        for index, link in enumerate(self._links):
            if not stored.startswith(link.prefix):
                continue
            try:
                if link.cipher is not None:
                    plaintext = link.cipher.decrypt(stored[len(link.prefix) :], key)
                    return Decrypted(plaintext, index > 0, link.provider, link.key_name, "")
                if link.envelope is not None:
                    body = stored[len(link.prefix) :]
                    plaintext, stale, key_id = link.envelope.decrypt(body, key)
                    return Decrypted(
                        plaintext, stale or index > 0, link.provider, link.key_name, key_id
                    )
            except EncryptionError as error:
                error.args = (f"{link}: {error}",)
                errors.append(error)
                continue
            if not stored.startswith(ENCRYPTED):
                return Decrypted(stored, index > 0, link.provider, "", "")
        raise self._failure(stored, errors)

    def _failure(self, stored: bytes, errors: list[EncryptionError]) -> EncryptionError:
        if not errors:
            return _missing(stored, alone=self._links == (_IDENTITY,))
        worst = min(errors, key=lambda error: _WORST.index(type(error)))
        worst.args = ("; ".join(dict.fromkeys(map(str, errors))),)
        return worst


_PLAIN = ResourceChain((_IDENTITY,))


class EncryptionChain:
    """The chains of every resource, and the KMS plugins behind them.

    Without a configuration everything is plain. Nothing is dialled before it is needed; an asyncio
    program may `connect` first and `poll` beside its work, so that no reader waits for a status.
    `pace` is called before each Decrypt of a plugin and may block, to keep a rate.
    """

    def __init__(
        self,
        configuration: EncryptionConfiguration | None = None,
        *,
        clock: Clock | None = None,
        pace: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._pace = pace
        self._plugins: list[Plugin] = []
        self._envelopes: list[_Envelope] = []
        chosen: dict[tuple[str, str], tuple[_Link, ...]] = {}
        # A key that several entries have is one: its writes are counted together.
        ciphers: dict[tuple[Kind, Key], Cipher] = {}
        for entry in configuration.entries if configuration else ():
            links = tuple(
                link for provider in entry.providers for link in self._links(provider, ciphers)
            )
            for selector in entry.selectors:
                # A resource that two entries name is written by the first and read by both.
                at = (selector.group, selector.resource)
                chosen[at] = chosen.get(at, ()) + links
        self._chains = {at: ResourceChain(links) for at, links in chosen.items()}

    def for_resource(self, group: str, resource: str) -> ResourceChain:
        """The chain of a resource, plain where no entry selects it; "" is the core group."""
        if (group, resource) == ("events.k8s.io", "events"):
            group = ""  # one store serves both
        if group or resource.lower() not in NEVER_ENCRYPTED:
            for at in ((group, resource), (group, "*"), ("*", "*")):
                if at in self._chains:
                    return self._chains[at]
        return _PLAIN

    @property
    def kms_calls(self) -> Counter[str]:
        """How often each method of a KMS plugin was called: `Status`, `Encrypt`, `Decrypt`, …"""
        return sum((plugin.calls for plugin in self._plugins), Counter())

    async def connect(self) -> None:
        """Ask every KMS plugin for its status. Raises KmsUnavailable when one has none."""
        for envelope in self._envelopes:
            await asyncio.to_thread(envelope.refresh)

    async def poll(self) -> None:
        """Ask ahead of every reader, until cancelled; who does not answer is asked again then."""
        while True:
            await self._clock.sleep(_POLL_SECONDS)
            # Beside one another: a plugin that hangs keeps no other from being asked.
            async with asyncio.TaskGroup() as group:
                for envelope in self._envelopes:
                    group.create_task(_refresh(envelope))

    def close(self) -> None:
        """Hang up on every plugin; nothing may follow."""
        for plugin in self._plugins:
            plugin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _links(
        self, provider: Provider, ciphers: dict[tuple[Kind, Key], Cipher]
    ) -> Iterator[_Link]:
        if isinstance(provider, Identity):
            yield _IDENTITY
        elif isinstance(provider, Kms):
            envelope = self._envelope(provider)
            prefix = b"%skms:v%d:%s:" % (ENCRYPTED, provider.version, provider.name.encode())
            yield _Link(prefix, f"kms:v{provider.version}", provider.name, envelope=envelope)
        else:
            for key in provider.keys:
                prefix = f"k8s:enc:{provider.kind}:v1:{key.name}:".encode()
                if (provider.kind, key) not in ciphers:
                    ciphers[provider.kind, key] = _CIPHERS[provider.kind](key)
                cipher = ciphers[provider.kind, key]
                yield _Link(prefix, str(provider.kind), key.name, cipher)

    def _envelope(self, provider: Kms) -> _Envelope:
        # gRPC is loaded for those who have a plugin.
        from etcdmaint.compression.encryption import kms, kms_v1, kms_v2

        envelope: _Envelope
        plugin: Plugin
        if provider.version == 1:
            plugin = kms.PluginV1(provider, pace=self._pace)
            envelope = kms_v1.KmsV1(plugin, cache_size=provider.cache_size, clock=self._clock)
        else:
            plugin = kms.PluginV2(provider, pace=self._pace)
            envelope = kms_v2.KmsV2(plugin, cache_size=provider.cache_size, clock=self._clock)
        self._plugins.append(plugin)
        self._envelopes.append(envelope)
        return envelope


async def _refresh(envelope: _Envelope) -> None:
    try:
        await asyncio.to_thread(envelope.refresh)
    except KmsUnavailable as error:
        _log.warning("kms status is not known: %s", error)


def _missing(stored: bytes, *, alone: bool) -> EncryptionKeyMissing:
    if not stored.startswith(ENCRYPTED):
        return EncryptionKeyMissing(
            "the value is not encrypted, and its resource has no identity provider to read it with"
        )
    # Hostile bytes may stand here: only as much as a prefix needs is looked at, and it is quoted.
    parts = stored[len(ENCRYPTED) : len(ENCRYPTED) + 4 * _MAX_SHOWN].split(b":", 3)
    provider, version, name = (part.decode(errors="replace") for part in (*parts, b"", b"")[:3])
    shown = ascii(f"{provider}:{version}:{name}"[:_MAX_SHOWN])
    if alone:
        text = f"the value is encrypted ({shown}), and its resource is not configured to be"
    else:
        text = f"no key of the configuration is meant for this value ({shown})"
    provider = f"{provider}:{version}" if provider == "kms" else provider
    return EncryptionKeyMissing(text, provider=provider, key_name=name)
