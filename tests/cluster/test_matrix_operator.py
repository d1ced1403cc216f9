"""The fault matrix where an operator meets it: what is told at the objects, and that nothing is touched.

That the sweep itself bears each fault is proven in tests/etcd; here it is the whole way, from what etcd
or a stranger does to what `kubectl` shows, with the operator well and its other work going on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tests.cluster.operators import OperatorProcess, until
from tests.cluster.peers import (
    BABBLE,
    babbler,
    balancer,
    listening,
    other_grpc,
    silence,
    web_server,
)
from tests.cluster.test_connections_status import put_secret
from tests.cluster.turns import filled, first_turn_stalled
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.certificates import CertificateAuthority
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls

pytestmark = pytest.mark.cluster

PACE = {"interval": 1.0, "retry": 1.0, "rpc_timeout": 2.0}
DIALS = {"dial_timeout": 2.0}


def told(plane: ControlPlane, namespace: str, name: str) -> dict[str, tuple[str, str]]:
    """Reason and message at the EtcdConnection and at the EtcdDefrag of one name."""
    connection = plane.api.request("GET", path_of("etcdconnections", namespace, name))
    at_connection = condition(connection, "Reachable")
    at_run = condition(defrag(plane, namespace, name) or {}, "Progressing")
    return {
        kind: (str(found.get("reason")), str(found.get("message")))
        for kind, found in (("connection", at_connection), ("run", at_run))
    }


def wait_told(plane: ControlPlane, namespace: str, expected: Mapping[str, tuple[str, str]]) -> None:
    """Wait until both objects of each name give the reason and say the words."""
    for name, (reason, words) in expected.items():

        def says(name: str = name, reason: str = reason, words: str = words) -> bool:
            return all(
                (found, words in message) == (reason, True)
                for found, message in told(plane, namespace, name).values()
            )

        try:
            until(says, f"{name}: {reason}, {words}")
        except Exception as error:
            raise AssertionError(f"{name}: {told(plane, namespace, name)}") from error
        assert phase_of(plane, namespace, name) == "Pending"


def give_secrets(
    plane: ControlPlane, namespace: str, name: str, ca: bytes, tls: ClusterTls, *, client: bool
) -> dict[str, Any]:
    """Secrets for one connection; the spec that names them."""
    put_secret(plane, namespace, f"{name}-ca", ca_crt=ca)
    spec: dict[str, Any] = {"caSecretRef": {"name": f"{name}-ca"}}
    if client:
        pair = {"tls_crt": tls.client.certificate, "tls_key": tls.client.key}
        put_secret(plane, namespace, f"{name}-client", **pair)
        spec["clientCertSecretRef"] = {"name": f"{name}-client"}
    return spec


def is_well(operator: OperatorProcess) -> bool:
    return operator.probe("healthz") == 200 and operator.complaints() == []


def test_each_fault_of_tls_is_told_with_its_detail_and_heals_with_its_secret(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
    tmp_path: Path,
) -> None:
    """D51: wrong CA, expired, wrong name, no client certificate, no TLS on either side, http."""
    good = ClusterTls(tmp_path / "good")
    late = ClusterTls(tmp_path / "late")
    elsewhere = ClusterTls(tmp_path / "elsewhere", server_names=["etcd.example"])
    etcd = etcd_cluster_factory(size=1, tls=good)
    expired = etcd_cluster_factory(size=1, tls=late)
    misnamed = etcd_cluster_factory(size=1, tls=elsewhere)
    bare = etcd_cluster_factory(size=1)
    half = etcd_cluster_factory(
        size=2,
        tls=good,
        advertise=lambda name, url: [url.replace("https", "http") if name == "etcd-1" else url],
    )
    # etcd reads its files at each handshake, so it started with a good one and expires now.
    late.authority.issue("", organizations=["etcd"], expired=True).write(
        tmp_path / "late", "server"
    )
    other = CertificateAuthority("somebody else").certificate
    secure_bare = [url.replace("http:", "https:") for url in bare.client_urls]
    in_the_clear = [url.replace("https", "http") for url in etcd.client_urls]
    cases: dict[str, tuple[Any, ClusterTls | None, bytes, str, str]] = {
        "wrong-ca": (etcd, good, other, "TLSFailed", "unable to get local issuer certificate"),
        "expired": (expired, late, b"", "TLSFailed", "certificate has expired"),
        "wrong-name": (misnamed, elsewhere, b"", "TLSFailed", "not valid for '127.0.0.1'"),
        "no-client": (etcd, good, b"", "TLSFailed", "it refuses our client certificate"),
        "no-tls-there": (secure_bare, good, b"", "TLSFailed", "does this port speak TLS"),
        "in-the-clear": (in_the_clear, None, b"", "TLSFailed", "this port speaks TLS"),
        "half": (half.client_urls[:1], good, b"", "TLSFailed", ": http:// is not dialled"),
    }
    for name, (where, tls, ca, _, _) in cases.items():
        spec = {}
        if tls is not None:
            ca = ca or tls.authority.certificate
            client = name != "no-client"
            spec = {"tls": give_secrets(plane, namespace, name, ca, tls, client=client)}
        connect(plane, namespace, where, name=name, **spec)
        ask(plane, namespace, name=name, cluster=name)
    operator = start_operator(pace=PACE, timing=DIALS)
    wait_told(
        plane, namespace, {name: (reason, words) for name, (*_, reason, words) in cases.items()}
    )

    def named_once() -> bool:
        message = told(plane, namespace, "half")["connection"][1]
        return message.count("member etcd-1 ") == 1

    until(named_once, "the member is named, and once")
    servers = [etcd, expired, misnamed, bare, half]
    assert [sum(defragmentations(cluster)) for cluster in servers] == [0] * 5
    put_secret(plane, namespace, "wrong-ca-ca", ca_crt=good.authority.certificate)
    plane.api.request(
        "PATCH",
        path_of("etcdconnections", namespace, "wrong-name"),
        {"spec": {"tls": {"serverName": "etcd.example"}}},
        content_type="application/merge-patch+json",
    )
    for name in ("wrong-ca", "wrong-name"):
        until(lambda name=name: phase_of(plane, namespace, name) == "Complete", name)
    assert [sum(defragmentations(cluster)) for cluster in servers] == [1, 0, 1, 0, 0]
    assert is_well(operator)
    assert "PRIVATE KEY" not in operator.log.read_text()


def test_whatever_else_answers_where_etcd_should_is_told_and_never_quoted(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D12, D51, section 8: strangers, two clusters at once, a Service that hides the members."""
    one, two = etcd_cluster_factory(size=1), etcd_cluster_factory(size=1)
    ports: list[int] = []
    with contextlib.ExitStack() as peers:
        service = peers.enter_context(balancer(lambda: ports[:1]))
        hidden = etcd_cluster_factory(advertise=lambda *_: [service])
        ports += [int(url.rpartition(":")[2]) for url in hidden.client_urls]
        cases: dict[str, tuple[list[str], str, str]] = {
            "web": ([peers.enter_context(listening(web_server))], "NotEtcd", "not etcd"),
            "babbler": ([peers.enter_context(listening(babbler))], "NotEtcd", "not etcd"),
            "grpc": ([peers.enter_context(other_grpc())], "NotEtcd", "not etcd"),
            "silence": (
                [peers.enter_context(listening(silence))],
                "MemberUnreachable",
                "no connection within",
            ),
            "mixed": ([*one.client_urls, *two.client_urls], "MixedClusters", "different clusters"),
            "service": ([service], "MemberUnreachable", f"{service}: member "),
        }
        for name, (urls, _, _) in cases.items():
            connect(plane, namespace, urls, name=name)
            ask(plane, namespace, name=name, cluster=name)
        operator = start_operator(pace=PACE, timing=DIALS)
        wait_told(
            plane, namespace, {name: (reason, words) for name, (_, reason, words) in cases.items()}
        )
        assert [sum(defragmentations(cluster)) for cluster in (one, two, hidden)] == [0, 0, 0]
        babble = BABBLE.decode()
        assert babble not in operator.log.read_text()
        for name in cases:
            assert babble not in str(told(plane, namespace, name))
        assert is_well(operator)


