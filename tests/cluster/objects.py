"""Objects that tests apply, and what is read of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.kubeapi import ApiError

ROOT = Path(__file__).parents[2]
DEFRAG_API = "etcd-operator.cozystack.io/v1alpha2"
CONNECTION_API = "etcdmaint.io/v1alpha1"
CRDS = (
    "etcddefrags.etcd-operator.cozystack.io",
    "etcdconnections.etcdmaint.io",
    "storagecompressionconfigurations.etcdmaint.io",
)
FOREIGN = ("etcdclusters", "etcdmembers", "etcdsnapshots")


def install_crds(plane: ControlPlane) -> None:
    """Install our CRDs, and another operator's, and wait until they are served."""
    plane.apply(ROOT / "crds")
    for name in FOREIGN:
        plane.apply(ROOT / f"tests/crds/{name}.yaml")
    for crd in (*CRDS, *(f"{name}.etcd-operator.cozystack.io" for name in FOREIGN)):
        plane.wait_established(crd)


def path_of(plural: str, namespace: str, name: str = "") -> str:
    """The API path of an object of one of the two kinds."""
    api = DEFRAG_API if plural.startswith("etcddefrags") else CONNECTION_API
    tail = f"/{name}" if name else ""
    return f"/apis/{api}/namespaces/{namespace}/{plural}{tail}"


def connect(
    plane: ControlPlane,
    namespace: str,
    cluster: EtcdCluster | Sequence[str],
    *,
    name: str = "etcd",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Create an EtcdConnection to a cluster, or to these URLs."""
    urls = cluster.client_urls if isinstance(cluster, EtcdCluster) else list(cluster)
    return plane.api.request(
        "POST",
        path_of("etcdconnections", namespace),
        {
            "apiVersion": CONNECTION_API,
            "kind": "EtcdConnection",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"endpoints": urls, **spec},
        },
    )


def ask(
    plane: ControlPlane,
    namespace: str,
    *,
    name: str = "now",
    cluster: str = "etcd",
    kind: str = "EtcdConnection",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Create an EtcdDefrag; by default for every member."""
    spec.setdefault("rule", {"all": True})
    return plane.api.request(
        "POST",
        path_of("etcddefrags", namespace),
        {
            "apiVersion": DEFRAG_API,
            "kind": "EtcdDefrag",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"clusterRef": {"name": cluster, "kind": kind}, **spec},
        },
    )


def defrag(plane: ControlPlane, namespace: str, name: str = "now") -> dict[str, Any] | None:
    """An EtcdDefrag, None when it is not there."""
    try:
        return plane.api.request("GET", path_of("etcddefrags", namespace, name))
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def status_of(plane: ControlPlane, namespace: str, name: str = "now") -> dict[str, Any]:
    """Its status, empty while there is none."""
    found = defrag(plane, namespace, name)
    return (found or {}).get("status") or {}


def phase_of(plane: ControlPlane, namespace: str, name: str = "now") -> str:
    """Its phase."""
    return str(status_of(plane, namespace, name).get("phase", ""))


def waits_for(plane: ControlPlane, namespace: str, name: str = "now") -> str:
    """The reason of a run's Progressing; "None" where there is none."""
    return str(condition(defrag(plane, namespace, name) or {}, "Progressing").get("reason"))


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object, empty while there is none."""
    for entry in obj.get("status", {}).get("conditions", ()):
        if entry["type"] == kind:
            return dict(entry)
    return {}


def events_of(plane: ControlPlane, namespace: str, name: str = "now") -> list[str]:
    """The reasons of the Events on an object, oldest first."""
    found = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/events")
    mine = [e for e in found["items"] if e["involvedObject"]["name"] == name]
    mine.sort(
        key=lambda e: (e["metadata"]["creationTimestamp"], int(e["metadata"]["resourceVersion"]))
    )
    return [event["reason"] for event in mine]


def defragmentations(cluster: EtcdCluster) -> list[int]:
    """How many Defragment RPCs each member has carried out since it was started."""
    return [member.defrag_count() for member in cluster.members]
