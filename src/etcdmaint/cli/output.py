"""How results are written: a table for people, JSON or YAML for programs.

A table is as wide as its content, as kubectl's are: a terminal may wrap it, but no figure is ever
cut. What came from outside is stripped of control characters. Nothing large is imported for a table,
since `status` is to answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from etcdmaint.cli.exits import one_line

TABLE = "table"
JSON = "json"
YAML = "yaml"
CSV = "csv"

_GAP = "   "


def print_document(document: Any, style: str) -> None:
    """Write a document as JSON or YAML to standard output."""
    # What is not ASCII is escaped: a control character of 8 bits steers a terminal as well.
    if style == YAML:
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=False, width=100)
        return
    json.dump(document, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[str] = frozenset()
) -> None:
    """Write a table to standard output; the columns in `numbers` are aligned to the right."""
    cells = [list(columns), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        aligned = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        line = _GAP.join(aligned).rstrip()
        print(f"\x1b[1m{line}\x1b[0m" if number == 0 and _is_vivid() else line)


def _is_vivid() -> bool:
    """Whether standard output is a terminal that may be sent more than plain text."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def print_bytes(value: bytes) -> None:
    """Write them to standard output as they are."""
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    """Write one sentence to standard output, at once: whoever reads a pipe may wait for each."""
    print(one_line(text), flush=True)


def print_note(text: str) -> None:
    """Write one sentence to standard error, which leaves standard output to the result.

    Where nobody can hear it, the command goes on, and ends with the code that it would have had.
    """
    with contextlib.suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)
