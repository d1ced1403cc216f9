"""The table of bad input knows every field: one that is added to a spec must bring its own lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from etcdmaint.api import names

from .cases import CONNECTION_CASES, DEFRAG_CASES, Case

CRDS = Path(__file__).parents[3] / "crds"
# Wrong types, empty, and whatever else its kind of field can be wrong in.
LEAST = 7


def fields(schema: dict[str, Any], path: str = "spec") -> Iterator[str]:
    yield path
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[1]")


@pytest.mark.parametrize(
    ("crd", "cases"),
    [(names.DEFRAG_CRD, DEFRAG_CASES), (names.CONNECTION_CRD, CONNECTION_CASES)],
    ids=["EtcdDefrag", "EtcdConnection"],
)
def test_every_field_of_a_spec_has_its_lines_in_the_table(
    crd: str, cases: tuple[Case, ...]
) -> None:
    """Issue 3, section 8."""
    (version,) = yaml.safe_load((CRDS / f"{crd}.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    refused = [case.field for case in cases if case.field is not None]
    few = {path: refused.count(path) for path in fields(spec) if refused.count(path) < LEAST}
    assert few == {}
