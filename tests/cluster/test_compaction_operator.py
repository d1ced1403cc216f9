"""Compaction by a real operator, beside nobody: objects, condition, events, metrics, and NOSPACE whole."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import (
    DEFRAG_API,
    ask,
    condition,
    connect,
    events_of,
    path_of,
    phase_of,
    status_of,
)
from tests.cluster.operators import OperatorProcess, until
from tests.cluster.test_operator_cozystack import Cozystack
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import GatewayError, text
from tests.controlplane.member import Member

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"
KEY = b"compact_rev_key"
COMPACTED = "etcd_debugging_mvcc_compact_revision"
MIB = 1 << 20


def connection(plane: ControlPlane, namespace: str, name: str = "etcd") -> dict[str, Any]:
    return plane.api.request("GET", path_of("etcdconnections", namespace, name))


def change(plane: ControlPlane, namespace: str, body: dict[str, Any], name: str = "etcd") -> None:
    path = path_of("etcdconnections", namespace, name)
    plane.api.request("PATCH", path, body, content_type=MERGE)


def compacting(plane: ControlPlane, namespace: str, name: str = "etcd") -> str:
    return str(condition(connection(plane, namespace, name), "Compacting").get("reason", ""))


def rounds(operator: OperatorProcess, result: str) -> int:
    total = 0.0
    for line in operator.metrics().splitlines():
        if line.startswith("etcdmaint_compaction_rounds_total{") and f'result="{result}"' in line:
            total += float(line.rpartition(" ")[2])
    return int(total)


def key_of(cluster: EtcdCluster) -> dict[str, Any]:
    answer = cluster.leader().gateway.post("/v3/kv/range", {"key": text(KEY)})
    found: list[dict[str, Any]] = answer.get("kvs", [])
    return found[0] if found else {}


def test_two_connections_to_one_etcd_share_one_compactor_from_first_to_last(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C31, C32, C34, C36, C37: with condition, figures, metrics; no finalizer of ours anywhere."""
    etcd = etcd_cluster_factory(size=1)
    (member,) = etcd.members
    connect(plane, namespace, etcd, compaction={"interval": "20s"})
    connect(plane, namespace, etcd, name="other", compaction={"interval": "10s"})
    scope = f"/apis/{DEFRAG_API}/namespaces/{namespace}/etcdclusters"
    wrong = {
        "apiVersion": DEFRAG_API,
        "kind": "EtcdCluster",
        "metadata": {
            "name": "foreign",
            "annotations": {"etcdmaint.io/compaction-interval": "5 minutes"},
        },
        "spec": {"replicas": 1, "version": "3.7.3", "storage": {"size": "8Gi"}},
    }
    plane.api.request("POST", scope, wrong)
    operator = start_operator()

    until(lambda: compacting(plane, namespace) == "Starting", "held")
    until(lambda: "InvalidCompactionInterval" in events_of(plane, namespace, "foreign"), "told")
    labels = f'kind="EtcdCluster",name="foreign",namespace="{namespace}"'
    assert operator.metric(f"etcdmaint_compaction_invalid_interval{{{labels}}}") == 1.0

    until(lambda: compacting(plane, namespace) == "WonLast", "compacted")
    until(lambda: compacting(plane, namespace, "other") == "WonLast", "told of the other")
    assert rounds(operator, "bootstrap") == 1
    assert member.metric(COMPACTED) > 0
    status = connection(plane, namespace)["status"]
    assert status["compaction"]["revision"] > 0
    assert status["compaction"]["lastWonAt"] <= status["compaction"]["lastSeenAt"]
    assert int(key_of(etcd)["version"]) >= status["compaction"]["clock"] >= 2
    series = [x for x in operator.metrics().splitlines() if x.startswith("etcdmaint_compaction_cl")]
    assert len(series) == 1

    change(plane, namespace, {"spec": {"compaction": {"interval": "0s"}}})
    until(lambda: compacting(plane, namespace) == "", "not told of any more")
    assert "compaction" not in connection(plane, namespace)["status"]
    pause = {"metadata": {"annotations": {"etcdmaint.io/paused": ""}}}
    change(plane, namespace, pause, "other")
    until(lambda: compacting(plane, namespace, "other") == "Paused", "paused")
    assert "etcdmaint_compaction_clock{" not in operator.metrics()
    for name in ("etcd", "other"):
        assert not connection(plane, namespace, name)["metadata"].get("finalizers")
        plane.api.request("DELETE", path_of("etcdconnections", namespace, name))
    found = plane.api.request("GET", f"{scope}/foreign")
    assert "finalizers" not in found["metadata"]
    assert list(found["metadata"]["annotations"]) == ["etcdmaint.io/compaction-interval"]
    assert operator.complaints() == []


