"""Deleting, stopping, waiting: what people do to runs, and to the operator, while it works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import (
    ask,
    condition,
    connect,
    defrag,
    defragmentations,
    events_of,
    path_of,
    phase_of,
    status_of,
    waits_for,
)
from tests.cluster.operator_proxy import ApiProxy
from tests.cluster.operators import (
    LEASE,
    OperatorProcess,
    grant_everywhere,
    revoke_everywhere,
    until,
)
from tests.cluster.secrets import put_secret
from tests.cluster.turns import filled, first_turn_stalled, in_flight, slot_is_free
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.member import Member
from tests.controlplane.tls import ClusterTls

pytestmark = pytest.mark.cluster

MERGE = "application/merge-patch+json"


def annotate(plane: ControlPlane, path: str, key: str, value: str | None) -> None:
    body = {"metadata": {"annotations": {key: value}}}
    plane.api.request("PATCH", path, body, content_type=MERGE)


def test_deleting_a_run_that_waits_returns_at_once(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7, D19: it waits for a member that is down, and goes long before it would look again."""
    etcd = filled(etcd_cluster_factory)
    etcd.members[0].kill()
    # Else the run may first wait for a leader: another reason, and another Event.
    etcd.leader()
    connect(plane, namespace, etcd)
    start_operator(timing={"quick_interval": 60.0, "gate_interval": 60.0})
    ask(plane, namespace)

    until(lambda: waits_for(plane, namespace) == "MemberUnreachable", "it waits")
    until(lambda: "DefragDeferred" in events_of(plane, namespace), "it is told")
    assert events_of(plane, namespace) == ["DefragDeferred"]
    began = time.monotonic()
    plane.api.request("DELETE", path_of("etcddefrags", namespace, "now"))
    until(lambda: defrag(plane, namespace) is None, "it is gone")
    assert time.monotonic() - began < 20.0
    assert [member.defrag_count() for member in etcd.members[1:]] == [0, 0]


