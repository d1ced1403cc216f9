"""EtcdDefrags carried out by a real operator on real servers, as a person would see it."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import (
    ask,
    condition,
    connect,
    defrag,
    defragmentations,
    events_of,
    phase_of,
    status_of,
)
from tests.cluster.operators import until
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.fixtures import EtcdClusterFactory

pytestmark = pytest.mark.cluster


def test_an_etcddefrag_defragments_each_member_once_and_says_what_it_did(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D1, D12, D30, D35: phases, rows, sums, and exactly one RPC a member."""
    etcd = etcd_cluster_factory()
    etcd.fill(bytes_live=2_000_000, bytes_deleted=8_000_000)
    connect(plane, namespace, etcd)
    operator = start_operator()
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    found = defrag(plane, namespace)
    assert found is not None
    status = found["status"]
    assert status["phase"] == "Complete", status
    assert defragmentations(etcd) == [1, 1, 1]
    assert status["defragmented"] == 3
    assert [row["outcome"] for row in status["members"]] == ["Defragmented"] * 3
    assert all(row["dbSizeAfter"] < row["dbSizeBefore"] for row in status["members"])
    assert status["reclaimedBytes"] == sum(row["reclaimedBytes"] for row in status["members"])
    assert condition(found, "Complete")["status"] == "True"
    assert condition(found, "Progressing")["status"] == "False"
    until(lambda: "Complete" in events_of(plane, namespace), "told")
    told = events_of(plane, namespace)
    assert told.count("MemberDefragmented") == 3
    until(
        lambda: not (defrag(plane, namespace) or found)["metadata"].get("finalizers"), "freed", 10
    )
    assert operator.complaints() == []
    assert status_of(plane, namespace) == status
