"""What the status of an EtcdConnection says, when it is written, and how it heals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import condition, connect, path_of
from tests.cluster.operator_proxy import ApiProxy
from tests.cluster.operators import until
from tests.cluster.secrets import put_secret
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls

pytestmark = pytest.mark.cluster

QUICK = {"interval": 1.0, "retry": 0.5, "refresh_members": 2.0, "rpc_timeout": 2.0}


def connection(plane: ControlPlane, namespace: str, name: str = "etcd") -> dict[str, Any]:
    return plane.api.request("GET", path_of("etcdconnections", namespace, name))


def verdict(plane: ControlPlane, namespace: str, kind: str) -> tuple[str, str]:
    found = condition(connection(plane, namespace), kind)
    return str(found.get("status", "")), str(found.get("reason", ""))


def who_leads(plane: ControlPlane, namespace: str) -> list[str]:
    """The IDs of the members that are told to lead."""
    rows = connection(plane, namespace)["status"]["members"]
    return [row["memberID"] for row in rows if row.get("role") == "leader"]


def test_a_connection_shows_its_members_and_what_becomes_of_them(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """Reachable and Healthy follow the members, by what etcd itself says."""
    etcd = etcd_cluster_factory()
    connect(plane, namespace, etcd)
    operator = start_operator(pace=QUICK)
    until(lambda: verdict(plane, namespace, "Healthy") == ("True", "Healthy"), "healthy")
    found = connection(plane, namespace)
    assert "finalizers" not in found["metadata"]
    assert found["metadata"].get("annotations", {}) == {}
    members = {row["memberID"]: row for row in found["status"]["members"]}
    assert set(members) == {f"{member.id:016x}" for member in etcd.members}
    until(lambda: who_leads(plane, namespace) == [f"{etcd.leader().id:016x}"], "the leader is told")
    assert all(row["dbSize"] >= row["dbSizeInUse"] > 0 for row in members.values())
    assert all(row["version"].startswith("3.7") for row in members.values())
    etcd.followers()[0].kill()
    until(lambda: verdict(plane, namespace, "Reachable")[0] == "False", "a member is missed")
    message = condition(connection(plane, namespace), "Reachable")["message"]
    down = next(member for member in etcd.members if not member.answers)
    assert down.name in message
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "False", "it is not well")
    down.start()
    until(lambda: verdict(plane, namespace, "Healthy") == ("True", "Healthy"), "healed")
    assert "etcdmaint_member_db_size_bytes{" in operator.metrics()
    assert operator.complaints() == []


def test_the_status_is_not_written_again_while_nothing_changes(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """It lives in an etcd that is to stay small: one write, however often it is measured."""
    etcd = etcd_cluster_factory(size=1)
    # So large that a page more or less, which etcd uses as it likes, is no news.
    etcd.fill(bytes_live=2_000_000)
    connect(plane, namespace, etcd)
    # A member that does not answer in time would be news.
    pace = {**QUICK, "interval": 0.2, "rpc_timeout": 30.0}
    operator = start_operator(kubeconfig=proxy.kubeconfig, pace=pace)
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "healthy")
    series = 'etcdmaint_etcd_rpc_duration_seconds_count{code="OK",method="Status"}'
    before = operator.metric(series) or 0
    until(lambda: (operator.metric(series) or 0) >= before + 10, "measured ten times")
    assert len(proxy.status_writes("etcd")) == 1
    etcd.fill(bytes_live=40_000_000, prefix="more/")
    until(lambda: len(proxy.status_writes("etcd")) >= 2, "a size has moved")


def test_one_status_a_member_is_all_that_a_measurement_costs(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """The issue's figure, by etcd's own count of RPCs; the health probe of one voter apart."""
    etcd = etcd_cluster_factory()
    connect(plane, namespace, etcd)
    # A member that does not answer in time would be looked for again.
    patient = {"rpc_timeout": 30.0, "refresh_members": 3600.0}
    start_operator(pace={**QUICK, "interval": 0.2, **patient})
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "healthy")
    member = etcd.members[0]

    def handled() -> dict[str, float]:
        prefix = "grpc_server_handled_total{"
        return {
            sample: count
            for sample, count in member.metrics().items()
            if sample.startswith(prefix) and count
        }

    def statuses(samples: dict[str, float]) -> float:
        return sum(count for sample, count in samples.items() if '"Status"' in sample)

    began, before = time.monotonic(), handled()
    until(lambda: statuses(handled()) >= statuses(before) + 10, "ten more")
    after = handled()
    took = time.monotonic() - began
    grown = {
        sample.split("grpc_method=")[1].split('"')[1]: count - before.get(sample, 0)
        for sample, count in after.items()
        if count > before.get(sample, 0)
    }
    # Besides, one voter of the cluster is asked for one key, at most once a second.
    assert grown.pop("Range", 0) <= took + 1
    assert set(grown) == {"Status"}


@pytest.fixture
def tls(tmp_path: Path) -> ClusterTls:
    return ClusterTls(tmp_path / "pki")


def test_a_secret_that_is_missing_lacks_a_key_or_holds_rubbish_is_named_and_heals(
    plane: ControlPlane,
    namespace: str,
    tls: ClusterTls,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D51, section 8: which Secret, which key; and well again by itself."""
    etcd = etcd_cluster_factory(size=1, tls=tls)
    ca = tls.ca_file.read_bytes()
    certificate = tls.client_certificate_file.read_bytes()
    key = tls.client_key_file.read_bytes()
    connect(
        plane,
        namespace,
        etcd,
        tls={
            "caSecretRef": {"name": "etcd-ca"},
            "clientCertSecretRef": {"name": "etcd-client"},
        },
    )
    operator = start_operator(pace={"retry": 1.0})

    def told() -> str:
        return str(condition(connection(plane, namespace), "Reachable").get("message", ""))

    until(lambda: "etcd-ca does not exist" in told(), "the Secret is missed")
    put_secret(plane, namespace, "etcd-ca", other="x")
    until(lambda: "key ca.crt: is missing" in told(), "the key is missed")
    put_secret(plane, namespace, "etcd-ca", ca_crt="rubbish of mine")
    until(lambda: "etcd-ca, key ca.crt: holds no" in told(), "rubbish is told")
    put_secret(plane, namespace, "etcd-ca", ca_crt=ca)
    until(lambda: "etcd-client does not exist" in told(), "the next is missed")
    put_secret(plane, namespace, "etcd-client", tls_crt=certificate, tls_key="rubbish of mine")
    until(lambda: "etcd-client, key tls.key: holds no" in told(), "rubbish is told")
    assert verdict(plane, namespace, "Reachable") == ("False", "CredentialsUnavailable")
    assert verdict(plane, namespace, "Healthy")[0] == "Unknown"
    put_secret(plane, namespace, "etcd-client", tls_crt=certificate, tls_key=key)
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "healed")
    log = operator.log.read_text()
    assert "rubbish of mine" not in log
    assert "PRIVATE KEY" not in log
    assert "rubbish of mine" not in str(connection(plane, namespace))


