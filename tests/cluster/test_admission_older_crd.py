"""What the older public EtcdDefrag CRD lets through, and what the models make of it.

Its own API server: two CRDs of one name cannot live in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.api import names
from etcdmaint.api.defrag import defrag_status, parse_defrag
from etcdmaint.errors import InvalidInput
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until
from tests.unit.api.cases import ABSENT, DEFRAG_CASES, REF, Case, manifest, rule
from tests.unit.api.test_status import FULL

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
OLDER = ROOT / "tests" / "crds" / "etcddefrags-older.yaml"
OURS = ROOT / "crds" / f"{names.DEFRAG_CRD}.yaml"
API_VERSION = f"{names.COZYSTACK_GROUP}/{names.COZYSTACK_VERSION}"
ALL = f"/apis/{API_VERSION}/namespaces/default/{names.DEFRAG_PLURAL}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("older-crd")) as started:
        yield started


@pytest.fixture
def older(plane: ControlPlane) -> ControlPlane:
    """The API server with the older CRD and no object of the kind."""
    install(plane, OLDER)
    plane.api.request("DELETE", ALL)
    return plane


def install(plane: ControlPlane, crd: Path) -> None:
    """Put the one CRD in the place of the other, and wait until it judges."""
    plane.apply(crd)
    plane.wait_established(names.DEFRAG_CRD)
    addition = Case("", {"clusterRef": REF, "leaderTransfer": "Never"})
    wait_until(lambda: admitted(plane, addition) is (crd == OURS), f"{crd.name} judges", 60)
    # With the new judge came a new storage, which is made ready as the first one was.
    plane.wait_established(names.DEFRAG_CRD)


def create(plane: ControlPlane, spec: Any, name: str = "case", query: str = "") -> dict[str, Any]:
    body = manifest(API_VERSION, names.DEFRAG_KIND, "default", spec)
    body["metadata"]["name"] = name
    return plane.api.request("POST", f"{ALL}{query}", body)


def admitted(plane: ControlPlane, case: Case) -> bool:
    try:
        create(plane, case.spec, "probe", "?dryRun=All&fieldValidation=Strict")
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return False
    return True


def refused_field(obj: dict[str, Any]) -> str | None:
    try:
        parse_defrag(obj)
    except InvalidInput as refused:
        return refused.field
    return None


OURS_ONLY = ("clusterRef.kind", "leaderTransfer", "dryRun")


def test_what_is_valid_there_is_valid_here_but_for_the_holes_that_are_closed(
    older: ControlPlane,
) -> None:
    """Section 8 of the contract: the difference is this list and nothing else."""
    slow = ("1e-999999999", "1e999999999")
    cases = [case for case in DEFRAG_CASES if not any(word in case.name for word in slow)]
    closed = {c.name for c in cases if c.field is not None and admitted(older, c)}
    assert {name for name in closed if not _is_known_hole(name)} == set()
    assert "row 5: no spec" in closed
    assert "row 16: minReclaim over the default freeSpaceAbove" in closed
    assert "row 18: 100%" in closed
    added = [c.name for c in cases if c.field is None and not admitted(older, c)]
    assert [name for name in added if not name.startswith(OURS_ONLY)] == []


def _is_known_hole(name: str) -> bool:
    return name.startswith(
        ("row 5: no spec", "spec null", "row 16", "row 18", "clusterRef.name ", "row 10", "row 13")
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (ABSENT, "spec"),
        (rule(quotaUsageAbove="80%", minReclaim="500Mi"), "spec.rule.minReclaim"),
        (rule(quotaUsageAbove="100%"), "spec.rule.quotaUsageAbove"),
        (rule(freeSpaceAbove="9Ei"), "spec.rule.freeSpaceAbove"),
        ({"clusterRef": {"name": "No_Name"}}, "spec.clusterRef.name"),
        ({"clusterRef": REF}, None),
        (rule(quotaUsageAbove="80%", freeSpaceAbove="16Mi"), None),
    ],
)
def test_what_the_older_crd_forgets_to_refuse_the_models_refuse(
    older: ControlPlane, spec: Any, field: str | None
) -> None:
    """D52: Failed/InvalidSpec with the field named."""
    assert refused_field(create(older, spec)) == field


def test_the_older_crd_drops_what_was_added(older: ControlPlane) -> None:
    """Why runs wait with reason OlderCRD: a dry run would become a real one."""
    spec = {"clusterRef": {"name": "etcd", "kind": "EtcdConnection"}, "dryRun": True}
    parsed = parse_defrag(create(older, spec))
    assert not parsed.dry_run
    assert parsed.spec.cluster_ref.kind == "EtcdCluster"


def test_a_dry_run_by_annotation_is_kept_by_the_older_crd(older: ControlPlane) -> None:
    """D8."""
    body = manifest(API_VERSION, names.DEFRAG_KIND, "default", {"clusterRef": REF})
    body["metadata"]["annotations"] = {names.DRY_RUN_ANNOTATION: "true"}
    assert parse_defrag(older.api.request("POST", ALL, body)).dry_run


def patch_status(plane: ControlPlane, status: dict[str, Any]) -> dict[str, Any]:
    return plane.api.request(
        "PATCH",
        f"{ALL}/case/status",
        {"status": status},
        content_type="application/merge-patch+json",
    )


def test_a_record_through_the_older_crd_keeps_what_both_have(older: ControlPlane) -> None:
    create(older, {"clusterRef": REF})
    status = {**FULL.to_wire(), "conditions": []}
    (row,) = defrag_status(patch_status(older, status)).members
    assert row.member_id is None
    assert (row.name, row.outcome, row.reason) == ("etcd-0", "Pending", "InFlight")
    assert row.db_size_before == FULL.members[0].db_size_before


def test_an_object_from_before_our_crd_takes_a_status_after_it(older: ControlPlane) -> None:
    """Installed over the older CRD, ours lets a run that goes on write its record."""
    create(older, {"clusterRef": REF})
    install(older, OURS)
    written = patch_status(older, {"phase": "Running", "members": [{"name": "a"}]})
    assert written["status"]["phase"] == "Running"
    assert parse_defrag(written).spec.cluster_ref.kind == "EtcdCluster"


@pytest.mark.parametrize(
    "spec",
    [ABSENT, rule(quotaUsageAbove="100%"), rule(quotaUsageAbove="80%", minReclaim="500Mi")],
    ids=["no spec", "100%", "contradiction"],
)
def test_an_object_that_only_the_older_crd_takes_can_still_be_marked_as_failed(
    older: ControlPlane, spec: Any
) -> None:
    """D52: what was admitted before our CRD came is not stuck without a word."""
    create(older, spec)
    install(older, OURS)
    written = patch_status(older, {"phase": "Failed"})
    assert written["status"]["phase"] == "Failed"
    assert refused_field(written) is not None
