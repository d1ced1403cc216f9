"""The vectors made by other implementations, read once and handed out one case at a time."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.cli.check_vectors import octets

__all__ = ["SHARED", "cases", "octets", "parameters", "same"]

_CHECKOUT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("ETCDMAINT_SHARED", _CHECKOUT.parent / "shared"))


@cache
def cases(name: str) -> list[dict[str, Any]]:
    """Every case of one file: the full set beside the checkout, or what is published with it."""
    folder = SHARED / "vectors"
    if not folder.is_dir():
        folder = _CHECKOUT / "vectors"
    return json.loads((folder / f"{name}.json").read_text())["cases"]


def parameters(name: str, **wanted: object) -> list[Any]:
    """The cases as pytest parameters that carry their own sentence as the id."""
    return [
        pytest.param(case, id=f"{case['kind']}: {case['name']}")
        for case in cases(name)
        if all(case.get(field) == value for field, value in wanted.items())
    ]


def same(value: bytes, described: str | dict[str, Any]) -> bool:
    """Whether these are the bytes described, also where only length and digest are given."""
    if isinstance(described, dict) and "sha256" in described:
        digest = hashlib.sha256(value).hexdigest()
        return (len(value), digest) == (described["length"], described["sha256"])
    return value == octets(described)
