"""The file that `kube-apiserver --encryption-provider-config` reads, by the same rules.

Either a whole `EncryptionConfiguration` or every fault of the file at once, each with its path and
line. Key bytes live in `Key.secret` and in no message, repr or traceback. This module must not know
how anything is encrypted: no cryptography is loaded to validate a file.

Rules: apiserver's `encryptionconfig` and `apis/apiserver/validation`, as of Kubernetes 1.37.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from etcdmaint.compression.document import MAX_BYTES, Field, Problem, Problems, parse
from etcdmaint.compression.encryption import selectors
from etcdmaint.compression.encryption.selectors import Selector
from etcdmaint.errors import InvalidInput
from etcdmaint.files import read_whole
from etcdmaint.quantities import parse_duration

# `v1` and `EncryptionConfig` are the names from before Kubernetes 1.13.
_KINDS = {
    ("apiserver.config.k8s.io/v1", "EncryptionConfiguration"),
    ("v1", "EncryptionConfig"),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HALF_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DEFAULT_TIMEOUT = 3.0
_DEFAULT_CACHE_SIZE = 1000


class Kind(StrEnum):
    """The providers, by the names that they have in the file and in a stored value's prefix."""

    AESGCM = "aesgcm"
    AESCBC = "aescbc"
    SECRETBOX = "secretbox"
    IDENTITY = "identity"
    KMS = "kms"


KEY_SIZES = {Kind.AESGCM: (16, 24, 32), Kind.AESCBC: (16, 24, 32), Kind.SECRETBOX: (32,)}


@dataclass(frozen=True, slots=True)
class Key:
    """A named key; its bytes are in no repr."""

    name: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Values as they are."""

    kind = Kind.IDENTITY


@dataclass(frozen=True, slots=True)
class Keyed:
    """aesgcm, aescbc or secretbox: the first key writes, all of them read."""

    kind: Kind
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Kms:
    """A plugin behind a unix socket. `socket` begins with `@` where it is an abstract one.

    `timeout` is seconds for one call; `cache_size` counts data keys (negative: none is kept).
    """

    version: int
    name: str
    socket: str
    timeout: float
    cache_size: int

    kind = Kind.KMS


Provider = Identity | Keyed | Kms


@dataclass(frozen=True, slots=True)
class Entry:
    """Some resources and their providers: the first one writes, all of them read."""

    selectors: tuple[Selector, ...]
    providers: tuple[Provider, ...]


@dataclass(frozen=True, slots=True)
class EncryptionConfiguration:
    """A file without faults.

    `hash` is kube-apiserver's own (`sha256:` and the digest of the file's bytes); `warnings` is
    what the file may say but should not, for the log and for `storage validate`.
    """

    entries: tuple[Entry, ...]
    hash: str
    warnings: tuple[Problem, ...] = ()

    @classmethod
    def load(cls, data: bytes) -> EncryptionConfiguration:
        """The file's meaning. Raises InvalidInput, which tells every fault with path and line."""
        loaded = _load(data)
        if isinstance(loaded, EncryptionConfiguration):
            return loaded
        if len(loaded) == 1 and loaded[0].line:
            raise InvalidInput(loaded[0].field, f"{loaded[0].fault} (line {loaded[0].line})")
        told = "".join(f"\n  {problem}" for problem in loaded)
        raise InvalidInput("", f"the encryption configuration has faults:{told}")

    @classmethod
    def read(cls, path: Path) -> EncryptionConfiguration:
        """As `load`. Raises InvalidInput also where the file cannot be read."""
        return cls.load(read_whole(path, field=str(path), most=MAX_BYTES))


def problems(data: bytes) -> tuple[Problem, ...]:
    """Every fault of the file, in its order; nothing for a good one. Never raises."""
    loaded = _load(data)
    return () if isinstance(loaded, EncryptionConfiguration) else loaded


def _load(data: bytes) -> EncryptionConfiguration | tuple[Problem, ...]:
    root = parse(data)
    if isinstance(root, Problem):
        return (root,)
    found, warnings = Problems(), Problems()
    fields = root.mapping(("apiVersion", "kind", "resources"), found)
    declared = fields["apiVersion"].text(found), fields["kind"].text(found)
    if declared not in _KINDS:
        at = fields["kind" if declared[0] in dict(_KINDS) else "apiVersion"]
        found.add(at, "must be EncryptionConfiguration of apiserver.config.k8s.io/v1")
    items = fields["resources"].items(found)
    if not items:
        found.add(fields["resources"], "at least one entry is required")
    earlier = _Earlier({}, {})
    entries = [_entry(item, earlier, found, warnings) for item in items]
    if faults := found.all():
        return faults
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return EncryptionConfiguration(tuple(entries), digest, warnings.all())


@dataclass(frozen=True, slots=True)
class _Earlier:
    """What the entries above have claimed."""

    wildcards: dict[Selector, Field]
    kms: dict[str, Field]

    def masks(self, selector: Selector) -> str:
        """The fault of a selector that an earlier wildcard leaves nothing to select, or ""."""
        for wider in (Selector(selector.group, "*"), Selector("*", "*")):
            if at := self.wildcards.get(wider):
                return f"is masked by {at.path} (line {at.line})"
        return ""


