"""What compression would save here: every value framed once, and counted by what it would have cost.

One value is compressed once and serves every `minSize`, since a value's frame does not depend on it:
values are counted in classes between the candidates. Needs an etcd and nothing of an API server. What
it finds tells how well stored objects compress, which is nobody's business about Secrets (R138): they
are left out unless somebody insists. This module must not know how etcd is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from etcdmaint.compression.capacity import Packer
from etcdmaint.compression.census import OTHERS, always
from etcdmaint.compression.contents import FRAMED, Decrypt, examine
from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES, encode
from etcdmaint.compression.resources import INTERNAL, Keyspace, named
from etcdmaint.etcd.entries import Entry

CANDIDATES: Final = (256, 512, 1024, 2048, 4096, 8192, 16384)
SECRETS: Final = "secrets"

_MOST_ROWS: Final = 5_000
# Sizes are told apart to one part in 32, which is 3 %.
_STEPS: Final = 5


class Sizes:
    """How large values are, in a memory that does not grow with their number."""

    __slots__ = ("_counts", "number")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.number = 0

    def add(self, size: int) -> None:
        """One more."""
        shift = max(size.bit_length() - _STEPS - 1, 0)
        bucket = (size >> shift) << shift
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.number += 1

    def quantile(self, share: float) -> int:
        """A size that this share of the values does not exceed, to 3 %; 0 without any."""
        wanted = share * self.number
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return bucket
        return 0


@dataclass(slots=True)
class Class:
    """Bare values between two candidates: their bytes as they are stored and as frames."""

    values: int = 0
    bare: int = 0
    framed: int = 0


@dataclass(slots=True)
class Row:
    """A resource. `classes[i]` holds values of at least `candidates[i - 1]`, below `candidates[i]`.

    `values` and `bytes` are of all plaintexts; `above`, those too large for a frame; `framed` are
    frames already; `unread` could not be looked into.
    """

    name: str
    classes: list[Class]
    sizes: Sizes = field(default_factory=Sizes)
    values: int = 0
    bytes: int = 0
    above: int = 0
    framed: int = 0
    unread: int = 0

    def at(self, index: int) -> Class:
        """All bare values that the candidate with this index would have framed."""
        return _sum(self.classes[index + 1 :])


def _sum(classes: Iterable[Class]) -> Class:
    total = Class()
    for each in classes:
        total.values += each.values
        total.bare += each.bare
        total.framed += each.framed
    return total


@dataclass(slots=True)
class Pages:
    """Of etcd's file, for one candidate: what enabling it would write, and all that is live then."""

    written: Packer = field(default_factory=Packer)
    then: Packer = field(default_factory=Packer)


class Estimator:
    """Takes entries and compresses what a policy for everything could select.

    `candidates` are sorted sizes in bytes. `live` is what all live revisions take of etcd's file,
    `pages[i]` what they would with the candidate of that index. Not safe for threads; one at a time may add.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        *,
        decrypt_for: Callable[[str, str], Decrypt | None] = always,
        candidates: Sequence[int] = CANDIDATES,
        include_secrets: bool = False,
    ) -> None:
        self.candidates = tuple(candidates)
        self.rows: dict[str, Row] = {}
        self.live = Packer()
        self.pages = [Pages() for _ in self.candidates]
        self.secrets_left_out = 0
        self._keyspace = keyspace
        self._decrypt_for = decrypt_for
        self._include_secrets = include_secrets
        self._prefix: bytes | tuple[()] = ()
        self._row: Row | None = None
        self._is_secret = False
        self._decrypt: Decrypt | None = None

    def add(self, entries: Iterable[Entry]) -> None:
        """Compress these. Raises KmsUnavailable."""
        for key, value, *_ in entries:
            if not key.startswith(self._prefix):
                self._enter(key)
            stored = None
            if self._row is not None:
                stored = self._weigh(self._row, key, value)
            elif self._is_secret:
                self.secrets_left_out += 1
            self._pack(len(key), len(value), stored)

    def _pack(self, key: int, bare: int, framed: tuple[int, int] | None) -> None:
        """`framed`: from how many candidates on it is one, and how large it is then."""
        self.live.add(key + bare)
        chosen, size = framed or (0, 0)
        for index, pages in enumerate(self.pages):
            if index < chosen:
                pages.written.add(key + size)
                pages.then.add(key + size)
            else:
                pages.then.add(key + bare)

    def _weigh(self, row: Row, key: bytes, value: bytes) -> tuple[int, int] | None:
        form, plaintext, _ = examine(value, key, self._decrypt)
        if plaintext is None:
            row.unread += 1
            return None
        size = len(plaintext)
        row.values += 1
        row.bytes += size
        row.sizes.add(size)
        if form.content in FRAMED:
            row.framed += 1
        elif size > MAX_PLAINTEXT_BYTES:
            row.above += 1
        elif size >= self.candidates[0]:
            # Encryption adds the same to either.
            stored = len(encode(plaintext)) + len(value) - size
            chosen = bisect_right(self.candidates, size)
            found = row.classes[chosen]
            found.values += 1
            found.bare += len(value)
            found.framed += stored
            return chosen, stored
        return None

    def _enter(self, key: bytes) -> None:
        found = self._keyspace.resource(key)
        self._row, self._prefix, self._is_secret = None, (), False
        if found is None or found in INTERNAL:
            return
        group, resource = found
        self._prefix = self._keyspace.prefix(group, resource)
        self._is_secret = found == ("", SECRETS)
        if self._is_secret and not self._include_secrets:
            return
        name = named(group, resource)
        if name not in self.rows and len(self.rows) >= _MOST_ROWS:
            name = OTHERS
        classes = [Class() for _ in range(len(self.candidates) + 1)]
        self._row = self.rows.setdefault(name, Row(name, classes))
        self._decrypt = self._decrypt_for(group, resource)

    def chosen(self, index: int) -> Class:
        """What the candidate with this index would frame, over all resources."""
        return _sum(row.at(index) for row in self.rows.values())
