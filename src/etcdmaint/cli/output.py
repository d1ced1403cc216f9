"""How results are written: a table for people, JSON or YAML for programs.

A table is as wide as its content: somebody's terminal may wrap it, but no figure is ever cut. What
came from outside is stripped of control characters. rich and yaml are imported only when used.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from etcdmaint.cli.exits import one_line

TABLE = "table"
JSON = "json"
YAML = "yaml"


def print_document(document: Any, style: str) -> None:
    """Write a document as JSON or YAML to standard output."""
    if style == YAML:
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True, width=100)
        return
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: frozenset[str] = frozenset()
) -> None:
    """Write a table to standard output; the columns in `numbers` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        justify: Any = "right" if column in numbers else "left"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    console.width = max(console.width, console.measure(table).maximum)
    console.print(table, crop=False)


def print_line(text: str) -> None:
    """Write one sentence to standard output."""
    print(one_line(text))


def print_note(text: str) -> None:
    """Write one sentence to standard error, which leaves standard output to the result."""
    print(one_line(text), file=sys.stderr, flush=True)
