"""The chart against a real kube-apiserver: applied, installed, upgraded, and taken away again.

There is no kubelet here, so no Pod ever runs. What a Pod would do, the tests do in its place: they
run the uninstall hook's own command as the hook's own account, and then say in the Job's status
that it is complete, which is what helm waits for.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chart import (
    CHART,
    ROOT,
    VALUES,
    copy_of_the_chart,
    helm,
    helm_command,
    helm_environment,
    template,
)
from tests.cluster.objects import CRDS
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until

pytestmark = pytest.mark.cluster

DEFRAGS = "/apis/etcd-operator.cozystack.io/v1alpha2"
FINALIZER = "etcdmaint.io/operator"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of this module's own: the chart's CRDs are the whole cluster's."""
    with ControlPlane(tmp_path_factory.mktemp("chart"), controllers=True) as plane:
        for name in ("sys", "team-a", "team-b"):
            plane.api.create_namespace(name)
        yield plane


def account(plane: ControlPlane, name: str, namespace: str = "sys") -> Path:
    """A kubeconfig of a ServiceAccount, with the rights that are bound to it and no other."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return plane.kubeconfig(f"system:serviceaccount:{namespace}:{name}", groups)


def get(plane: ControlPlane, path: str) -> dict[str, Any] | None:
    try:
        return plane.api.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_api_server_takes_every_manifest_as_it_is(
    plane: ControlPlane, tmp_path: Path, values: Path
) -> None:
    # The kind ServiceMonitor is not installed here.
    arguments = (f"--values={values}", "--set=serviceMonitor.enabled=false", "--no-hooks")
    manifests = template(tmp_path, *arguments).stdout
    apply = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
    done = plane.kubectl(*apply, stdin=manifests, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    hooks = template(tmp_path, f"--values={values}", "--show-only=templates/uninstall-hook.yaml")
    done = plane.kubectl(*apply, stdin=hooks.stdout, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def release(plane: ControlPlane, tmp_path: Path) -> Iterator[str]:
    """The chart, installed as `x`; uninstalled at the end unless the test did."""
    admin = plane.kubeconfig()
    helm("install", "x", str(CHART), "--namespace=sys", folder=tmp_path, kubeconfig=admin)
    for crd in CRDS:
        plane.wait_established(crd)
    yield "x"
    gone = ("uninstall", "x", "--namespace=sys", "--no-hooks", "--ignore-not-found")
    helm(*gone, folder=tmp_path, kubeconfig=admin)


@pytest.mark.usefixtures("release")
def test_an_upgrade_changes_the_crds_too(plane: ControlPlane, tmp_path: Path) -> None:
    chart = copy_of_the_chart(tmp_path)
    path = chart / "templates" / "crds" / "etcddefrags.etcd-operator.cozystack.io.yaml"
    text = path.read_text()
    path.write_text(text.replace("shortNames: [edf]", "shortNames: [edf, newer]"))
    assert path.read_text() != text
    upgrade = ("upgrade", "x", str(chart), "--namespace=sys", "--set=replicaCount=3")
    helm(*upgrade, folder=tmp_path, kubeconfig=plane.kubeconfig())
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/etcddefrags.etcd-operator"
    names = plane.api.request("GET", f"{crd}.cozystack.io")["spec"]["names"]
    assert names["shortNames"] == ["edf", "newer"]
    deployment = plane.api.request("GET", "/apis/apps/v1/namespaces/sys/deployments/x-etcdmaint")
    assert deployment["spec"]["replicas"] == 3


def may(
    plane: ControlPlane,
    verb: str,
    resource: str,
    namespace: str = "team-a",
    user: str = "x-etcdmaint",
) -> bool:
    """Whether the real authorizer lets a ServiceAccount of ours do that."""
    resource, _, name = resource.partition("@")
    resource, slash, subresource = resource.partition("/")
    plural, _, group = resource.partition(".")
    account = f"system:serviceaccount:sys:{user}"
    return plane.api.may(account, verb, group, plural + slash + subresource, namespace, name)


def wait_may(plane: ControlPlane, *asked: str) -> None:
    """Wait until it does: the authorizer learns a little later of what was just bound."""
    wait_until(lambda: may(plane, *asked), " ".join(asked), 60)


@pytest.mark.usefixtures("release")
def test_the_authorizer_lets_the_operator_do_its_work_and_nothing_else(
    plane: ControlPlane,
) -> None:
    cozystack = "etcd-operator.cozystack.io"
    foreign = f"leases.coordination.k8s.io@aa20b3a9.{cozystack}"
    for verb, resource, namespace in (
        ("list", f"etcddefrags.{cozystack}", ""),
        ("watch", f"etcddefrags.{cozystack}", ""),
        ("patch", f"etcddefrags.{cozystack}@one", "team-a"),
        ("patch", f"etcddefrags.{cozystack}/status@one", "team-a"),
        ("delete", f"etcddefrags.{cozystack}@one", "team-a"),
        ("watch", "etcdconnections.etcdmaint.io", ""),
        ("patch", "etcdconnections.etcdmaint.io/status@one", "team-a"),
        ("watch", "storagecompressionconfigurations.etcdmaint.io", ""),
        ("patch", "storagecompressionconfigurations.etcdmaint.io/status@one", "team-a"),
        ("update", "configmaps@one-storage-compression", "team-a"),
        ("get", "namespaces@kube-system", ""),
        ("list", f"etcdmembers.{cozystack}", "team-a"),
        ("get", "secrets@tls", "team-a"),
        ("get", "pods@etcd-0", "team-a"),
        ("create", "events", "team-a"),
        ("list", foreign, ""),
        ("get", "leases.coordination.k8s.io@x-etcdmaint", "sys"),
        ("update", "leases.coordination.k8s.io@x-etcdmaint", "sys"),
        ("create", "leases.coordination.k8s.io", "sys"),
    ):
        wait_may(plane, verb, resource, namespace)
    for verb, resource, namespace in (
        ("list", "secrets", "team-a"),
        ("watch", "secrets", ""),
        ("create", f"etcddefrags.{cozystack}", "team-a"),
        ("patch", "etcdconnections.etcdmaint.io@one", "team-a"),
        ("patch", f"etcdclusters.{cozystack}@one", "team-a"),
        ("delete", "pods@one", "team-a"),
        ("list", "leases.coordination.k8s.io", ""),
        ("update", "leases.coordination.k8s.io@somebodys", "sys"),
        ("update", foreign, "sys"),
        ("delete", "leases.coordination.k8s.io@x-etcdmaint", "sys"),
        ("list", "pods", "team-a"),
        ("list", "namespaces", ""),
        ("get", "namespaces@default", ""),
        ("list", "configmaps", "team-a"),
        ("delete", "configmaps@one", "team-a"),
        ("patch", "storagecompressionconfigurations.etcdmaint.io@one", "team-a"),
    ):
        assert not may(plane, verb, resource, namespace), f"{verb} {resource}"


@pytest.mark.usefixtures("release")
def test_the_other_controllers_lease_is_found_in_any_namespace_by_its_name(
    plane: ControlPlane,
) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "aa20b3a9.etcd-operator.cozystack.io"},
        "spec": {"holderIdentity": "other"},
    }
    plane.api.request("POST", "/apis/coordination.k8s.io/v1/namespaces/team-b/leases", lease)
    account(plane, "x-etcdmaint")
    wait_may(plane, "list", "leases.coordination.k8s.io@aa20b3a9.etcd-operator.cozystack.io", "")
    listing = ("get", "leases", "--all-namespaces", "--output=name")
    by_name = ("--field-selector", "metadata.name=aa20b3a9.etcd-operator.cozystack.io")
    user = "system:serviceaccount:sys:x-etcdmaint"
    assert "aa20b3a9" in plane.kubectl(*listing, *by_name, user=user).stdout
    assert plane.kubectl(*listing, user=user, check=False).returncode != 0


def unfinished_run(plane: ControlPlane, name: str) -> str:
    """An EtcdDefrag with our finalizer and somebody else's; its path."""
    body = {
        "apiVersion": "etcd-operator.cozystack.io/v1alpha2",
        "kind": "EtcdDefrag",
        "metadata": {"name": name, "finalizers": [FINALIZER, "example.com/other"]},
        "spec": {"clusterRef": {"name": "etcd"}},
    }
    plane.api.request("POST", f"{DEFRAGS}/namespaces/team-a/etcddefrags", body)
    return f"{DEFRAGS}/namespaces/team-a/etcddefrags/{name}"


