"""The older public CRD of EtcdDefrag is installed: what it drops must not make a run do more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.objects import (
    DEFRAG_API,
    condition,
    defrag,
    defragmentations,
    path_of,
    phase_of,
    status_of,
    waits_for,
)
from tests.cluster.operator_proxy import ApiProxy
from tests.cluster.operators import OperatorProcess, grant_in, until
from tests.cluster.test_operator_cozystack import Cozystack
from tests.cluster.test_operator_killed import Killer
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.kubeapi import ApiError

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
OLDER = ROOT / "tests/crds/etcddefrags-older.yaml"
OURS = ROOT / "crds/etcddefrags.etcd-operator.cozystack.io.yaml"

_NUMBERS = itertools.count(1)
# Everything that the older schema lets through and that no run can be made of.
MALFORMED: list[tuple[str, Any, str]] = [
    ("no-spec", None, "spec"),
    ("quota-hundred", {"rule": {"quotaUsageAbove": "100%"}}, "quotaUsageAbove"),
    ("min-over-default", {"rule": {"quotaUsageAbove": "80%", "minReclaim": "500Mi"}}, "minReclaim"),
    ("absurd", {"rule": {"freeSpaceAbove": "9e99"}}, "freeSpaceAbove"),
]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("older")) as plane:
        plane.apply(OLDER)
        for name in ("etcdclusters", "etcdmembers", "etcdsnapshots"):
            plane.apply(ROOT / f"tests/crds/{name}.yaml")
        plane.apply(ROOT / "crds/etcdconnections.etcdmaint.io.yaml")
        for plural in ("etcddefrags", "etcdclusters", "etcdmembers", "etcdsnapshots"):
            plane.wait_established(f"{plural}.etcd-operator.cozystack.io")
        plane.wait_established("etcdconnections.etcdmaint.io")
        yield plane


@pytest.fixture
def place(older: ControlPlane) -> str:
    name = f"older-{next(_NUMBERS)}"
    older.api.create_namespace(name)
    grant_in(older, "operator", name)
    return name


@pytest.fixture(autouse=True)
def installed(older: ControlPlane) -> None:
    """Each test begins with the older one."""
    older.apply(OLDER)
    until(lambda: serves_ours(older) is False, "the older CRD is served")


def serves_ours(plane: ControlPlane) -> bool | None:
    """Whether the schema is ours, by what is kept and by what is published; None in between.

    An API server publishes a group's schema some time after its CRDs are established, and by
    another way than that by which it drops fields.
    """
    body = {"apiVersion": DEFRAG_API, "kind": "EtcdDefrag", "metadata": {"name": "probe"}}
    body["spec"] = {"clusterRef": {"name": "etcd"}, "rule": {"all": True}, "dryRun": True}
    path = path_of("etcddefrags", "default")
    try:
        kept = plane.api.request("POST", f"{path}?dryRun=All", body)
        published = plane.api.request("GET", f"/openapi/v3/apis/{DEFRAG_API}")
    except ApiError as error:
        if error.status in (404, 429):
            return None
        raise
    ours = "leaderTransfer" in str(published)
    return ours if ours == ("dryRun" in kept["spec"]) else None


def post(plane: ControlPlane, namespace: str, name: str, spec: Any) -> None:
    body: dict[str, Any] = {
        "apiVersion": DEFRAG_API,
        "kind": "EtcdDefrag",
        "metadata": {"name": name},
    }
    if spec is not None:
        body["spec"] = {"clusterRef": {"name": "etcd"}, **spec}
    plane.api.request("POST", path_of("etcddefrags", namespace), body)


def test_a_dry_run_that_the_older_crd_makes_a_real_one_does_not_run(
    older: ControlPlane, place: str, tmp_path: Path, etcd_cluster_factory: EtcdClusterFactory
) -> None:
    """custom-resources: Pending with OlderCRD, also when our CRD comes later; new ones then work."""
    cozystack = Cozystack(older, place, etcd_cluster_factory)
    post(older, place, "now", {"rule": {"all": True}, "dryRun": True})
    found = defrag(older, place)
    assert found is not None
    assert "dryRun" not in found["spec"], "this CRD was to drop it"
    addresses = cozystack.address_map(tmp_path)
    with OperatorProcess(
        tmp_path, older, lease_namespace=place, namespaces=[place], etcd_address_map=addresses
    ) as operator:
        until(
            lambda: waits_for(older, place) == "OlderCRD",
            "it waits",
        )
        assert phase_of(older, place) == "Pending"
        older.apply(OURS)
        until(lambda: serves_ours(older), "our CRD is served")
        post(older, place, "again", {"rule": {"all": True}, "dryRun": True})
        until(lambda: phase_of(older, place, "again") == "Complete", "the new one")
        rows = status_of(older, place, "again")["members"]
        assert {row["reason"] for row in rows} == {"WouldDefragment"}
        assert phase_of(older, place) == "Pending"
        assert "again" in condition(defrag(older, place) or {}, "Progressing")["message"]
        assert operator.forbidden() == []
    assert defragmentations(cozystack.etcd) == [0, 0, 0]


def test_with_accept_older_crd_a_run_is_swept_and_resumed_from_what_is_left_of_its_status(
    older: ControlPlane, place: str, tmp_path: Path, etcd_cluster_factory: EtcdClusterFactory
) -> None:
    """Rows have no member IDs there: they are found again by their names (D2, D36)."""
    cozystack = Cozystack(older, place, etcd_cluster_factory)
    options: dict[str, Any] = {
        "lease_namespace": place,
        "namespaces": [place],
        "etcd_address_map": cozystack.address_map(tmp_path),
        "accept_older_crd": True,
        "pod": "etcdmaint-0",
        # A member that answers late is waited for, and that would be a write before the fourth.
        "timing": {"rpc_timeout": 30.0, "metrics_timeout": 30.0},
    }
    with ApiProxy(older, tmp_path) as proxy:
        killer = Killer(proxy, "now", 4, carried_out=True)
        with OperatorProcess(tmp_path, older, kubeconfig=proxy.kubeconfig, **options) as victim:
            killer.victim = victim
            post(older, place, "now", {"rule": {"all": True}})
            until(lambda: killer.done, "killed after the first member")
    rows = status_of(older, place)["members"]
    assert not any("memberID" in row for row in rows), "this CRD was to drop it"
    assert sum(row["outcome"] == "Defragmented" for row in rows) == 1
    with OperatorProcess(tmp_path, older, **options):
        until(lambda: phase_of(older, place) in ("Complete", "Failed"), "over")
    assert phase_of(older, place) == "Complete", status_of(older, place)
    assert defragmentations(cozystack.etcd) == [1, 1, 1]


@pytest.mark.parametrize(("name", "spec", "field"), MALFORMED, ids=[case[0] for case in MALFORMED])
def test_a_malformed_object_fails_and_names_its_field(
    older: ControlPlane, place: str, tmp_path: Path, name: str, spec: Any, field: str
) -> None:
    """D52: Failed/InvalidSpec, and the operator goes on."""
    post(older, place, name, spec)
    with OperatorProcess(
        tmp_path, older, lease_namespace=place, namespaces=[place], accept_older_crd=True
    ) as operator:
        until(lambda: phase_of(older, place, name) == "Failed", "failed")
        failed = condition(defrag(older, place, name) or {}, "Failed")
        assert failed["reason"] == "InvalidSpec"
        assert field in failed["message"]
        until(lambda: operator.probe("healthz") == 200, "well")
        assert operator.complaints() == []
