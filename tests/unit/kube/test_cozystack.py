"""Another operator's objects, read: the whole table of its states, of TLS, of names."""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.errors import ClusterNotReady
from etcdmaint.kube.cozystack import TlsSource, read_cluster, restart_count

GIB = 1 << 30


def cluster(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"replicas": 3},
        "status": {"clusterID": "1f", "clusterToken": "t", "observed": {"replicas": 3}},
    }
    for key, value in changes.items():
        part = base
        *path, last = key.split("__")
        for step in path:
            part = part.setdefault(step, {})
        part[last] = value
    return base


def member(name: str, number: int = 0, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "metadata": {"name": name, "ownerReferences": [{"uid": "u", "controller": True}]},
        "spec": {"clusterName": "c"},
        "status": {"memberID": f"{number:016x}"} if number else {},
    }
    for key, value in changes.items():
        part = base
        *path, last = key.split("__")
        for step in path:
            part = part.setdefault(step, {})
        part[last] = value
    return base


THREE = [member("c-a", 1), member("c-b", 2), member("c-c", 3)]


def test_each_member_is_dialled_below_its_own_headless_service() -> None:
    """Never the Service in front, which is empty under NOSPACE and balances at other times."""
    legacy = {"etcd-operator.cozystack.io/headless-service-name": "c-headless"}
    members = [member("c-0", 1, metadata__annotations=legacy), *THREE[1:]]
    reading = read_cluster(cluster(), members, [])
    assert [str(endpoint) for endpoint in reading.endpoints()] == [
        "http://c-0.c-headless.n.svc:2379",
        "http://c-b.c.n.svc:2379",
        "http://c-c.c.n.svc:2379",
    ]


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (None, None),
        ({"serverSecretRef": {"name": "s"}}, TlsSource(authority="s")),
        (
            {"serverSecretRef": {"name": "s"}, "operatorClientSecretRef": {"name": "o"}},
            TlsSource(authority="s", identity="o"),
        ),
        (
            {"certManager": {"serverIssuerRef": {"name": "i"}}},
            TlsSource(authority="c-server-tls"),
        ),
        (
            {
                "certManager": {
                    "serverIssuerRef": {"name": "i"},
                    "operatorClientIssuerRef": {"name": "i"},
                }
            },
            TlsSource(authority="c-server-tls", identity="c-operator-client-tls"),
        ),
    ],
    ids=["plaintext", "server", "mutual", "issued-server", "issued-mutual"],
)
def test_tls_material_is_where_the_cluster_says(client: Any, expected: TlsSource | None) -> None:
    """The decision table of the contract, 1.2."""
    reading = read_cluster(cluster(spec__tls={"client": client} if client else {}), THREE, [])
    assert reading.tls == expected
    assert {e.secure for e in reading.endpoints()} == {expected is not None}


