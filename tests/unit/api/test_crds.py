"""The CRDs as files: what they must have, and that the models know the same fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from etcdmaint.api import names
from etcdmaint.api.compression import StorageCompressionSpec, StorageCompressionStatus
from etcdmaint.api.connection import EtcdConnectionSpec, EtcdConnectionStatus
from etcdmaint.api.defrag import EtcdDefragSpec, EtcdDefragStatus
from etcdmaint.api.schema import wire_name
from etcdmaint.api.vocabulary import ClusterKind, LeaderTransfer, Outcome, Phase, Role
from etcdmaint.defrag.rule import Rule
from tests.unit.api.test_specs import REF, spec_of

ROOT = Path(__file__).parents[3]
CRDS = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))
}


def schema(crd: str) -> dict[str, Any]:
    """The one schema of a CRD."""
    (version,) = CRDS[crd]["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def fields(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema, with its path."""
    for name, child in node.get("properties", {}).items():
        yield f"{path}{name}", child
        yield from fields(child, f"{path}{name}.")
    if "items" in node:
        yield from fields(node["items"], f"{path[:-1]}[].")


def model_fields(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The same of a model."""
    for name, field in model.model_fields.items():
        here = f"{path}{wire_name(name)}"
        yield here
        inner, many = _model_in(field.annotation)
        if inner is not None:
            yield from model_fields(inner, f"{here}[]." if many else f"{here}.")


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        found, many = _model_in(argument)
        if found is not None:
            return found, many or getattr(annotation, "__origin__", None) is tuple
    return None, False


@pytest.mark.parametrize("crd", CRDS)
def test_every_field_is_explained(crd: str) -> None:
    missing = [
        path
        for path, node in fields(schema(crd))
        if path != "metadata" and not node.get("description", "").endswith(".")
    ]
    assert missing == []


@pytest.mark.parametrize("crd", CRDS)
def test_what_a_person_writes_is_bounded_so_that_the_rules_cost_little(crd: str) -> None:
    spec = schema(crd)["properties"]["spec"]
    unbounded = [
        path
        for path, node in fields(spec, "spec.")
        if (node.get("type") == "string" and "maxLength" not in node and "enum" not in node)
        or (node.get("x-kubernetes-int-or-string") and "maxLength" not in node)
        or (node.get("type") == "array" and "maxItems" not in node)
        or (node.get("type") == "integer" and not {"minimum", "maximum"} <= node.keys())
    ]
    assert unbounded == []


@pytest.mark.parametrize("crd", CRDS)
def test_no_rule_is_on_what_may_be_a_number_or_text_in_a_list(crd: str) -> None:
    """API servers before 1.34 take such text for megabytes: times the items it is beyond every limit."""
    costly = [
        path
        for path, node in fields(schema(crd)["properties"]["spec"], "spec.")
        if "[]" in path
        and node.get("x-kubernetes-int-or-string")
        and "x-kubernetes-validations" in node
    ]
    assert costly == []


@pytest.mark.parametrize("crd", CRDS)
def test_lists_in_a_status_are_keyed(crd: str) -> None:
    lists = {
        path: node.get("x-kubernetes-list-map-keys")
        for path, node in fields(schema(crd)["properties"]["status"])
        if node.get("type") == "array"
    }
    of_kind: dict[str, dict[str, list[str] | None]] = {
        names.DEFRAG_CRD: {"members": ["name"]},
        names.CONNECTION_CRD: {"members": ["memberID"]},
        # Written whole: keys in managedFields would take more room than the rows themselves.
        names.COMPRESSION_CRD: {
            "lastAudit.forms": None,
            "lastAudit.encryption": None,
            "lastAudit.resources": None,
        },
    }
    assert lists == {**of_kind[crd], "conditions": ["type"]}


@pytest.mark.parametrize(
    ("crd", "part", "model"),
    [
        (names.DEFRAG_CRD, "spec", EtcdDefragSpec),
        (names.DEFRAG_CRD, "status", EtcdDefragStatus),
        (names.CONNECTION_CRD, "spec", EtcdConnectionSpec),
        (names.CONNECTION_CRD, "status", EtcdConnectionStatus),
        (names.COMPRESSION_CRD, "spec", StorageCompressionSpec),
        (names.COMPRESSION_CRD, "status", StorageCompressionStatus),
    ],
)
def test_the_crd_and_the_model_have_the_same_fields(
    crd: str, part: str, model: type[BaseModel]
) -> None:
    declared = {
        path
        for path, _ in fields(schema(crd)["properties"][part])
        if not path.startswith("conditions[]")
    }
    assert declared == set(model_fields(model))


def enum(crd: str, *path: str) -> list[str]:
    node = schema(crd)
    for name in path:
        node = node.get("items", node)["properties"][name]
    found: list[str] = node["enum"]
    return found


def test_the_closed_sets_are_one_set_each() -> None:
    crd = names.DEFRAG_CRD
    assert enum(crd, "status", "phase") == [phase for phase in Phase if phase]
    assert enum(crd, "status", "members", "outcome") == list(Outcome)
    assert sorted(enum(crd, "status", "members", "role")) == sorted(Role)
    assert enum(crd, "spec", "leaderTransfer") == list(LeaderTransfer)
    assert enum(crd, "spec", "clusterRef", "kind") == list(ClusterKind)
    assert sorted(enum(names.CONNECTION_CRD, "status", "members", "role")) == sorted(Role)


def test_the_domain_has_the_same_defaults() -> None:
    """D20."""
    given = spec_of({"clusterRef": REF}).rule
    wanted = Rule()
    assert given.all == wanted.all
    assert given.free_space_above == wanted.free_space_above
    assert given.quota_usage_above == wanted.quota_usage_above
    assert given.min_reclaim == wanted.min_reclaim


def test_the_names_are_those_of_the_crds() -> None:
    for crd, group, version, kind, plural, short in (
        (
            names.DEFRAG_CRD,
            names.COZYSTACK_GROUP,
            names.COZYSTACK_VERSION,
            names.DEFRAG_KIND,
            names.DEFRAG_PLURAL,
            "edf",
        ),
        (
            names.CONNECTION_CRD,
            names.ETCDMAINT_GROUP,
            names.ETCDMAINT_VERSION,
            names.CONNECTION_KIND,
            names.CONNECTION_PLURAL,
            "ec",
        ),
        (
            names.COMPRESSION_CRD,
            names.ETCDMAINT_GROUP,
            names.ETCDMAINT_VERSION,
            names.COMPRESSION_KIND,
            names.COMPRESSION_PLURAL,
            "scconf",
        ),
    ):
        spec = CRDS[crd]["spec"]
        assert CRDS[crd]["metadata"]["name"] == crd
        assert spec["group"] == group
        assert spec["versions"][0]["name"] == version
        assert spec["names"]["kind"] == kind
        assert spec["names"]["plural"] == plural
        assert spec["names"]["shortNames"] == [short]
        assert spec["scope"] == "Namespaced"
        assert spec["versions"][0]["subresources"] == {"status": {}}


def test_the_columns_are_those_that_are_promised() -> None:
    (version,) = CRDS[names.DEFRAG_CRD]["spec"]["versions"]
    columns = [(c["name"], c.get("priority", 0)) for c in version["additionalPrinterColumns"]]
    assert columns == [
        *(("Cluster", 0), ("Phase", 0), ("Defragmented", 0), ("Reclaimed", 0), ("Age", 0)),
        ("Reason", 1),
    ]
