"""How a scan's result is written: as tables for people, as JSON or CSV for programs.

What comes from etcd is escaped, never obeyed by a terminal. Imported when there is a result.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etcdmaint.cli import output
from etcdmaint.cli.exits import one_line
from etcdmaint.cli.scanning import kms_notes
from etcdmaint.cli.storage_codes import code_of
from etcdmaint.compression.audit import Audit
from etcdmaint.compression.census import Census, Record, Row, Tally
from etcdmaint.compression.contents import Form
from etcdmaint.compression.history import History
from etcdmaint.compression.resources import shown
from etcdmaint.etcd.types import Member
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.cli.scanning import Asked

# Of a key that is of no resource, when keys are cut.
_SHOWN = 16
_NUMBERS = frozenset(
    {"VALUES", "BYTES", "SHARE", "STALE", "SIZE", "REVISION", "LEASE", "WRITES"}
    | {"OLD REVISIONS", "OLD BYTES"}
)


@dataclass(frozen=True, slots=True)
class Report:
    """The result, as a table, JSON or CSV."""

    asked: Asked
    state: Audit
    member: Member | None
    history: History | None
    kms_calls: Counter[str] | None
    redact: bool
    judged: bool

    @property
    def _census(self) -> Census:
        return self.state.census

    @property
    def code(self) -> int:
        """The exit code."""
        return code_of(self._census, with_keys=self.asked.encryption_config is not None)

    def write(self, style: str, cluster_id: str) -> None:
        """Write it to standard output, and what ought not to be overlooked to standard error."""
        if style == output.JSON:
            output.print_document(self._document(cluster_id), style)
        elif style == output.CSV:
            self._csv()
        else:
            self._tables()
        for note in self._notes():
            output.print_note(f"etcdmaint: {note}")

    def _name(self, row: Row) -> str:
        """A row; one of keys without a slash may be a whole key."""
        cut = self.redact and not row.located and not row.name.endswith("/")
        return row.name[:_SHOWN] + "…" if cut and len(row.name) > _SHOWN else row.name

    def _key(self, key: bytes) -> str:
        at = self.asked.keyspace.locate(key) if self.redact else None
        if at is None:
            cut = self.redact and len(key) > _SHOWN
            return shown(key[:_SHOWN]) + "…" if cut else shown(key)
        begin = self.asked.keyspace.prefix(at.group, at.resource)
        namespace = at.namespace.encode("utf-8", "surrogateescape")
        return shown(begin + (namespace + b"/" if namespace else b"")) + "…"

    # As a table

    def _tables(self) -> None:
        whole = max(self._census.total.bytes, 1)
        rows = []
        for row in self._census:
            tallies = sorted(row.forms.items(), key=lambda each: (-each[1].bytes, str(each[0])))
            for number, (form, tally) in enumerate(tallies):
                stale = f"{row.stale.values}{'?' if row.undecided else ''}"
                name, stale = ("", "") if number else (self._name(row), stale)
                share = f"{100 * tally.bytes / whole:.1f}%"
                size = format_bytes(tally.bytes)
                rows.append([name, str(form), str(tally.values), size, share, stale])
        total = self._census.total
        stale = str(sum(row.stale.values for row in self._census.rows.values()))
        rows.append(["all", "", str(total.values), format_bytes(total.bytes), "", stale])
        columns = ["RESOURCE", "FORM", "VALUES", "BYTES", "SHARE", "STALE"]
        shown_columns = len(columns) - (not self.judged)
        rows = [row[:shown_columns] for row in rows]
        output.print_table(columns[:shown_columns], rows, numbers=_NUMBERS)
        print()
        output.print_line(self._where())
        if self._census.damaged:
            print()
            number = sum(row.damaged for row in self._census.rows.values())
            output.print_line(f"Damaged values: {number}. The first of them:")
            self._records(self._census.damaged, "WHAT", lambda record: str(record.form))
        if self._census.largest:
            print()
            output.print_line("The largest values:")
            self._records(self._census.largest, "FORM", lambda record: str(record.form))
            print()
            output.print_line("The keys that were written most often since they were created:")
            self._records(self._census.busiest, "WRITES", lambda record: str(record.version))
        if self.history is not None:
            print()
            self._old_revisions(self.history)

    def _records(self, records: list[Record], last: str, what: Callable[[Record], str]) -> None:
        rows = [
            [
                self._key(record.key),
                format_bytes(record.size),
                str(record.mod_revision),
                f"{record.lease:x}" if record.lease else "-",
                what(record),
            ]
            for record in records
        ]
        output.print_table(["KEY", "SIZE", "REVISION", "LEASE", last], rows, numbers=_NUMBERS)

    def _old_revisions(self, history: History) -> None:
        rows = [
            [name, str(held.values), format_bytes(held.bytes)] for name, held in history.sorted()
        ]
        total = history.total
        rows.append(["all", str(total.values), format_bytes(total.bytes)])
        output.print_table(["RESOURCE", "OLD REVISIONS", "OLD BYTES"], rows, numbers=_NUMBERS)
        output.print_line(history.sentence())
        if history.busiest:
            print()
            output.print_line("The keys with the most old revisions:")
            rows = [
                [self._key(key), str(number), format_bytes(size)]
                for number, key, size in history.busiest
            ]
            output.print_table(["KEY", "OLD REVISIONS", "OLD BYTES"], rows, numbers=_NUMBERS)

    def _where(self) -> str:
        progress = self.state.progress
        read = f"Read {progress.keys} keys from member {self.member} at revision"
        if progress.consistent:
            return f"{read} {progress.revisions[0]}."
        return (
            f"{read}s {progress.revisions[0]} to {progress.revisions[-1]}, since the first was "
            "compacted away: this is not one moment, and values written meanwhile may be missing."
        )

    # For programs

    def _csv(self) -> None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["resource", "content", "provider", "key_name", "values", "bytes"])
        for row in self._census:
            for form, tally in sorted(row.forms.items()):
                names = [_cell(text) for text in (self._name(row), *form)]
                writer.writerow([*names, tally.values, tally.bytes])

    def _document(self, cluster_id: str) -> dict[str, Any]:
        progress = self.state.progress
        document: dict[str, Any] = {
            "clusterID": cluster_id,
            "member": str(self.member),
            "revisions": progress.revisions,
            "consistent": progress.consistent,
            **_counted(self._census.total),
            "resources": [
                {
                    "resource": self._name(row),
                    "known": row.located,
                    **_counted(row.total),
                    "keyBytes": row.key_bytes,
                    "damaged": row.damaged,
                    **self._judgement(row),
                    "forms": [
                        _formed(form) | _counted(tally) for form, tally in sorted(row.forms.items())
                    ],
                }
                for row in self._census
            ],
            "damaged": list(map(self._record, self._census.damaged)),
        }
        if self._census.largest:
            document["largest"] = list(map(self._record, self._census.largest))
            document["mostWritten"] = list(map(self._record, self._census.busiest))
        if self.kms_calls is not None:
            document["kmsCalls"] = dict(self.kms_calls)
        if self.history is not None:
            document["history"] = self.history.document(self._key)
        return document

    def _judgement(self, row: Row) -> dict[str, Any]:
        if not self.judged:
            return {}
        return {"stale": _counted(row.stale), "undecided": row.undecided}

    def _record(self, record: Record) -> dict[str, Any]:
        return {
            "key": self._key(record.key),
            "size": record.size,
            "version": record.version,
            "modRevision": record.mod_revision,
            "lease": f"{record.lease:016x}" if record.lease else "",
            **_formed(record.form),
        }

    def _notes(self) -> list[str]:
        notes = []
        if self._census.total.values == 0:
            notes.append("NOTHING WAS FOUND: 0 values, no key begins so; is the prefix right?")
        elif not any(row.located for row in self._census.rows.values()):
            root = self.asked.keyspace.root.decode("utf-8", "replace")
            notes.append(f"no object of Kubernetes was found below {root}; see --storage-prefix")
        if not self.state.consistent:
            notes.append("the counts are not of one revision")
        return notes + kms_notes(self.kms_calls)


def _counted(tally: Tally) -> dict[str, Any]:
    return {"values": tally.values, "bytes": tally.bytes}


def _formed(form: Form) -> dict[str, Any]:
    return {
        "content": str(form.content),
        "provider": form.provider,
        "keyName": form.key_name,
    }


def _cell(text: str) -> str:
    """For a spreadsheet, which takes what begins so for a formula."""
    text = one_line(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
