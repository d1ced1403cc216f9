"""An EtcdCluster of another operator as the target: its members' own names, by an address map."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import (
    DEFRAG_API,
    ask,
    defragmentations,
    events_of,
    phase_of,
    status_of,
    waits_for,
)
from tests.cluster.operators import until
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"


class Cozystack:
    """Objects as the other operator would have written them, for a cluster that really runs."""

    def __init__(self, plane: ControlPlane, namespace: str, factory: EtcdClusterFactory) -> None:
        self.plane = plane
        self.namespace = namespace
        self.names = [f"etcd-{suffix}" for suffix in ("abcde", "fghij", "klmno")]
        self._scope = f"/apis/{DEFRAG_API}/namespaces/{namespace}"
        self.etcd: EtcdCluster = factory(advertise=self._advertised)
        self.etcd.fill(bytes_live=6_000_000, bytes_deleted=4_000_000)
        self._create()

    def host(self, index: int) -> str:
        # The first member was adopted and lives under another headless Service.
        service = "etcd-headless" if index == 0 else "etcd"
        return f"{self.names[index]}.{service}.{self.namespace}.svc"

    def _advertised(self, name: str, url: str) -> list[str]:
        return [f"http://{self.host(int(name.rpartition('-')[2]))}:2379"]

    def address_map(self, folder: Path) -> str:
        file = folder / "addresses"
        file.write_text(
            "".join(
                f"{self.host(i)}:2379 {member.client_url.removeprefix('http://')}\n"
                for i, member in enumerate(self.etcd.members)
            )
        )
        return str(file)

    def post(self, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        status = body.pop("status", None)
        made = self.plane.api.request("POST", f"{self._scope}/{plural}", body)
        if status is not None:
            self.patch(plural, body["metadata"]["name"], {"status": status}, "/status")
        return made

    def patch(self, plural: str, name: str, body: dict[str, Any], tail: str = "") -> None:
        path = f"{self._scope}/{plural}/{name}{tail}"
        self.plane.api.request("PATCH", path, body, content_type=MERGE)

    def _create(self) -> None:
        made = self.post(
            "etcdclusters",
            {
                "apiVersion": DEFRAG_API,
                "kind": "EtcdCluster",
                "metadata": {"name": "etcd"},
                "spec": {"replicas": 3, "version": "3.7.3", "storage": {"size": "8Gi"}},
                "status": {
                    "clusterID": "1",
                    "clusterToken": "token",
                    "observed": {"replicas": 3, "storage": {"size": "8Gi"}},
                },
            },
        )
        owner = {
            "apiVersion": DEFRAG_API,
            "kind": "EtcdCluster",
            "name": "etcd",
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        for index, (name, member) in enumerate(zip(self.names, self.etcd.members, strict=True)):
            key = "etcd-operator.cozystack.io/headless-service-name"
            self.post(
                "etcdmembers",
                {
                    "apiVersion": DEFRAG_API,
                    "kind": "EtcdMember",
                    "metadata": {
                        "name": name,
                        "labels": {"etcd-operator.cozystack.io/cluster": "etcd"},
                        "annotations": {key: "etcd-headless"} if index == 0 else {},
                        "ownerReferences": [owner],
                    },
                    "spec": {"clusterName": "etcd", "options": {"quotaBackendBytes": 1 << 30}},
                    "status": {"memberID": f"{member.id:016x}", "isVoter": True, "podName": name},
                },
            )


@pytest.fixture
def cozystack(
    plane: ControlPlane, namespace: str, etcd_cluster_factory: EtcdClusterFactory
) -> Cozystack:
    return Cozystack(plane, namespace, etcd_cluster_factory)


def test_an_etcdcluster_is_swept_under_the_names_of_its_etcdmembers(
    plane: ControlPlane,
    namespace: str,
    cozystack: Cozystack,
    start_operator: OperatorFactory,
    tmp_path: Path,
) -> None:
    """D11, D12: per-member headless names, two of them in one cluster, each reached by its map."""
    start_operator(etcd_address_map=cozystack.address_map(tmp_path))
    ask(plane, namespace, kind="EtcdCluster")
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    status = status_of(plane, namespace)
    assert status["phase"] == "Complete", status
    assert {row["name"] for row in status["members"]} == set(cozystack.names)
    assert defragmentations(cozystack.etcd) == [1, 1, 1]


def test_a_cluster_that_is_scaling_paused_or_bootstrapping_is_waited_for(
    plane: ControlPlane,
    namespace: str,
    cozystack: Cozystack,
    start_operator: OperatorFactory,
    tmp_path: Path,
) -> None:
    """D6, D9, D11, D16: each state has a reason of its own, and the run goes on after the last."""
    observed = {"replicas": 5}
    cozystack.patch("etcdclusters", "etcd", {"status": {"observed": observed}}, "/status")
    start_operator(etcd_address_map=cozystack.address_map(tmp_path))
    ask(plane, namespace, kind="EtcdCluster")
    until(lambda: waits_for(plane, namespace) == "Scaling", "scaling")
    observed["replicas"] = 0
    cozystack.patch("etcdclusters", "etcd", {"status": {"observed": observed}}, "/status")
    until(lambda: waits_for(plane, namespace) == "ScaledToZero", "scaled to zero")
    observed["replicas"] = 3
    status = {"observed": observed, "clusterID": None}
    cozystack.patch("etcdclusters", "etcd", {"status": status}, "/status")
    until(lambda: waits_for(plane, namespace) == "Bootstrapping", "bootstrapping")
    snapshot = {
        "apiVersion": DEFRAG_API,
        "kind": "EtcdSnapshot",
        "metadata": {"name": "nightly"},
        "spec": {"clusterRef": {"name": "etcd"}},
        "status": {"phase": "Started"},
    }
    cozystack.post("etcdsnapshots", snapshot)
    cozystack.patch("etcdclusters", "etcd", {"status": {"clusterID": "1"}}, "/status")
    until(lambda: waits_for(plane, namespace) == "SnapshotInProgress", "a snapshot")
    pause = {"metadata": {"annotations": {"etcdmaint.io/paused": "true"}}}
    cozystack.patch("etcdclusters", "etcd", pause)
    done = {"status": {"phase": "Complete"}}
    cozystack.patch("etcdsnapshots", "nightly", done, "/status")
    until(lambda: waits_for(plane, namespace) == "Paused", "paused")
    assert phase_of(plane, namespace) == "Pending"
    assert defragmentations(cozystack.etcd) == [0, 0, 0]
    pause = {"metadata": {"annotations": {"etcdmaint.io/paused": None}}}
    cozystack.patch("etcdclusters", "etcd", pause)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    reasons = ["Scaling", "ScaledToZero", "Bootstrapping", "SnapshotInProgress", "Paused"]
    assert [reason for reason in deferrals(plane, namespace) if reason in reasons] == reasons
    assert defragmentations(cozystack.etcd) == [1, 1, 1]


def deferrals(plane: ControlPlane, namespace: str) -> list[str]:
    """For what the run has waited, by its Events, oldest first."""
    found = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    told = [event["message"] for event in found if event["reason"] == "DefragDeferred"]
    return [message.partition(":")[0] for message in told]


def test_a_member_whose_container_restarted_too_often_is_left_alone(
    plane: ControlPlane,
    namespace: str,
    cozystack: Cozystack,
    start_operator: OperatorFactory,
    tmp_path: Path,
) -> None:
    """D18: the other operator would delete it if it stalled."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for index, name in enumerate(cozystack.names):
        container = {"name": "etcd", "image": "etcd"}
        body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        plane.api.request("POST", pods, body)
        status = {
            "containerStatuses": [
                {
                    "name": "etcd",
                    "ready": True,
                    "restartCount": 5 if index == 1 else 4,
                    "image": "etcd",
                    "imageID": "x",
                }
            ]
        }
        path = f"{pods}/{name}/status"
        plane.api.request("PATCH", path, {"status": status}, content_type=MERGE)
    start_operator(etcd_address_map=cozystack.address_map(tmp_path))
    ask(plane, namespace, kind="EtcdCluster")
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    rows = {row["name"]: row for row in status_of(plane, namespace)["members"]}
    assert rows[cozystack.names[1]]["reason"] == "RestartCountTooHigh"
    assert defragmentations(cozystack.etcd) == [1, 0, 1]


