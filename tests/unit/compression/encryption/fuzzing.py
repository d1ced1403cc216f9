"""Any bytes at all as a stored value, as kms v2's message and as a configuration file.

`fuzz_one` is an entry point for a fuzz driver: it returns a word for what happened, and raises only
when something did that must not.
"""

from __future__ import annotations

import base64
from functools import cache

from etcdmaint.compression.encryption import kms_v2
from etcdmaint.compression.encryption.chain import EncryptionChain, ResourceChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration, problems
from etcdmaint.compression.encryption.kms import PluginV2, Status, Wrapped
from etcdmaint.errors import EncryptionError

KEY = b"/registry/secrets/default/s1"
_SECRET = base64.b64encode(bytes(32)).decode()
_KEYED = "{%s: {keys: [{name: %s, secret: %s}]}}"
FILE = """\
apiVersion: v1
kind: EncryptionConfig
resources:
- resources: [secrets]
  providers: [%s]
"""
KINDS = ("aesgcm", "aescbc", "secretbox")
NAMES = ("a", "a:b")
PREFIXES = [
    *(f"k8s:enc:{kind}:v1:{name}:".encode() for kind in KINDS for name in NAMES),
    b"k8s:enc:kms:v2:vault:",
    b"k8s:enc:",
    b"",
]


class _Plugin(PluginV2):
    """Opens everything, as the same key, without a socket."""

    def __init__(self) -> None:
        self.name = "vault"

    def status(self) -> Status:
        return Status("v2", "ok", "kid")

    def encrypt(self, plaintext: bytes) -> Wrapped:
        return Wrapped(plaintext, "kid", {"a.b": b"c"})

    def decrypt(self, wrapped: Wrapped) -> bytes:
        return wrapped.ciphertext


class _Time:
    def monotonic(self) -> float:
        return 1.0


def _file_of(*keys: tuple[str, str]) -> bytes:
    providers = [_KEYED % (kind, name, _SECRET) for kind, name in keys]
    return (FILE % ", ".join([*providers, "{identity: {}}"])).encode()


def _chain_of(*keys: tuple[str, str]) -> ResourceChain:
    configuration = EncryptionConfiguration.load(_file_of(*keys))
    return EncryptionChain(configuration).for_resource("", "secrets")


@cache
def _chain() -> ResourceChain:
    return _chain_of(*((kind, name) for kind in KINDS for name in NAMES))


@cache
def socketless() -> kms_v2.KmsV2:
    """A provider of kms v2 whose plugin is in the process."""
    return kms_v2.KmsV2(_Plugin(), cache_size=100, clock=_Time())  # type: ignore[arg-type]


def fuzz_one(data: bytes) -> str:
    """The first byte says where the others go."""
    if not data:
        return "empty"
    where, rest = data[0] % (len(PREFIXES) + 2), data[1:]
    if where == len(PREFIXES):
        return _file(rest)
    if where == len(PREFIXES) + 1:
        return _message(rest)
    stored = PREFIXES[where] + rest
    before = bytes(bytearray(stored))
    try:
        plaintext, _ = _chain().from_storage(stored, KEY)
    except EncryptionError as error:
        outcome = _told(error)
    else:
        outcome = "read"
        assert len(plaintext) <= len(stored)
    assert stored == before
    return outcome


def _told(error: EncryptionError) -> str:
    assert str(error).isprintable()
    return error.reason


def _file(data: bytes) -> str:
    found = problems(data)
    if not found:
        assert EncryptionConfiguration.load(data).entries
        return "loaded"
    assert all(problem.fault.isprintable() for problem in found)
    return "refused"


def _message(data: bytes) -> str:
    try:
        plaintext, _, key_id = socketless().decrypt(data, KEY)
    except EncryptionError as error:
        return _told(error)
    assert len(plaintext) < len(data)
    assert key_id
    return "read"


def corpus() -> list[bytes]:
    """Good inputs to start from."""
    seeds = [bytes([len(PREFIXES)]) + _file_of(("aesgcm", "a"), ("secretbox", "b"))]
    for index, prefix in enumerate(PREFIXES[: len(KINDS) * len(NAMES)]):
        kind, name = KINDS[index // len(NAMES)], NAMES[index % len(NAMES)]
        stored = _chain_of((kind, name)).to_storage(b"k8s\0 and more", KEY)
        seeds.append(bytes([index]) + stored.removeprefix(prefix))
    seeds.append(bytes([len(PREFIXES) + 1]) + socketless().encrypt(b"k8s\0 and more", KEY))
    return seeds