def etcdmaint(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, as it would run in a Pod of that account."""
    return subprocess.run(
        [sys.executable, "-m", "etcdmaint", *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


JOB = "/apis/batch/v1/namespaces/sys/jobs/x-etcdmaint-uninstall"
DEPLOYMENT = "/apis/apps/v1/namespaces/sys/deployments/x-etcdmaint"


@contextmanager
def uninstalling(plane: ControlPlane, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`helm uninstall` under way, up to where it waits for the hook's Job."""
    process = subprocess.Popen(
        helm_command("uninstall", "x", "--namespace=sys", kubeconfig=plane.kubeconfig()),
        env=helm_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: get(plane, JOB) is not None, "the hook's Job", 120.0)
        yield process
    finally:
        process.kill()
        process.communicate()


def end_job(plane: ControlPlane, *conditions: str) -> None:
    """What the Job controller would write of a Job whose Pod has ended."""
    now = "2026-01-01T00:00:00Z"
    status: dict[str, Any] = {
        "startTime": now,
        "uncountedTerminatedPods": {},
        "conditions": [
            {"type": each, "status": "True", "lastTransitionTime": now} for each in conditions
        ],
    }
    status |= {"completionTime": now, "succeeded": 1} if "Complete" in conditions else {"failed": 1}
    content_type = "application/merge-patch+json"
    plane.api.request("PATCH", f"{JOB}/status", {"status": status}, content_type=content_type)


@pytest.mark.usefixtures("release")
def test_uninstalling_leaves_no_object_on_a_finalizer_and_no_right_behind(
    plane: ControlPlane, tmp_path: Path
) -> None:
    run = unfinished_run(plane, "stuck")
    with uninstalling(plane, tmp_path) as helm_process:
        # The hook's own command, as the hook's own account.
        pod = plane.api.request("GET", JOB)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        hook = pod["serviceAccountName"]
        wait_may(plane, "patch", "etcddefrags.etcd-operator.cozystack.io@x", "team-a", hook)
        wait_may(plane, "patch", "deployments.apps/scale@x-etcdmaint", "sys", hook)
        done = etcdmaint(account(plane, pod["serviceAccountName"]), *container["args"])
        assert done.returncode == 0, done.stderr
        assert "EtcdDefrag team-a/stuck" in done.stdout
        assert plane.api.request("GET", DEPLOYMENT)["spec"]["replicas"] == 0
        end_job(plane, "SuccessCriteriaMet", "Complete")
        output, _ = helm_process.communicate(timeout=120)
        assert helm_process.returncode == 0, output
    # The object stays, freed of our finalizer and of nobody else's.
    left = plane.api.request("GET", run)
    assert left["metadata"]["finalizers"] == ["example.com/other"]
    assert get(plane, DEPLOYMENT) is None
    for kind in ("clusterroles", "clusterrolebindings", "roles", "rolebindings"):
        listed = plane.api.request("GET", f"/apis/rbac.authorization.k8s.io/v1/{kind}")
        names = [each["metadata"]["name"] for each in listed["items"]]
        assert [name for name in names if name.startswith("x-etcdmaint")] == []
    assert get(plane, "/api/v1/namespaces/sys/serviceaccounts/x-etcdmaint-uninstall") is None


@pytest.mark.usefixtures("release")
def test_where_the_hook_fails_nothing_is_taken_away(plane: ControlPlane, tmp_path: Path) -> None:
    with uninstalling(plane, tmp_path) as helm_process:
        end_job(plane, "FailureTarget", "Failed")
        output, _ = helm_process.communicate(timeout=120)
    assert helm_process.returncode != 0
    assert "x-etcdmaint-uninstall failed" in output
    assert get(plane, DEPLOYMENT) is not None


@pytest.mark.usefixtures("release")
def test_the_runbooks_kubectl_line_frees_an_object(plane: ControlPlane) -> None:
    run = unfinished_run(plane, "by-hand")
    plane.api.request("DELETE", run)
    assert get(plane, run) is not None
    text = (ROOT / "docs" / "runbooks" / "stuck-finalizer.md").read_text()
    (line,) = re.findall(r"kubectl (patch [^`]*?)\n```", text.replace("\\\n", ""))
    words = shlex.split(line.replace("NAMESPACE", "team-a").replace(" NAME ", " by-hand "))
    plane.kubectl(*words)
    assert get(plane, run) is None


@pytest.mark.usefixtures("release")
def test_stripping_by_name_touches_only_that_object(plane: ControlPlane) -> None:
    one, other = unfinished_run(plane, "named"), unfinished_run(plane, "other")
    strip = ("finalizers", "strip", "team-a/named")
    done = etcdmaint(plane.kubeconfig(), *strip)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"1 EtcdDefrag freed of {FINALIZER}"
    assert plane.api.request("GET", one)["metadata"]["finalizers"] == ["example.com/other"]
    assert FINALIZER in plane.api.request("GET", other)["metadata"]["finalizers"]
    # Once more, and for one that is not there: nothing is left to do, which is no failure.
    again = etcdmaint(plane.kubeconfig(), *strip, "team-a/never-was")
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"0 EtcdDefrags freed of {FINALIZER}\n"


def test_without_the_right_it_says_so_in_one_sentence(plane: ControlPlane) -> None:
    done = etcdmaint(plane.kubeconfig("nobody"), "finalizers", "strip", "--all")
    assert done.returncode == 1
    assert done.stderr == "etcdmaint: the Kubernetes API answered 403 Forbidden\n"
    assert done.stdout == ""
