"""StorageCompressionConfigurations against a real kube-apiserver and real etcds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from etcdmaint.compression.frame import encode
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.defrag.lock import SLOT_KEY
from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import condition, connect, events_of, path_of
from tests.cluster.operators import grant_in, until
from tests.cluster.version_proxy import VersionProxy, version
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import text
from tests.controlplane.kubeapi import ApiError
from tests.unit.api.compression_cases import many

pytestmark = [pytest.mark.cluster, pytest.mark.etcd]

PLURAL = "storagecompressionconfigurations"
QUICK = {
    "interval": 0.5,
    "retry": 0.3,
    "identity": 2.0,
    "audit_retry": 0.5,
    "rpc_timeout": 2.0,
    "walk": {"look": 0.2, "probe": 1.0, "retry": 0.2, "patience": 2.0},
}
MERGE = "application/merge-patch+json"
NOTHING = {"resources": ["*.*"], "algorithm": "None"}
DEFLATE = {"resources": ["configmaps"], "algorithm": "Deflate", "minSize": "1Ki"}


@pytest.fixture(autouse=True)
def kube_system(plane: ControlPlane) -> None:
    """The right to prove whose etcd it is, which a ClusterRole would give."""
    try:
        grant_in(plane, "operator", "kube-system")
    except ApiError as error:
        if error.status != 409:
            raise


@pytest.fixture
def api(plane: ControlPlane, tmp_path: Path) -> Iterator[VersionProxy]:
    """The API server, which says of its release what a test wants."""
    with VersionProxy(plane, tmp_path) as proxy:
        yield proxy


class Policies:
    """The objects of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    def put(
        self, *entries: dict[str, Any], name: str = "policy", cluster: str = "etcd", **spec: Any
    ) -> None:
        """Create one; `cluster` "" for no clusterRef."""
        if cluster:
            spec.setdefault("clusterRef", {"name": cluster, "kind": "EtcdConnection"})
        body = {
            "apiVersion": "etcdmaint.io/v1alpha1",
            "kind": "StorageCompressionConfiguration",
            "metadata": {"name": name},
            "spec": {"resources": list(entries), **spec},
        }
        self.plane.api.request("POST", path_of(PLURAL, self.namespace), body)

    def change(self, name: str = "policy", **spec: Any) -> None:
        """Merge into its spec."""
        path = path_of(PLURAL, self.namespace, name)
        self.plane.api.request("PATCH", path, {"spec": spec}, content_type=MERGE)

    def get(self, name: str = "policy") -> dict[str, Any]:
        """The object."""
        return self.plane.api.request("GET", path_of(PLURAL, self.namespace, name))

    def delete(self, name: str = "policy") -> None:
        """Delete it."""
        self.plane.api.request("DELETE", path_of(PLURAL, self.namespace, name))

    def says(self, kind: str, name: str = "policy") -> tuple[str, str]:
        """Status and reason of a condition."""
        found = condition(self.get(name), kind)
        return str(found.get("status", "")), str(found.get("reason", ""))

    def message(self, kind: str, name: str = "policy") -> str:
        """The message of a condition."""
        return str(condition(self.get(name), kind).get("message", ""))

    def wait(
        self, kind: str, status: str, reason: str, name: str = "policy", timeout: float = 120.0
    ) -> None:
        """Until a condition says so."""
        until(
            lambda: self.says(kind, name) == (status, reason),
            f"{name} {kind}={status}/{reason}",
            timeout,
        )

    def published_says(self, words: str) -> bool:
        """Whether the message of Published has these words."""
        return words in self.message("Published")

    def audit(self) -> dict[str, Any]:
        """What was last counted."""
        return dict(self.get().get("status", {}).get("lastAudit") or {})

    def map_path(self, name: str = "policy") -> str:
        """The path of its ConfigMap."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{name}-storage-compression"

    def map(self, name: str = "policy") -> dict[str, Any] | None:
        """Its ConfigMap, None where there is none."""
        try:
            return self.plane.api.request("GET", self.map_path(name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def file(self, name: str = "policy") -> bytes:
        """What is published, b"" where nothing is."""
        found = self.map(name)
        return found["data"]["storage-compression.yaml"].encode() if found else b""


@pytest.fixture
def policies(plane: ControlPlane, namespace: str) -> Policies:
    return Policies(plane, namespace)


def plant(etcd: EtcdCluster, values: dict[str, bytes]) -> None:
    """Write raw values below /registry/."""
    for key, value in values.items():
        etcd.members[0].gateway.put(f"/registry/{key}".encode(), value)


def kube_system_of(plane: ControlPlane) -> bytes:
    """Namespace kube-system as an API server with --storage-media-type=application/json stores it."""
    uid = plane.api.request("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    metadata = {"name": "kube-system", "uid": uid}
    return json.dumps({"kind": "Namespace", "apiVersion": "v1", "metadata": metadata}).encode()


def test_what_a_person_sees_today_on_1_37(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    api: VersionProxy,
    start_operator: OperatorFactory,
) -> None:
    """R116, R138, R141: valid, not published and why, not supported, counted; then not a write more."""
    connect(plane, namespace, plane.etcd)
    policies.put(DEFLATE)
    operator = start_operator(compression_pace=QUICK, kubeconfig=api.kubeconfig)
    policies.wait("Audited", "True", "Consistent")
    assert policies.says("Valid") == ("True", "Valid")
    assert policies.says("Published") == ("False", "MinCompatibilityTooLow")
    told = policies.message("Published")
    assert "v1.37.2, minimum compatibility version 1.36; it would not start with this file" in told
    assert policies.says("Supported") == ("False", "NoKEP6264")
    assert policies.message("Supported") == "this API server (v1.37.2) has no KEP-6264"
    assert policies.says("Converged") == ("Unknown", "NotInForce")
    assert policies.says("Damaged") == ("False", "NoneFound")
    assert policies.map() is None
    found = policies.get()
    assert "finalizers" not in found["metadata"]
    assert "annotations" not in found["metadata"]
    status = found["status"]
    version = {"version": "v1.37.2", "emulation": "1.37", "minCompatibility": "1.36"}
    assert status["apiServer"] == version
    assert "hash" not in status
    roles = next(
        row
        for row in status["lastAudit"]["resources"]
        if row["resource"] == "clusterroles.rbac.authorization.k8s.io"
    )
    listed = plane.api.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    assert abs(roles["values"] - len(listed)) <= 2
    assert set(roles) == {"resource", "values", "forms"}
    until(lambda: "MinCompatibilityTooLow" in events_of(plane, namespace, "policy"), "told")
    written = len(api.run_writes("policy"))
    series = (
        'etcdmaint_kubernetes_request_duration_seconds_count{resource="version",result="success",'
        'verb="get"}'
    )
    looks = operator.metric(series) or 0
    until(lambda: (operator.metric(series) or 0) >= looks + 5, "five more looks")
    assert len(api.run_writes("policy")) == written
    assert events_of(plane, namespace, "policy") == ["MinCompatibilityTooLow"]
    samples = operator.metrics()
    for sample in (
        'etcdmaint_storage_compression_configurations{condition="Published",status="False"} 1.0',
        'etcdmaint_storage_audits_total{result="consistent"} 1.0',
        f'etcdmaint_storage_values{{form="json",name="policy",namespace="{namespace}"}}',
    ):
        assert sample in samples
    assert operator.complaints() == []
    policies.change(resources=[NOTHING])
    policies.wait("Published", "True", "Published")
    assert policies.audit() == status["lastAudit"]


def test_what_is_published_stays_as_it_is_and_goes_with_its_object(
    plane: ControlPlane, namespace: str, policies: Policies, start_operator: OperatorFactory
) -> None:
    """A15, R117, R113: a policy of None only, on 1.37; changed by hand, deleted, taken, let go."""
    policies.put(NOTHING, cluster="")
    foreign = {"metadata": {"name": "taken-storage-compression"}, "data": {"mine": "x"}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", foreign)
    policies.put(NOTHING, name="taken", cluster="")
    operator = start_operator(compression_pace=QUICK)
    policies.wait("Published", "True", "Published")
    made = policies.map()
    assert made is not None
    data = policies.file()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert made["metadata"]["annotations"] == {"etcdmaint.io/storage-compression-hash": digest}
    assert policies.get()["status"]["hash"] == digest
    loaded = Policy.load(data, stage=Stage.ALPHA, min_compatibility_version="1.37")
    assert loaded.hash == digest
    owner = made["metadata"]["ownerReferences"][0]
    assert owner["uid"] == policies.get()["metadata"]["uid"]
    assert policies.says("Audited") == ("Unknown", "NoClusterRef")

    changed = {"data": {"storage-compression.yaml": "resources: []", "more": "x"}}
    plane.api.request("PATCH", policies.map_path(), changed, content_type=MERGE)
    until(lambda: policies.file() == data, "put right")
    plane.api.request("DELETE", policies.map_path())
    until(lambda: policies.file() == data, "made again")
    until(lambda: events_of(plane, namespace, "policy").count("ConfigMapRestored") == 2, "told")

    policies.change(resources=[{"resources": ["events"], "algorithm": "None"}, NOTHING])
    until(lambda: policies.get()["status"]["hash"] != digest, "another file")
    second = policies.file()
    assert second != data
    policies.change(resources=[NOTHING, {"resources": ["pods"], "algorithm": "Deflate"}])
    policies.wait("Valid", "False", "InvalidSpec")
    assert "spec.resources[1].resources[0]: never takes effect" in policies.message("Valid")
    assert policies.says("Published") == ("False", "InvalidSpec")
    assert policies.file() == second
    assert policies.get()["status"]["hash"] == f"sha256:{hashlib.sha256(second).hexdigest()}"

    policies.wait("Published", "False", "NameTaken", name="taken")
    untouched = policies.map("taken")
    assert untouched is not None
    assert untouched["data"] == {"mine": "x"}
    assert "ownerReferences" not in untouched["metadata"]
    plane.api.request("DELETE", policies.map_path("taken"))
    policies.wait("Published", "True", "Published", name="taken")

    policies.delete()
    until(lambda: policies.map() is None, "collected with its owner")
    assert policies.map("taken") is not None
    publishes = 'etcdmaint_storage_compression_publishes_total{result="restored"}'
    assert operator.metric(publishes) == 2
    assert operator.complaints() == []


def test_what_a_release_that_has_the_kep_will_get(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    api: VersionProxy,
    start_operator: OperatorFactory,
) -> None:
    """R116, R118, R121, R176: by an API server that says it is a 1.38; whoever is older gets nothing new."""
    api.version = version("1.38", "1.37")
    connect(plane, namespace, plane.etcd)
    policies.put(DEFLATE, {"resources": ["secrets"], "algorithm": "Deflate"})
    start_operator(compression_pace=QUICK, kubeconfig=api.kubeconfig)
    policies.wait("Published", "False", "MinCompatibilityTooLow")
    assert policies.says("Valid") == ("True", "SecretsSelected")
    assert policies.map() is None
    api.version = version("1.38", "1.38")
    policies.wait("Published", "True", "Published")
    assert "behind a load balancer other replicas may differ" in policies.message("Published")
    assert policies.says("Supported") == ("Unknown", "NotObserved")
    first = policies.file()
    assert b"minSize: 1024\n" in first
    assert b"rewrite" not in first
    loaded = Policy.load(first, stage=Stage.ALPHA, min_compatibility_version="1.38")
    assert loaded.rule_for("", "configmaps").compresses
    policies.change(stage="beta", resources=[{**DEFLATE, "rewrite": "OnWrite"}])
    policies.wait("Published", "False", "FieldTooNew")
    assert policies.file() == first
    assert "keeps the file that it has" in policies.message("Published")
    api.version = version("1.39", "1.38")
    policies.wait("Published", "True", "Published")
    second = policies.file()
    assert b'rewrite: "OnWrite"\n' in second
    api.version = version("1.39", "1.37", emulation="1.38")
    policies.wait("Published", "False", "MinCompatibilityTooLow")
    policies.change(resources=[{**DEFLATE, "minSize": 64}])
    until(lambda: policies.get()["status"]["observedGeneration"] == 3, "looked at")
    assert policies.file() == second
    reasons = events_of(plane, namespace, "policy")
    assert reasons.count("SecretsSelected") == 1
    assert reasons.count("Published") == 2


def test_of_two_for_one_etcd_the_older_publishes(
    plane: ControlPlane, namespace: str, policies: Policies, start_operator: OperatorFactory
) -> None:
    """R127: by the etcd's own cluster ID, whatever their EtcdConnections are called."""
    for name in ("one", "two"):
        connect(plane, namespace, plane.etcd, name=name)
    policies.put(NOTHING, name="older", cluster="one")
    start = plane.api.request("GET", path_of(PLURAL, namespace, "older"))["metadata"]
    until(lambda: _is_later(plane, namespace, start["creationTimestamp"]), "a second has passed")
    policies.put(NOTHING, name="younger", cluster="two")
    start_operator(compression_pace=QUICK)
    policies.wait("Published", "True", "Published", name="older")
    policies.wait("Published", "False", "Conflict", name="younger")
    assert policies.says("Valid", "younger")[0] == "True"
    assert f"{namespace}/older" in policies.message("Published", "younger")
    assert policies.map("younger") is None
    policies.delete("older")
    policies.wait("Published", "True", "Published", name="younger")


