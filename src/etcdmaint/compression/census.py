"""Counting what is stored: values and bytes by resource and form, and what deserves a look.

Fed with entries in any order, it takes memory for each resource and not for each value, whatever the
keys and the values are. It can be written down and read back, so that an audit goes on where it was
interrupted. This module must not know where entries come from.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from etcdmaint.compression.contents import DAMAGED, FRAMED, Content, Decrypt, Form, examine
from etcdmaint.compression.resources import INTERNAL, Keyspace, named, shown
from etcdmaint.compression.rule import UNSELECTED, Rule
from etcdmaint.etcd.entries import Entry

# More than any cluster has; hostile keys and values could make up any number.
_MOST_ROWS: Final = 5_000
_MOST_FORMS: Final = 200
OTHERS: Final = "(others)"
"""The row of what is beyond the bound."""


class Record(NamedTuple):
    """One value of those that deserve a look; without its bytes."""

    key: bytes
    size: int
    version: int
    mod_revision: int
    lease: int
    form: Form


@dataclass(slots=True)
class Tally:
    """How many values, and their bytes as stored (without the keys)."""

    values: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """One more."""
        self.values += 1
        self.bytes += size

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Tally:
        """Of all these."""
        total = cls()
        for each in tallies:
            total.values += each.values
            total.bytes += each.bytes
        return total


@dataclass(slots=True)
class Row:
    """One resource (`deployments.apps`), or the beginning of keys that belong to none that is known.

    `stale`: what the policy, or the encryption configuration, would have written otherwise; of
    `undecided` values that cannot be told, since they were not decrypted or are damaged.
    """

    name: str
    located: bool
    forms: dict[Form, Tally] = field(default_factory=dict)
    key_bytes: int = 0
    stale: Tally = field(default_factory=Tally)
    undecided: int = 0

    @property
    def total(self) -> Tally:
        """Of all forms."""
        return Tally.sum(self.forms.values())

    def of(self, *contents: Content) -> Tally:
        """Of these contents, whatever they are encrypted with."""
        return Tally.sum(each for form, each in self.forms.items() if form.content in contents)

    @property
    def damaged(self) -> int:
        """Values that cannot be read. No object is opaque or empty: under an object's key it is damage."""
        more = (Content.OPAQUE, Content.EMPTY) if self.located else ()
        return self.of(*DAMAGED, *more).values

    def add(self, form: Form, size: int) -> None:
        """Count one value."""
        tally = self.forms.get(form)
        if tally is None:
            if len(self.forms) >= _MOST_FORMS:
                form = Form(form.content)
            tally = self.forms.setdefault(form, Tally())
        tally.add(size)


def always(_group: str, _resource: str) -> None:
    """For a census without a policy, or without keys."""