def test_deleting_a_run_that_runs_finishes_its_member_and_touches_no_other(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7: the object stays until the member is through, and its outcome is written."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    start_operator(kubeconfig=proxy.kubeconfig)
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        member = in_flight(held)
        plane.api.request("DELETE", path_of("etcddefrags", namespace, "now"))
        until(
            lambda: (defrag(plane, namespace) or {})["metadata"].get("deletionTimestamp"), "asked"
        )
        assert member.defragmenting()
    until(lambda: defrag(plane, namespace) is None, "it is gone")
    assert sum(defragmentations(etcd)) == 1
    assert member.defrag_count() == 1
    last = proxy.status_writes("now")[-1]
    assert [row["outcome"] for row in last.rows if row["name"] == member.name] == ["Defragmented"]
    assert slot_is_free(etcd)


def test_a_run_deleted_while_the_operator_is_down_stays_until_its_member_in_flight_is_through(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7, D36: whoever comes next waits for the member, touches no other, and lets the object go."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    first = start_operator(pod="etcdmaint-0", kubeconfig=proxy.kubeconfig)
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        member = in_flight(held)
        first.kill()
        plane.api.request("DELETE", path_of("etcddefrags", namespace, "now"))
        start_operator(pod="etcdmaint-0")

        until(
            lambda: waits_for(plane, namespace) == "WaitingForMember",
            "the member is waited for",
        )
        metadata = (defrag(plane, namespace) or {})["metadata"]
        assert metadata["deletionTimestamp"]
        # Nothing is kept on it that only says how far somebody has come.
        assert metadata.get("annotations", {}) == {}
        assert member.defragmenting()
    until(lambda: defrag(plane, namespace) is None, "it is gone")
    assert sum(defragmentations(etcd)) == 1
    assert member.defrag_count() == 1
    assert slot_is_free(etcd)


def test_a_run_deleted_while_the_operator_is_down_goes_at_once_where_no_member_is_at_stake(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7: it waited, and its cluster does not answer."""
    etcd = filled(etcd_cluster_factory)
    etcd.members[0].kill()
    connect(plane, namespace, etcd)
    first = start_operator(pod="etcdmaint-0")
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) == "Pending", "it waits")
    first.kill()
    plane.api.request("DELETE", path_of("etcddefrags", namespace, "now"))
    assert defrag(plane, namespace) is not None
    start_operator(pod="etcdmaint-0")
    until(lambda: defrag(plane, namespace) is None, "it is gone")
    assert [member.defrag_count() for member in etcd.members[1:]] == [0, 0]


@pytest.fixture
def everywhere(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """Give the operator the rights of a chart without `watchNamespaces`; gives where its Lease is."""
    home = f"{namespace}-system"
    plane.api.create_namespace(home)
    grant_everywhere(plane, "operator", home)
    yield home
    revoke_everywhere(plane, "operator")
    plane.api.delete_namespace(home)


def test_a_namespace_deleted_while_its_run_runs_waits_for_the_member_in_flight(
    plane: ControlPlane,
    namespace: str,
    everywhere: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D7: the connection may go first; the member is finished, and the namespace goes."""
    etcd = filled(etcd_cluster_factory)
    namespace += "-doomed"
    plane.api.create_namespace(namespace)
    connect(plane, namespace, etcd)
    operator = start_operator(
        kubeconfig=proxy.kubeconfig, namespaces=[], lease_namespace=everywhere
    )
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        in_flight(held)
        plane.api.delete_namespace(namespace)
        until(
            lambda: (defrag(plane, namespace) or {})["metadata"].get("deletionTimestamp"), "asked"
        )
        assert held[0].defragmenting()
    until(lambda: defrag(plane, namespace) is None, "the run is gone")
    until(lambda: not exists(plane, namespace), "the namespace is gone")
    assert sum(defragmentations(etcd)) == 1
    assert operator.probe("healthz") == 200
    # In a namespace on its way out nothing can be created: its Events are lost, and that is all.
    assert all('resource="events"' in series for series in operator.forbidden())
    assert operator.complaints() == []
    operator.terminate()


def exists(plane: ControlPlane, namespace: str) -> bool:
    try:
        plane.api.request("GET", f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def test_sigterm_lets_the_member_in_flight_finish_and_another_process_goes_on(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """The drain: no further member is begun, the Lease is given back, the exit code is 0."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    # Long: what is not given back would be waited for.
    lease = {"lease_duration": 200.0, "renew_deadline": 150.0}
    first = start_operator(kubeconfig=proxy.kubeconfig, drain=60.0, **lease)
    first.wait_leading()
    second = start_operator(**lease)
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        in_flight(held)
        first.signal_stop()
        until(lambda: any("waits for members" in r["message"] for r in first.records()), "drains")
        assert first.server.running
    assert first.wait_exit() == 0
    # By its own last word: the second one may be at the next member already.
    rows = proxy.status_writes("now")[-1].rows
    assert [row["name"] for row in rows if row["outcome"] == "Defragmented"] == [held[0].name]
    second.wait_leading()
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]


def test_a_drain_that_is_too_short_leaves_the_member_to_the_next_process(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D33, D36: the slot stays, the member is waited out, nothing is sent twice."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    lease = {"lease_duration": 200.0, "renew_deadline": 150.0}
    first = start_operator(kubeconfig=proxy.kubeconfig, drain=0.5, **lease)
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        member = in_flight(held)
        first.terminate()
        slot = etcd.etcdctl(
            "get", "etcdmaint.io/lock", "--print-value-only", member=other(etcd, member)
        )
        assert member.id_hex in slot.stdout
        heir = start_operator(**lease)
        heir.wait_leading()
        assert member.defragmenting()
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]


def other(etcd: EtcdCluster, member: Member) -> Member:
    return next(each for each in etcd.members if each is not member)


def test_of_two_replicas_one_works_and_after_kill_9_the_other_resumes_within_20_s(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D2, D36, D62: at 15/10/2 s, in mid-run."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    leader = start_operator(kubeconfig=proxy.kubeconfig)
    leader.wait_leading()
    standby = start_operator()
    assert standby.probe("readyz") == 200
    assert not standby.leads()
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        in_flight(held)
        leader.kill()
        killed_at = datetime.now(UTC)
    standby.wait_leading()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}"
    lease = plane.api.request("GET", path)["spec"]
    # By what the standby itself has written there.
    taken_after = datetime.fromisoformat(lease["acquireTime"]) - killed_at
    assert timedelta(0) < taken_after < timedelta(seconds=20)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]


def test_a_finished_run_is_deleted_when_its_time_is_over_also_if_the_operator_was_down(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D5: and one without a time to live is kept."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    first = start_operator()
    ask(plane, namespace, name="kept")
    ask(plane, namespace, name="soon", ttlSecondsAfterFinished=0)
    until(lambda: defrag(plane, namespace, "soon") is None, "gone")
    ask(plane, namespace, name="later", ttlSecondsAfterFinished=20)
    until(lambda: phase_of(plane, namespace, "later") == "Complete", "complete")
    assert first.terminate() == 0
    assert defrag(plane, namespace, "later") is not None
    start_operator()
    until(lambda: defrag(plane, namespace, "later") is None, "gone")
    assert phase_of(plane, namespace, "kept") == "Complete"
    assert defragmentations(etcd) == [3, 3, 3]


def test_a_paused_annotation_stops_a_run_between_two_members_until_it_goes(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D9: on the EtcdConnection, and then on the run itself."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    operator = start_operator(kubeconfig=proxy.kubeconfig)
    connection = path_of("etcdconnections", namespace, "etcd")
    run = path_of("etcddefrags", namespace, "now")

    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        in_flight(held)
        annotate(plane, connection, "etcdmaint.io/paused", "true")
    until(lambda: waits_for(plane, namespace) == "Paused", "paused")
    assert phase_of(plane, namespace) == "Running"
    assert sum(defragmentations(etcd)) == 1
    annotate(plane, run, "etcdmaint.io/paused", "true")
    # A look reads the run before its connection: one that began before must be over.
    looked_twice(operator)
    annotate(plane, connection, "etcdmaint.io/paused", None)
    looked_twice(operator)
    assert waits_for(plane, namespace) == "Paused"
    assert sum(defragmentations(etcd)) == 1
    annotate(plane, run, "etcdmaint.io/paused", None)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]


def looked_twice(operator: OperatorProcess) -> None:
    """Wait until it has read the run as often as takes a whole look."""
    series = (
        'etcdmaint_kubernetes_request_duration_seconds_count{resource="etcddefrags",'
        'result="success",verb="get"}'
    )
    before = operator.metric(series) or 0
    until(lambda: (operator.metric(series) or 0) >= before + 2, "two looks")


@pytest.mark.parametrize("by_annotation", [False, True])
def test_a_dry_run_touches_nothing_and_says_what_would_happen(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
    by_annotation: bool,
) -> None:
    """D8: by the spec and by the annotation."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    start_operator()
    if by_annotation:
        ask(plane, namespace, annotations={"etcdmaint.io/dry-run": "true"})
    else:
        ask(plane, namespace, dryRun=True)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert {row["reason"] for row in status_of(plane, namespace)["members"]} == {"WouldDefragment"}
    assert defragmentations(etcd) == [0, 0, 0]
    assert etcd.etcdctl("get", "etcdmaint.io", "--prefix").stdout == ""


def test_a_run_for_a_cluster_that_is_not_there_waits_a_moment_and_fails(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D6: a connection that is applied a moment later is found; one that never comes is not."""
    # Ready to be connected to: what takes long must not count.
    etcd = filled(etcd_cluster_factory)
    start_operator(timing={"missing_grace": 15.0})
    ask(plane, namespace, name="early")
    ask(plane, namespace, name="never", cluster="nowhere")
    until(lambda: phase_of(plane, namespace, "early") == "Pending", "pending")
    connect(plane, namespace, etcd)
    until(lambda: phase_of(plane, namespace, "early") == "Complete", "complete")
    until(lambda: phase_of(plane, namespace, "never") == "Failed", "failed")
    failed = condition(defrag(plane, namespace, "never") or {}, "Failed")
    assert failed["reason"] == "ClusterNotFound"
    assert "nowhere" in failed["message"]


def test_a_run_waits_for_its_secret_and_goes_on_when_it_is_right(
    plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D51, section 8: Pending, naming Secret and key; no restart, no edit of the run."""
    tls = ClusterTls(tmp_path / "pki")
    etcd = filled(etcd_cluster_factory, tls=tls)
    connect(plane, namespace, etcd, tls={"caSecretRef": {"name": "etcd-ca", "key": "bundle"}})
    connection = path_of("etcdconnections", namespace, "etcd")
    spec = {"spec": {"tls": {"clientCertSecretRef": {"name": "etcd-client"}}}}
    plane.api.request("PATCH", connection, spec, content_type=MERGE)
    operator = start_operator()
    ask(plane, namespace)

    def told() -> str:
        found = condition(defrag(plane, namespace) or {}, "Progressing")
        return f"{found.get('reason')}: {found.get('message')}"

    until(lambda: "CredentialsUnavailable" in told(), "it waits")
    assert "Secret " in told()
    assert "etcd-ca" in told()
    put_secret(plane, namespace, "etcd-ca", bundle=tls.ca_file.read_bytes())
    put_secret(
        plane,
        namespace,
        "etcd-client",
        tls_crt=tls.client_certificate_file.read_bytes(),
        tls_key=tls.client_key_file.read_bytes(),
    )
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]
    assert "PRIVATE KEY" not in operator.log.read_text()


def test_a_standby_that_is_told_to_stop_ends_at_once_and_leaves_the_leader_alone(
    plane: ControlPlane, namespace: str, start_operator: OperatorFactory
) -> None:
    """A rollout stops standbys as well."""
    # Long: neither is waited for.
    options = {"lease_duration": 200.0, "renew_deadline": 150.0, "drain": 120.0}
    leader = start_operator(**options)
    leader.wait_leading()
    standby = start_operator(**options)
    began = time.monotonic()
    assert standby.terminate() == 0
    assert time.monotonic() - began < 20.0
    assert leader.leads()
    assert leader.terminate() == 0
    heir = start_operator(**options)
    heir.wait_leading()
