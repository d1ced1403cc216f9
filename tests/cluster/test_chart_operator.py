"""What the chart's Deployment would run, run: its command, as its account, with its rights alone.

Only the port, and where the API server is, are the test's own. A run is carried out on a real etcd,
everything is scraped, and the API server is taken away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.observability.catalogue import CATALOGUE
from tests.cluster.chart import CHART, Manifest, helm, named, of_kind, rendered
from tests.cluster.objects import CRDS
from tests.cluster.operators import wait_allowed
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.ports import Ports
from tests.controlplane.processes import NotReady, Server, wait_until
from tests.unit.observability.promtool import complaints

pytestmark = [pytest.mark.cluster, pytest.mark.etcd]

# Asked for often, so that a lost API server and a new leader are noticed in seconds; and held so long
# that no busy machine lets it lapse.
SETTINGS = (
    "--set=leaderElection.leaseDuration=300s",
    "--set=leaderElection.renewDeadline=200s",
    "--set=leaderElection.retryPeriod=2s",
)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/sys/leases/x-etcdmaint"
CONNECTIONS = "/apis/etcdmaint.io/v1alpha1/namespaces"
DEFRAGS = "/apis/etcd-operator.cozystack.io/v1alpha2/namespaces"


class Replica(Server):
    """The operator container of one Pod."""

    def __init__(self, pod: str, flags: list[str], folder: Path, kubeconfig: Path) -> None:
        self.ports = Ports()
        self.port = self.ports.take()
        local = [flag for flag in flags if not flag.startswith("--listen-address=")]
        command = [sys.executable, "-m", "etcdmaint", *local]
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "POD_NAME": pod,
            "POD_NAMESPACE": "sys",
        }
        arguments = [*command, f"--listen-address=127.0.0.1:{self.port}"]
        super().__init__(pod, arguments, folder / f"{pod}.log", environment)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a GET; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=30
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def leads(self) -> bool:
        return sample(self.get("/metrics")[1], "leader_election_master_status") == 1

    def end(self) -> None:
        self.kill()
        self.ports.close()


def sample(text: str, name: str, *labels: str) -> float | None:
    """The sum of the samples of that name with these labels; None where there is none."""
    lines = [line for line in text.splitlines() if line.partition(" ")[0].partition("{")[0] == name]
    values = [
        float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in labels)
    ]
    return sum(values) if values else None


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of this module's own, since the chart's CRDs are the whole cluster's."""
    with ControlPlane(tmp_path_factory.mktemp("chart")) as plane:
        for name in ("sys", "team-a"):
            plane.api.create_namespace(name)
        folder = tmp_path_factory.mktemp("helm")
        install = ("install", "x", str(CHART), "--namespace=sys", *SETTINGS)
        helm(*install, folder=folder, kubeconfig=plane.kubeconfig())
        for crd in CRDS:
            plane.wait_established(crd)
        yield plane


@contextmanager
def deployed(
    plane: ControlPlane, folder: Path, *settings: str
) -> Iterator[tuple[Replica, Replica]]:
    """Both of the Deployment's replicas, with these values; the first one leads."""
    admin = plane.kubeconfig()
    upgrade = ("upgrade", "x", str(CHART), "--namespace=sys", *SETTINGS, *settings)
    helm(*upgrade, folder=folder, kubeconfig=admin)
    manifests = rendered(folder, *SETTINGS, *settings)
    pod = named(manifests, "Deployment", "x-etcdmaint")["spec"]["template"]["spec"]
    groups = ["system:serviceaccounts", "system:serviceaccounts:sys"]
    user = f"system:serviceaccount:sys:{pod['serviceAccountName']}"
    kubeconfig = plane.kubeconfig(user, groups)
    wait_bound(plane, manifests, pod["serviceAccountName"])
    (container,) = pod["containers"]
    first, second = (
        Replica(name, container["args"], folder, kubeconfig) for name in ("pod-1", "pod-2")
    )
    try:
        first.start()
        first.wait_until(first.leads, "leads", 120.0)
        second.start()
        second.wait_until(lambda: second.get("/readyz")[0] == 200, "ready", 120.0)
        yield first, second
    finally:
        first.end()
        second.end()
        # Nobody is left to let it go.
        plane.kubectl("delete", "lease", "x-etcdmaint", "--namespace=sys", "--ignore-not-found")