def test_a_wrong_secret_is_healed_within_30_s_at_the_default_pace(
    plane: ControlPlane,
    namespace: str,
    tls: ClusterTls,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """Section 8: the Secret is read again without anybody touching the EtcdConnection."""
    etcd = etcd_cluster_factory(size=1, tls=tls)
    spec = {"caSecretRef": {"name": "etcd-ca"}, "clientCertSecretRef": {"name": "etcd-client"}}
    connect(plane, namespace, etcd, tls=spec)
    start_operator()
    until(lambda: verdict(plane, namespace, "Reachable")[0] == "False", "missed")
    put_secret(plane, namespace, "etcd-ca", ca_crt=tls.ca_file.read_bytes())
    put_secret(
        plane,
        namespace,
        "etcd-client",
        tls_crt=tls.client_certificate_file.read_bytes(),
        tls_key=tls.client_key_file.read_bytes(),
    )
    began = time.monotonic()
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "healed", 40)
    assert time.monotonic() - began < 30.0


def test_a_connection_to_nowhere_says_what_is_wrong_and_harms_no_other(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """A refused port, and HTTP where etcd should be."""
    etcd = etcd_cluster_factory(size=1)
    connect(plane, namespace, ["http://127.0.0.1:1"], name="refused")
    connect(plane, namespace, etcd)
    start_operator(pace=QUICK)
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "the good one")

    def refused() -> dict[str, Any]:
        return condition(connection(plane, namespace, "refused"), "Reachable")

    until(lambda: refused().get("status") == "False", "the bad one")
    until(lambda: refused()["reason"] == "MemberUnreachable", "and why")
    assert "127.0.0.1:1" in refused()["message"]


def test_a_deleted_connection_goes_at_once_and_leaves_no_series(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """No finalizer is ever put on one."""
    etcd = etcd_cluster_factory(size=1)
    connect(plane, namespace, etcd)
    operator = start_operator(pace=QUICK)
    until(lambda: "etcdmaint_member_db_size_bytes{" in operator.metrics(), "measured")
    plane.api.request("DELETE", path_of("etcdconnections", namespace, "etcd"))
    until(lambda: "etcdmaint_member_db_size_bytes{" not in operator.metrics(), "gone")


def test_a_wrong_password_is_told_apart_and_healed_by_the_right_one(
    plane: ControlPlane,
    namespace: str,
    tls: ClusterTls,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D50, D51: the password is read again, and is in no message."""
    etcd = etcd_cluster_factory(tls=tls)
    etcd.enable_auth(root_password="right-one")
    put_secret(plane, namespace, "etcd-ca", ca_crt=tls.ca_file.read_bytes())
    put_secret(
        plane,
        namespace,
        "etcd-client",
        tls_crt=tls.client_certificate_file.read_bytes(),
        tls_key=tls.client_key_file.read_bytes(),
    )
    put_secret(plane, namespace, "etcd-root", password="wrong-one")
    connect(
        plane,
        namespace,
        etcd,
        tls={"caSecretRef": {"name": "etcd-ca"}, "clientCertSecretRef": {"name": "etcd-client"}},
        auth={"credentialsSecretRef": {"name": "etcd-root"}},
    )
    operator = start_operator(pace={"retry": 1.0})
    wrong = ("False", "AuthenticationFailed")
    until(lambda: verdict(plane, namespace, "Reachable") == wrong, "told apart")
    put_secret(plane, namespace, "etcd-root", password="right-one")
    until(lambda: verdict(plane, namespace, "Healthy")[0] == "True", "healed")
    seen = operator.log.read_text() + str(connection(plane, namespace)) + operator.metrics()
    assert "wrong-one" not in seen
    assert "right-one" not in seen