def _entry(at: Field, earlier: _Earlier, found: Problems, warnings: Problems) -> Entry:
    fields = at.mapping(("resources", "providers"), found)
    places = fields["resources"].items(found)
    texts = [place.text(found) for place in places]
    chosen = tuple(map(Selector.parse, texts))
    wildcards = {}
    for place, text, selector in zip(places, texts, chosen, strict=True):
        if fault := selectors.fault_of(text) or earlier.masks(selector):
            found.add(place, fault)
        elif selector.resource == "*":
            wildcards[selector] = place
    earlier.wildcards.update(wildcards)
    for fault in selectors.faults_of_list(chosen):
        found.add(fields["resources"], fault)
    items = fields["providers"].items(found)
    providers = tuple(_provider(item, earlier.kms, found, warnings) for item in items)
    for name, given in (("resources", texts), ("providers", providers)):
        if not given:
            found.add(fields[name], "at least one is required")
    if providers:
        _warn(items[0], providers[0], warnings)
    return Entry(chosen, providers)


def _provider(at: Field, names: dict[str, Field], found: Problems, warnings: Problems) -> Provider:
    # A provider with a fault becomes identity here: nobody sees it, the file is refused.
    fields = at.mapping(tuple(Kind), found)
    given = [kind for kind in Kind if not fields[kind].absent]
    if len(given) != 1:
        fault = "has more than one provider: one list element each" if given else "has no provider"
        found.add(at, f"{fault} ({', '.join(Kind)})")
        return Identity()
    kind = given[0]
    if kind is Kind.KMS:
        return _kms(fields[kind], names, found, warnings)
    if kind is Kind.IDENTITY:
        fields[kind].mapping((), found)
        return Identity()
    keys = fields[kind].mapping(("keys",), found)["keys"]
    items = keys.items(found)
    if not items:
        found.add(keys, "at least one key is required")
    return Keyed(kind, tuple(_key(item, KEY_SIZES[kind], found) for item in items))


def _key(at: Field, sizes: tuple[int, ...], found: Problems) -> Key:
    fields = at.mapping(("name", "secret"), found)
    name = fields["name"].text(found, missing="a key must have a name")
    encoded = fields["secret"].text(found, missing="a key must have a secret")
    if not encoded:
        return Key(name, b"")
    secret = _base64(encoded)
    if secret is None:
        found.add(fields["secret"], "must be base64, with its padding")
    elif len(secret) not in sizes:
        expected = " or ".join(map(str, sizes))
        found.add(fields["secret"], f"must be {expected} bytes long, not {len(secret)}")
    return Key(name, secret or b"")


def _base64(text: str) -> bytes | None:
    # Go ignores line breaks inside, and takes neither too much padding nor what follows it.
    text = text.replace("\n", "").replace("\r", "")
    digits = text.rstrip("=")
    if len(text) - len(digits) != -len(digits) % 4:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _kms(at: Field, names: dict[str, Field], found: Problems, warnings: Problems) -> Kms:
    fields = at.mapping(("apiVersion", "name", "endpoint", "timeout", "cachesize"), found)
    version = {"": 1, "v1": 1, "v2": 2}.get(fields["apiVersion"].text(found), 0)
    if not version:
        found.add(fields["apiVersion"], "must be v1 or v2")
    name = fields["name"].text(found, missing="a provider must have a name")
    if name and version != 1:
        if ":" in name:
            found.add(fields["name"], "must not contain a colon")
        if name in names:
            found.add(fields["name"], f"is also the name of {names[name].path}")
        names.setdefault(name, at)
    size = fields["cachesize"].integer(found)
    if size is not None and version == 2:
        found.add(fields["cachesize"], "is not supported in v2")
    elif size == 0:
        found.add(fields["cachesize"], "must be positive, or negative to keep nothing")
    cache_size = _DEFAULT_CACHE_SIZE if size is None else size
    socket = _socket(fields["endpoint"], found, warnings)
    timeout = _timeout(fields["timeout"], found)
    return Kms(version, name, socket, timeout, cache_size)


def _timeout(at: Field, found: Problems) -> float:
    if at.absent:
        return _DEFAULT_TIMEOUT
    text = at.text(found)
    try:
        seconds = parse_duration(text)
    except InvalidInput:
        seconds = None
    if seconds is None:
        found.add(at, "must be a duration such as 3s")
    elif seconds <= 0:
        found.add(at, "must be positive")
    return seconds or _DEFAULT_TIMEOUT


def _socket(at: Field, found: Problems, warnings: Problems) -> str:
    text = at.text(found, missing="a provider must have an endpoint")
    try:
        url = urlsplit(text)
    except ValueError:
        url = urlsplit("")
    path = unquote(url.path)
    # Go takes nothing of this for a URL, where Python leaves it out or as it is.
    broken = _CONTROL.search(text) or _HALF_ESCAPE.search(url.path)
    if text and (
        url.scheme != "unix"
        or path in ("/", "/@")
        or not path.startswith("/")
        or "\0" in path
        or broken
    ):
        found.add(at, "must be a unix socket (unix:///…)")
    elif url.netloc:
        warnings.add(at, "names a host, which is left out of the path: write unix:/// and the path")
    return path[1:] if path.startswith("/@") else path


def _warn(at: Field, writer: Provider, warnings: Problems) -> None:
    if isinstance(writer, Keyed) and writer.kind is Kind.AESGCM:
        warnings.add(at, "aesgcm writes: its key must be rotated every 200,000 writes")
    if isinstance(writer, Keyed) and writer.kind is Kind.AESCBC:
        warnings.add(at, "aescbc writes: it does not notice damaged values")
    if isinstance(writer, Kms) and writer.version == 1:
        warnings.add(at, "kms v1 writes: it is off by default since Kubernetes 1.29; use v2")