def wait_bound(plane: ControlPlane, manifests: list[Manifest], account: str) -> None:
    """Wait until the authorizer knows every role that was just bound to the account.

    A Pod takes longer to start than that.
    """
    for kind in ("Role", "ClusterRole"):
        for binding in of_kind(manifests, f"{kind}Binding"):
            if [each["name"] for each in binding["subjects"]] == [account]:
                role = binding["roleRef"]["name"]
                namespace = binding["metadata"].get("namespace", "")
                rules = next(
                    each["rules"]
                    for each in of_kind(manifests, kind)
                    if each["metadata"]["name"] == role
                    and each["metadata"].get("namespace", "") == namespace
                )
                user = f"system:serviceaccount:sys:{account}"
                wait_allowed(plane, user, rules[-1], namespace)


@pytest.fixture
def replicas(plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """The replicas by the chart's defaults."""
    with deployed(plane, tmp_path) as both:
        yield both


def connect(plane: ControlPlane, etcd: EtcdCluster, name: str) -> None:
    """An EtcdConnection, and a run on it."""
    connection = {
        "apiVersion": "etcdmaint.io/v1alpha1",
        "kind": "EtcdConnection",
        "metadata": {"name": name},
        "spec": {"endpoints": list(etcd.client_urls)},
    }
    run = {
        "apiVersion": "etcd-operator.cozystack.io/v1alpha2",
        "kind": "EtcdDefrag",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"kind": "EtcdConnection", "name": name},
            "rule": {"all": True},
            "ttlSecondsAfterFinished": 3600,
        },
    }
    plane.api.request("POST", f"{CONNECTIONS}/team-a/etcdconnections", connection)
    plane.api.request("POST", f"{DEFRAGS}/team-a/etcddefrags", run)


def status(plane: ControlPlane, name: str) -> dict[str, Any]:
    run = plane.api.request("GET", f"{DEFRAGS}/team-a/etcddefrags/{name}")
    found: dict[str, Any] = run.get("status", {})
    return found


@pytest.mark.parametrize(
    ("name", "settings"),
    [("everywhere", ()), ("in-one-namespace", ("--set=watchNamespaces={team-a}",))],
)
def test_the_deployments_command_does_its_work_with_the_charts_rights_alone(
    plane: ControlPlane,
    tmp_path: Path,
    etcd_cluster_factory: EtcdClusterFactory,
    name: str,
    settings: tuple[str, ...],
) -> None:
    etcd = etcd_cluster_factory(size=1)
    etcd.fill(bytes_live=1_000_000, bytes_deleted=20_000_000)
    connect(plane, etcd, name)
    with deployed(plane, tmp_path, *settings) as (first, second):
        over = ("Complete", "Failed")
        wait_until(lambda: status(plane, name).get("phase") in over, "the run is over", 120.0)
        assert status(plane, name)["phase"] == "Complete", status(plane, name)
        assert etcd.members[0].defrag_count() == 1
        key = ('namespace="team-a"', f'name="{name}"', 'kind="EtcdConnection"')
        first.wait_until(
            lambda: sample(first.get("/metrics")[1], "etcdmaint_member_db_size_bytes", *key),
            "sizes are measured",
            120.0,
        )
        # The run's last phase is written before it is counted.
        with contextlib.suppress(NotReady):
            first.wait_until(lambda: counted(first.get("/metrics")[1], key), "counted", 60.0)
        check_the_counts(first.get("/metrics")[1], key)
        # No verb was missing, whoever asked: our own requests by their count, kopf by its log.
        for replica in (first, second):
            text = replica.get("/metrics")[1]
            requests = "etcdmaint_kubernetes_request_duration_seconds_count"
            assert sample(text, requests, 'result="success"')
            assert not sample(text, requests, 'result="forbidden"')
            assert "orbidden" not in replica.log_text()
            assert "ermission" not in replica.log_text()
            assert "Traceback" not in replica.log_text()
        assert sample(second.get("/metrics")[1], "leader_election_master_status") == 0