def test_a_connection_that_only_the_models_refuse_is_told_with_its_field(
    plane: ControlPlane, namespace: str, start_operator: OperatorFactory
) -> None:
    """Section 8: CEL cannot tell every address that is none."""
    connect(plane, namespace, ["http://[:::]:2379"], name="odd")
    ask(plane, namespace, name="odd", cluster="odd")
    operator = start_operator(pace=PACE)
    until(lambda: told(plane, namespace, "odd")["connection"][0] == "InvalidSpec", "told")
    until(lambda: told(plane, namespace, "odd")["run"][0] == "InvalidConnection", "told")
    for _, message in told(plane, namespace, "odd").values():
        assert "spec.endpoints[0]" in message
    assert is_well(operator)


def test_a_user_who_is_not_root_ends_the_run_at_once_and_no_password_is_told(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
    tmp_path: Path,
) -> None:
    """D50: terminal, naming what is missing; D51."""
    tls = ClusterTls(tmp_path / "tls", client_certificates=False)
    etcd = etcd_cluster_factory(size=1, tls=tls)
    password = "janes-own-password"
    etcd.enable_auth(users={"jane": (password, ["reader"])})
    spec = give_secrets(plane, namespace, "etcd", tls.authority.certificate, tls, client=False)
    put_secret(plane, namespace, "login", username="jane", password=password)
    auth = {"credentialsSecretRef": {"name": "login"}}
    connect(plane, namespace, etcd, tls=spec, auth=auth)
    operator = start_operator(pace=PACE)
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) == "Failed", "failed")
    failed = condition(defrag(plane, namespace) or {}, "Failed")
    assert failed["reason"] == "PermissionDenied"
    assert defragmentations(etcd) == [0]
    events = plane.api.request("GET", f"/api/v1/namespaces/{namespace}/events")
    seen = (
        operator.log.read_text(),
        operator.metrics(),
        str(events),
        str(defrag(plane, namespace)),
    )
    assert not any(password in text for text in seen)
    assert is_well(operator)