def _is_later(plane: ControlPlane, namespace: str, than: str) -> bool:
    # Objects are told apart by age, which Kubernetes keeps in whole seconds.
    body = {"metadata": {"generateName": "tick-"}}
    made = plane.api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    return bool(made["metadata"]["creationTimestamp"] > than)


def test_whose_etcd_it_is_has_to_be_proven_and_is_followed_without_a_restart(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    api: VersionProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """By the UID of Namespace kube-system: absent, another, encrypted, unreadable prove nothing."""
    api.version = version("1.38", "1.38")
    etcd = etcd_cluster_factory(size=1)
    connection = path_of("etcdconnections", namespace, "etcd")
    policies.put(DEFLATE)
    start_operator(compression_pace=QUICK, kubeconfig=api.kubeconfig)
    policies.wait("Published", "Unknown", "ClusterNotFound")
    assert policies.says("Audited") == ("False", "ClusterNotFound")
    connect(plane, namespace, etcd)
    proof = kube_system_of(plane)
    for value, words in (
        (b"", "has no key /registry/namespaces/kube-system"),
        (b"k8s:enc:aescbc:v1:key1:" + b"x" * 64, "is stored encrypted"),
        (proof.replace(b"uid", b"UID"), "not readable"),
        (proof.replace(b'"uid": "', b'"uid": "0'), "has another UID there"),
    ):
        if value:
            plant(etcd, {"namespaces/kube-system": value})
        until(partial(policies.published_says, words), words)
        assert policies.says("Published") == ("Unknown", "NotThisCluster")
        assert policies.says("Supported") == ("Unknown", "NotThisCluster")
    assert policies.map() is None
    policies.wait("Audited", "True", "Consistent")
    assert "is not proven" in policies.message("Audited")
    plant(etcd, {"namespaces/kube-system": proof})
    policies.wait("Published", "True", "Published")
    other = {"spec": {"endpoints": plane.etcd.client_urls}}
    plane.api.request("PATCH", connection, other, content_type=MERGE)
    own = f"{plane.etcd.members[0].id:016x}"
    until(lambda: policies.audit().get("values", 0) > 100, f"counts the etcd of member {own}")
    plane.api.request("DELETE", connection)
    policies.wait("Audited", "False", "ClusterNotFound")
    assert policies.says("Published") == ("True", "Published")


def test_what_is_stored_is_counted_and_damage_is_told_without_a_name(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """R138, R150: the planted truth, exactly; it gives way to the slot; an etcd that is away is told."""
    etcd = etcd_cluster_factory(size=1)
    bare, frame = kube_system_of(plane), encode(b'{"a":"' + b"x" * 2000 + b'"}')
    values = {f"configmaps/ns/{n:03}": frame for n in range(120)}
    values |= {f"pods/ns/{n:03}": bare for n in range(7)}
    values |= {f"pods/ns/stored{n}": encode(b"") for n in range(3)}
    values |= {f"secrets/ns/top-secret-{n}": b"k8s:enc:aescbc:v1:key1:xxxx" for n in range(5)}
    values |= {f"secrets/ns/other-{n}": b"k8s:enc:kms:v2:vault:\x0a\x01x" for n in range(2)}
    values |= {"secrets/ns/broken": frame[:-1] + b"?", "leases/ns/newer": _newer(frame)}
    plant(etcd, {**values, "namespaces/kube-system": bare})
    gateway = etcd.members[0].gateway
    gateway.put(SLOT_KEY, b'{"holder":"somebody","epoch":"1"}')
    connect(plane, namespace, etcd)
    policies.put(NOTHING)
    operator = start_operator(compression_pace=QUICK)
    policies.wait("Published", "True", "Published")
    policies.wait("Audited", "Unknown", "AuditPending")
    gateway.post("/v3/kv/deleterange", {"key": text(SLOT_KEY)})
    policies.wait("Audited", "True", "Consistent")
    audit = policies.audit()
    assert audit["values"] == len(values) + 1
    assert {row["resource"]: row["forms"] for row in audit["resources"]} == {
        "configmaps": {"deflate": 120},
        "pods": {"json": 7, "stored": 3},
        "secrets": {"encrypted": 7, "checksum": 1},
        "leases.coordination.k8s.io": {"newer": 1},
        "namespaces": {"json": 1},
    }
    assert {form["form"]: form.get("bytes") for form in audit["forms"]} == {
        **dict.fromkeys(("json", "stored", "encrypted", "checksum", "newer")),
        "deflate": 120 * len(frame),
    }
    assert audit["encryption"] == [
        {"provider": "aescbc", "keyName": "key1", "values": 5},
        {"provider": "kms:v2", "keyName": "vault", "values": 2},
    ]
    assert policies.says("Damaged") == ("True", "DamagedValues")
    until(lambda: "DamagedValues" in events_of(plane, namespace, "policy"), "told")
    told = json.dumps(policies.get()) + operator.log.read_text() + operator.metrics()
    assert "top-secret" not in told
    assert "broken" not in told

    etcd.members[0].kill()
    until(lambda: policies.says("Audited")[0] == "False", "it is away")
    assert "is kept" in policies.message("Audited")
    assert policies.audit() == audit
    assert policies.says("Published") == ("True", "Published")
    etcd.members[0].start()
    policies.wait("Audited", "True", "Consistent")
    policies.change(audit={"interval": "0s"})
    policies.wait("Audited", "Unknown", "AuditOff")
    assert policies.audit() == audit


def test_an_audit_ends_with_the_wish_for_it_and_is_not_made_again_by_a_restart(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """At 64Ki/s it would take a minute and a half: interval 0s stops it at once, and reads no more."""
    etcd = etcd_cluster_factory(size=1)
    plant(etcd, {f"configmaps/ns/{n:03}": b"{" + b" " * 100_000 + b"}" for n in range(60)})
    connect(plane, namespace, etcd)
    policies.put(NOTHING, audit={"bytesPerSecond": "64Ki"})
    operator = start_operator(compression_pace=QUICK)
    reads = 'etcdmaint_etcd_rpc_duration_seconds_count{code="OK",method="Range"}'
    until(lambda: (operator.metric(reads) or 0) > 8, "the audit is under way")
    policies.change(audit={"interval": "0s"})
    policies.wait("Audited", "Unknown", "AuditOff")
    ended = "an audit is not wanted any more"
    until(lambda: ended in operator.log.read_text(), ended)
    assert policies.audit() == {}
    policies.change(audit={"interval": "1h", "bytesPerSecond": "1Gi"})
    policies.wait("Audited", "True", "Consistent")
    made = policies.audit()
    assert made["values"] == 60
    operator.terminate()
    operator = start_operator(compression_pace=QUICK)
    looks = (
        'etcdmaint_kubernetes_request_duration_seconds_count{resource="configmaps",'
        'result="success",verb="get"}'
    )
    until(lambda: (operator.metric(looks) or 0) >= 5, "five looks")
    assert policies.audit() == made
    assert operator.metric('etcdmaint_storage_audits_total{result="consistent"}') == 0
    assert operator.complaints() == []


def _newer(frame: bytes) -> bytes:
    """A frame of an algorithm that is not known yet, whole by its checksum."""
    head, body = frame[:4] + b"\x07", frame[9:]
    checksum: int = google_crc32c.value(head + body)
    return head + checksum.to_bytes(4, "little") + body


def test_the_kubernetes_api_may_be_away_and_much_may_be_asked_for(
    plane: ControlPlane,
    namespace: str,
    policies: Policies,
    api: VersionProxy,
    start_operator: OperatorFactory,
) -> None:
    """Two hundred entries; what changed meanwhile is caught up with; whatever is not there is told."""
    connect(plane, namespace, plane.etcd)
    policies.put(NOTHING, cluster="")
    big = many(200)["resources"]
    policies.put(*big, name="big", cluster="")
    kind = {"name": "etcd", "kind": "EtcdCluster"}
    policies.put(NOTHING, name="lost", cluster="", clusterRef=kind)
    operator = start_operator(
        compression_pace=QUICK,
        kubeconfig=api.kubeconfig,
        lease_duration=200.0,
        renew_deadline=150.0,
    )
    policies.wait("Published", "True", "Published")
    policies.wait("Published", "Unknown", "NotThisCluster", name="big")
    policies.wait("Published", "Unknown", "ClusterNotFound", name="lost")
    assert "there is no EtcdCluster" in policies.message("Published", "lost")
    before = policies.file()
    api.away = True
    policies.change(resources=[{"resources": ["events"], "algorithm": "None"}])
    until(lambda: operator.probe("readyz") == 503, "the API is missed")
    assert policies.file() == before
    api.away = False
    until(lambda: policies.file() != before, "caught up with")
    until(lambda: operator.probe("healthz") == 200, "well")