def check_the_counts(text: str, key: tuple[str, ...]) -> None:
    """One run of one member is told in full."""
    assert sample(text, "etcdmaint_runs_terminal_total", 'phase="Complete"') == 1
    assert sample(text, "etcdmaint_members_processed_total", 'outcome="Defragmented"') == 1
    assert (sample(text, "etcdmaint_member_reclaimed_bytes_total") or 0) > 10_000_000
    assert sample(text, "etcdmaint_member_defrag_duration_seconds_count") == 1
    assert sample(text, "etcdmaint_sweep_overhead_seconds_count") == 1
    assert (sample(text, "etcdmaint_runs", 'phase="Complete"') or 0) >= 1
    assert sample(text, "etcdmaint_active_runs") == 0
    assert sample(text, "etcdmaint_cluster_healthy", *key) == 1
    assert sample(text, "etcdmaint_last_success_timestamp_seconds", *key)
    rpcs = ("etcdmaint_etcd_rpc_duration_seconds_count", 'method="Defragment"', 'code="OK"')
    assert sample(text, *rpcs) == 1


def counted(text: str, key: tuple[str, ...]) -> bool:
    """Whether everything is told by now."""
    try:
        check_the_counts(text, key)
    except AssertionError:
        return False
    return True


def test_the_names_of_a_live_scrape_are_the_catalogues(
    replicas: tuple[Replica, Replica],
) -> None:
    known = {each.name for each in CATALOGUE}
    for replica in replicas:
        lines = replica.get("/metrics")[1].splitlines()
        served = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        ours = {name for name in served if not name.startswith(("process_", "python_"))}
        assert ours <= known
        assert len(ours) > 15


def test_promtool_has_nothing_to_say_of_a_live_scrape(replicas: tuple[Replica, Replica]) -> None:
    for replica in replicas:
        assert complaints(replica.get("/metrics")[1]) == ""


def test_a_replica_that_lost_the_api_server_is_not_ready_but_alive_and_heals(
    plane: ControlPlane, replicas: tuple[Replica, Replica]
) -> None:
    _, standby = replicas
    assert standby.get("/readyz") == (200, "ok\n")
    plane.pause()
    try:
        standby.wait_until(lambda: standby.get("/readyz")[0] == 503, "not ready", 120.0)
        assert standby.get("/readyz")[1].startswith("kubernetes")
        assert standby.get("/healthz") == (200, "ok\n")
    finally:
        plane.resume()
    standby.wait_until(lambda: standby.get("/readyz")[0] == 200, "ready again", 120.0)


def test_a_leader_that_is_told_to_end_hands_over_at_once(
    plane: ControlPlane, replicas: tuple[Replica, Replica]
) -> None:
    first, second = replicas
    os.kill(first.pid, signal.SIGTERM)
    wait_until(lambda: not first.running, "ended", 120.0)
    # Well before the Lease would have run out, since it was let go.
    second.wait_until(second.leads, "leads", 60.0)
    lease = plane.api.request("GET", LEASE)
    assert lease["spec"]["holderIdentity"] == "pod-2"


def test_the_account_is_the_one_that_the_bindings_name(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    pod = named(manifests, "Deployment", "x-etcdmaint")["spec"]["template"]["spec"]
    (binding,) = (
        each
        for each in of_kind(manifests, "ClusterRoleBinding")
        if each["metadata"]["name"] == "x-etcdmaint"
    )
    assert [each["name"] for each in binding["subjects"]] == [pod["serviceAccountName"]]