def test_a_turn_that_outlasts_its_timeout_is_waited_out_and_fails_the_run(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D33, D34: no second RPC, nobody else touched; and another cluster's run is not held up (D3)."""
    etcd = filled(etcd_cluster_factory)
    small = etcd_cluster_factory(size=1)
    connect(plane, namespace, etcd)
    connect(plane, namespace, small, name="small")
    # So long that the small etcd is done within it on any machine.
    start_operator(kubeconfig=proxy.kubeconfig, timing={"member_timeout": 5.0})
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)

        until(
            lambda: waits_for(plane, namespace) == "WaitingForMember",
            "the member is waited for",
        )
        ask(plane, namespace, name="other", cluster="small")
        until(lambda: phase_of(plane, namespace, "other") == "Complete", "the other run")
        assert phase_of(plane, namespace) == "Running"
        assert held[0].defragmenting()
    until(lambda: phase_of(plane, namespace) == "Failed", "failed")
    rows = {
        row["name"]: (row["outcome"], row["reason"])
        for row in status_of(plane, namespace)["members"]
    }
    assert rows.pop(held[0].name) == ("Failed", "RPCTimeout")
    assert set(rows.values()) == {("Skipped", "SweepStopped")}
    assert sorted(defragmentations(etcd)) == [0, 0, 1]
    assert held[0].defrag_count() == 1
    assert defragmentations(small) == [1]
    until(lambda: {"MemberFailed", "DefragFailed"} <= {*events_of(plane, namespace)}, "told")
    assert events_of(plane, namespace).count("MemberFailed") == 1


def test_a_cluster_that_a_person_holds_is_waited_for_by_name(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D3, D60, D63: Pending with Queued and who it is, one event, and on as soon as it is free."""
    etcd: EtcdCluster = etcd_cluster_factory()
    etcd.fill(bytes_live=1_000_000, bytes_deleted=4_000_000)
    key = b"etcdmaint.io/lock"
    holder = "ann@laptop boot=other pidns=1 pid=1 start=1"
    door = etcd.members[0].gateway
    door.put(key, json.dumps({"v": 1, "holder": holder, "epoch": "e", "run": "by hand"}).encode())
    connect(plane, namespace, etcd)
    operator = start_operator()
    ask(plane, namespace)

    def waits() -> bool:
        found = condition(defrag(plane, namespace) or {}, "Progressing")
        return found.get("reason") == "Queued" and "ann@laptop" in found["message"]

    until(waits, "it waits for ann")
    assert phase_of(plane, namespace) == "Pending"
    assert defragmentations(etcd) == [0, 0, 0]
    until(lambda: events_of(plane, namespace) == ["DefragDeferred"], "told once")
    etcd.etcdctl("del", key.decode())
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")
    assert defragmentations(etcd) == [1, 1, 1]
    assert door.get_value(key) is None
    assert is_well(operator)
