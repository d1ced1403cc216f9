"""Writes the StorageCompressionConfiguration file, the same bytes for the same entries for ever.

The bytes are hashed, and every API server in front of one etcd has to load the same (R127), so nothing
here depends on a library's taste. What was left out is not written: a release may have another default,
and a strict loader refuses a field that it does not know. Sizes are whole numbers, which every form that
the field could take accepts. Whether the file is any good is judged by whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from etcdmaint.compression.policy_file import API_VERSION, KIND
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import parse_quantity


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as its author wrote it; None for what was left out."""

    resources: tuple[str, ...]
    algorithm: str
    min_size: int | str | None = None
    rewrite: str | None = None


def render(entries: Iterable[Entry]) -> bytes:
    """The file with these entries in this order; rubbish is written too, for the reader to refuse."""
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}"]
    body = [line for entry in entries for line in _entry(entry)]
    lines += ["resources:", *body] if body else ["resources: []"]
    return ("\n".join(lines) + "\n").encode("ascii")


def _entry(entry: Entry) -> list[str]:
    lines = ["- resources:", *(f"  - {json.dumps(name)}" for name in entry.resources)]
    lines.append(f"  algorithm: {json.dumps(entry.algorithm)}")
    if entry.min_size is not None:
        lines.append(f"  minSize: {_size(entry.min_size)}")
    if entry.rewrite is not None:
        lines.append(f"  rewrite: {json.dumps(entry.rewrite)}")
    return lines


def _size(written: int | str) -> str:
    try:
        size = parse_quantity(written)
    except InvalidInput:
        return json.dumps(written)
    return str(int(size)) if size == int(size) else json.dumps(written)