@pytest.mark.parametrize(
    ("reason", "changed", "members"),
    [
        ("ClusterDeleting", {"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}, THREE),
        ("ClusterNotObserved", {"status": {}}, THREE),
        ("ClusterNotObserved", {"status__clusterToken": ""}, THREE),
        ("Bootstrapping", {"status__clusterID": ""}, THREE[:1]),
        ("ScaledToZero", {"status__observed": {"replicas": 0, "x": 1}}, []),
        (
            "ScaledToZero",
            {"status__observed": {"replicas": 0, "x": 1}},
            [member("c-a", 1, spec__dormant=True)],
        ),
        ("ScaledToZero", {"status__observed": {"replicas": 0, "x": 1}}, THREE[:2]),
        ("NoMembers", {}, []),
        ("Scaling", {}, THREE[:2]),
        ("Scaling", {}, [*THREE, member("c-d", 4)]),
        ("MemberDeleting", {}, [*THREE[:2], member("c-c", 3, metadata__deletionTimestamp="x")]),
        ("AuthNotLatched", {"spec__auth": {"enabled": True}}, THREE),
    ],
)
def test_a_state_in_which_to_wait_has_its_own_reason(
    reason: str, changed: dict[str, Any], members: list[dict[str, Any]]
) -> None:
    """D6, D11."""
    with pytest.raises(ClusterNotReady) as refused:
        read_cluster(cluster(**changed), members, [])
    assert refused.value.reason == reason
    assert "c" in str(refused.value)


def test_conditions_of_the_other_operator_are_not_consulted() -> None:
    """D10: they freeze while everything is down, and are all false under NOSPACE."""
    down = [{"type": "Available", "status": "False", "reason": "QuorumLost"}]
    unready = [{**m, "status": {**m["status"], "conditions": down}} for m in THREE]
    assert len(read_cluster(cluster(status__conditions=down), unready, []).members) == 3


@pytest.mark.parametrize(
    ("phase", "waits"),
    [("Started", True), ("", False), ("Pending", False), ("Complete", False), ("Failed", False)],
)
def test_a_snapshot_under_way_defers(phase: str, waits: bool) -> None:
    """D16; one of another cluster does not."""
    snapshot = {
        "metadata": {"name": "nightly"},
        "spec": {"clusterRef": {"name": "c"}},
        "status": {"phase": phase},
    }
    if waits:
        with pytest.raises(ClusterNotReady, match="nightly"):
            read_cluster(cluster(), THREE, [snapshot])
    else:
        read_cluster(cluster(), THREE, [snapshot])
    snapshot["spec"] = {"clusterRef": {"name": "other"}}
    read_cluster(cluster(), THREE, [snapshot])


def test_credentials_are_presented_only_once_auth_is_latched() -> None:
    """1.3: an Authenticate fails while auth is off."""
    auth = {"enabled": True, "rootCredentialsSecretRef": {"name": "root"}}
    latched = cluster(spec__auth=auth, status__authEnabled=True)
    assert read_cluster(latched, THREE, []).root_secret == "root"
    assert read_cluster(cluster(), THREE, []).root_secret == ""


def test_members_bring_their_ids_quotas_and_restarts() -> None:
    """D11, D18, D21: the option of the member goes before the cluster's."""
    members = [
        member("c-a", 0x1F, spec__options={"quotaBackendBytes": 3 * GIB}),
        member("c-b", 2, spec__options={"quotaBackendBytes": 0}),
        member("c-c", status__memberID="not hex"),
    ]
    observed = {
        "replicas": 3,
        "options": {"quotaBackendBytes": 4 * GIB},
        "storage": {"size": "8Gi"},
    }
    reading = read_cluster(cluster(status__observed=observed), members, [])
    desired = {each.name: each for each in reading.desired({"c-b": 7})}
    assert desired["c-a"].member_id == 0x1F
    assert desired["c-a"].quota_bytes == 3 * GIB
    assert desired["c-b"].quota_bytes is None
    assert desired["c-b"].restarts == 7
    assert desired["c-c"].member_id is None
    assert reading.quota_bytes == 4 * GIB
    assert reading.volume_size == 8 * GIB
    assert read_cluster(cluster(), THREE, []).quota_bytes == 2 * GIB


def test_members_of_another_cluster_or_another_owner_are_none_of_ours() -> None:
    """A label may be anybody's."""
    strangers = [
        member("x-a", 8, spec__clusterName="x"),
        member("c-z", 9, metadata__ownerReferences=[{"uid": "old", "controller": True}]),
    ]
    reading = read_cluster(cluster(), [*THREE, *strangers], [])
    assert [m["metadata"]["name"] for m in reading.members] == ["c-a", "c-b", "c-c"]


def test_the_stop_button_is_said_with_the_name_of_who_was_stopped() -> None:
    """D9."""
    paused = cluster(metadata__annotations={"etcdmaint.io/paused": "true"})
    told = read_cluster(paused, THREE, []).paused
    assert told is not None
    assert "EtcdCluster c" in told
    assert read_cluster(cluster(), THREE, []).paused is None


def test_only_the_etcd_containers_restarts_count() -> None:
    """D18."""
    statuses = [{"name": "sidecar", "restartCount": 9}, {"name": "etcd", "restartCount": 4}]
    assert restart_count({"status": {"containerStatuses": statuses}}) == 4
    assert restart_count({}) == 0
    assert restart_count({"status": {"containerStatuses": None}}) == 0