class Census:
    """The count. `rule_for` and `decrypt_for` take a group and a resource; None is none.

    `keep` is how many damaged values are remembered, `top` how many of the largest and of those with
    the most revisions. Not safe for threads; one thread at a time may add.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        *,
        rule_for: Callable[[str, str], Rule | None] = always,
        decrypt_for: Callable[[str, str], Decrypt | None] = always,
        keep: int = 20,
        top: int = 0,
    ) -> None:
        self.keyspace = keyspace
        self.rows: dict[str, Row] = {}
        self.damaged: list[Record] = []
        self._rule_for = rule_for
        self._decrypt_for = decrypt_for
        self._keep = keep
        self._top = top
        self._largest: list[tuple[int, Record]] = []
        self._busiest: list[tuple[int, Record]] = []
        # No key begins with one of none.
        self._prefix: bytes | tuple[()] = ()
        self._row = Row("", False)
        self._rule: Rule | None = None
        self._decrypt: Decrypt | None = None

    @property
    def total(self) -> Tally:
        """Over all rows."""
        return Tally.sum(row.total for row in self.rows.values())

    @property
    def largest(self) -> list[Record]:
        """The largest values, the largest first."""
        return [record for _, record in sorted(self._largest, reverse=True)]

    @property
    def busiest(self) -> list[Record]:
        """The keys that were written most often since they were created, the busiest first."""
        return [record for _, record in sorted(self._busiest, reverse=True)]

    def add(self, entries: Iterable[Entry]) -> None:
        """Count these. Raises KmsUnavailable; what came before is then counted."""
        top = self._top
        for key, value, version, _, mod_revision, lease in entries:
            # Keys come sorted, so most belong where the one before did.
            if not key.startswith(self._prefix):
                self._enter(key)
            row, rule = self._row, self._rule
            size = len(value)
            form, plaintext, stale = examine(value, key, self._decrypt)
            tally = row.forms.get(form)
            if tally is None:
                row.add(form, size)
            else:
                tally.values += 1
                tally.bytes += size
            row.key_bytes += len(key)
            if rule is not None or stale:
                self._judge(form, plaintext, size, stale)
            content = form.content
            if (content in DAMAGED or (row.located and content in _NO_OBJECT)) and len(
                self.damaged
            ) < self._keep:
                self.damaged.append(Record(key, size, version, mod_revision, lease, form))
            if top:
                record = Record(key, size, version, mod_revision, lease, form)
                _push(self._largest, top, size, record)
                _push(self._busiest, top, version, record)

    def _judge(self, form: Form, plaintext: bytes | None, size: int, stale: bool) -> None:
        row, rule = self._row, self._rule
        if plaintext is None:
            row.undecided += 1
        elif stale or (rule is not None and rule.stale(form.content in FRAMED, plaintext)):
            row.stale.add(size)

    def _enter(self, key: bytes) -> None:
        """Go to the row of a key."""
        found = self.keyspace.resource(key)
        if found is None:
            name, located = _beginning(key, self.keyspace.root), False
            self._prefix = ()
            self._rule, self._decrypt = None, None
        else:
            group, resource = found
            name, located = named(group, resource), True
            self._prefix = self.keyspace.prefix(group, resource)
            self._rule = self._rule_for(group, resource)
            if found in INTERNAL and self._rule is not None:
                # What the API server keeps for itself passes by its policy.
                self._rule = UNSELECTED
            self._decrypt = self._decrypt_for(group, resource)
        row = self.rows.get(name)
        if row is None:
            if len(self.rows) >= _MOST_ROWS:
                name, located = OTHERS, False
            row = self.rows.setdefault(name, Row(name, located))
        self._row = row

    def dump(self) -> dict[str, Any]:
        """Everything counted so far, for `restore`."""
        return {
            "rows": [
                [
                    row.name,
                    row.located,
                    row.key_bytes,
                    [row.stale.values, row.stale.bytes],
                    row.undecided,
                    [[*form, each.values, each.bytes] for form, each in row.forms.items()],
                ]
                for row in self.rows.values()
            ],
            "damaged": list(map(_dump_record, self.damaged)),
            "largest": list(map(_dump_record, self.largest)),
            "busiest": list(map(_dump_record, self.busiest)),
        }

    def restore(self, told: dict[str, Any]) -> None:
        """Go on from what `dump` gave. Raises ValueError, KeyError or TypeError for anything else."""
        for name, located, key_bytes, stale, undecided, forms in told["rows"]:
            judged = Tally(*map(int, stale))
            row = Row(str(name), bool(located), {}, int(key_bytes), judged, int(undecided))
            for content, provider, key_name, values, size in forms:
                form = Form(Content(content), str(provider), str(key_name))
                row.forms[form] = Tally(int(values), int(size))
            self.rows[row.name] = row
        self.damaged = list(map(_restore_record, told["damaged"]))
        self._largest = [(each.size, each) for each in map(_restore_record, told["largest"])]
        self._busiest = [(each.version, each) for each in map(_restore_record, told["busiest"])]
        heapq.heapify(self._largest)
        heapq.heapify(self._busiest)

    def __iter__(self) -> Iterator[Row]:
        """The rows, the one with the most bytes first."""
        return iter(sorted(self.rows.values(), key=lambda row: (-row.total.bytes, row.name)))


_NO_OBJECT: Final = frozenset({Content.OPAQUE, Content.EMPTY})


def _push(heap: list[tuple[int, Record]], most: int, weight: int, record: Record) -> None:
    if len(heap) < most:
        heapq.heappush(heap, (weight, record))
    elif weight > heap[0][0]:
        heapq.heapreplace(heap, (weight, record))


def _beginning(key: bytes, root: bytes) -> str:
    """What keys of no known resource are counted under: their first part, below the root if there."""
    inside = key.startswith(root)
    rest = key[len(root) :] if inside else key.lstrip(b"/")
    first, slash, _ = rest[:64].partition(b"/")
    lead = root if inside else key[: len(key) - len(key.lstrip(b"/"))][:1]
    return shown(lead + first + slash) or "(empty)"


def _dump_record(record: Record) -> list[Any]:
    return [record.key.hex(), *record[1:5], *record.form]


def _restore_record(told: list[Any]) -> Record:
    key, size, version, mod_revision, lease, content, provider, key_name = told
    form = Form(Content(content), str(provider), str(key_name))
    return Record(bytes.fromhex(key), int(size), int(version), int(mod_revision), int(lease), form)