@pytest.mark.parametrize("sign", ["lease", "status"])
def test_another_controller_for_this_kind_is_left_to_its_work(
    plane: ControlPlane,
    namespace: str,
    cozystack: Cozystack,
    start_operator: OperatorFactory,
    tmp_path: Path,
    sign: str,
) -> None:
    """custom-resources: a fresh Lease, or another writer of the status; --take-over overrides."""
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    if sign == "lease":
        now = datetime.now(UTC) + timedelta(hours=1)
        spec = {
            "holderIdentity": "them",
            "leaseDurationSeconds": 15,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        name = "aa20b3a9.etcd-operator.cozystack.io"
        plane.api.request("POST", leases, {"metadata": {"name": name}, "spec": spec})
    ask(plane, namespace, kind="EtcdCluster")
    if sign == "status":
        cozystack.patch("etcddefrags", "now", {"status": {"phase": "Pending"}}, "/status")
    addresses = cozystack.address_map(tmp_path)
    first = start_operator(etcd_address_map=addresses)
    until(lambda: waits_for(plane, namespace) == "OtherController", "left alone")
    until(lambda: events_of(plane, namespace) == ["DefragDeferred"], "told once")
    assert first.terminate() == 0
    assert defragmentations(cozystack.etcd) == [0, 0, 0]
    start_operator(etcd_address_map=addresses, take_over=True)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(cozystack.etcd) == [1, 1, 1]