def test_an_etcdcluster_of_another_operator_is_compacted_by_its_annotation(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
    tmp_path: Path,
) -> None:
    """C31, C36: from when it asks until it asks no more; nothing of it is written."""
    cozystack = Cozystack(plane, namespace, etcd_cluster_factory)
    operator = start_operator(etcd_address_map=cozystack.address_map(tmp_path))
    assert rounds(operator, "bootstrap") == 0
    ask_for = {"metadata": {"annotations": {"etcdmaint.io/compaction-interval": "10s"}}}
    cozystack.patch("etcdclusters", "etcd", ask_for)
    until(lambda: rounds(operator, "bootstrap"), "takes part")
    ask_for["metadata"]["annotations"]["etcdmaint.io/compaction-interval"] = "0"
    cozystack.patch("etcdclusters", "etcd", ask_for)
    until(lambda: "etcdmaint_compaction_clock{" not in operator.metrics(), "let go")
    assert int(key_of(cozystack.etcd)["version"]) == 1
    path = f"/apis/{DEFRAG_API}/namespaces/{namespace}/etcdclusters/etcd"
    metadata = plane.api.request("GET", path)["metadata"]
    assert "finalizers" not in metadata
    assert operator.complaints() == []


def fill_with_history(etcd: EtcdCluster) -> None:
    """Overwrite a few keys until etcd takes no more: nearly all of it is history."""
    gateway = etcd.leader().gateway
    value = text(b"x" * 200_000)

    def overwrite() -> None:
        for number in range(1000):
            gateway.post("/v3/kv/put", {"key": text(b"k%d" % (number % 3)), "value": value})

    with pytest.raises(GatewayError, match="database space exceeded"):
        overwrite()


def _reached(member: Member, head: int) -> bool:
    return member.metric(COMPACTED) >= head


def _knows_its_space(member: Member) -> bool:
    return member.status().db_size_in_use < 4 * MIB


def test_a_cluster_full_of_history_is_healed_by_the_operator_alone(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C8, C14, D40: NOSPACE by history; compacted without the election, defragmented, disarmed."""
    etcd = etcd_cluster_factory(quota_backend_bytes=16 * MIB)
    operator = start_operator()
    connect(plane, namespace, etcd, compaction={"interval": "10s"})
    until(lambda: rounds(operator, "bootstrap"), "takes part")
    fill_with_history(etcd)
    # Who refuses a write raises the alarm, and need not wait for it.
    until(lambda: "NOSPACE" in etcd.etcdctl("alarm", "list").stdout, "the alarm is armed")
    # From now on no election can be held: the key stays as it is.
    before = int(key_of(etcd)["version"])

    head = etcd.leader().status().revision
    # What was written in the last interval is compacted at the end of the next one.
    until(lambda: rounds(operator, "raw") >= 2, "compacted without the election")
    for member in etcd.members:
        until(partial(_reached, member, head), "compacted there as well", 30)
        # Nothing is written under NOSPACE, and still each learns what it could give back.
        until(partial(_knows_its_space, member), "knows what it could give back", 30)
    until(lambda: compacting(plane, namespace) == "NoSpaceAlarm", "says so")
    assert int(key_of(etcd)["version"]) == before
    ask(plane, namespace, rule={"freeSpaceAbove": "2Mi"})
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    assert phase_of(plane, namespace) == "Complete", status_of(plane, namespace)
    assert etcd.etcdctl("alarm", "list").stdout == "", status_of(plane, namespace)
    etcd.leader().gateway.put(b"again", b"writable")
    assert max(member.status().db_size for member in etcd.members) < 4 * MIB

    until(lambda: int(key_of(etcd)["version"]) > before, "published")
    published = int(base64.b64decode(key_of(etcd)["value"]))
    # What the key says is compacted right after it is said.
    until(partial(_reached, etcd.members[0], published), "compacted as published", 30)
    assert operator.complaints() == []
