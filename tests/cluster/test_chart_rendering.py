"""What the chart renders: valid, restricted, and with no right that is not in use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import pytest
import yaml

from etcdmaint.cli.finalizers import strip
from tests.cluster.chart import (
    CHART,
    ROOT,
    VALUES,
    Manifest,
    lint,
    named,
    of_kind,
    rendered,
    template,
)

pytestmark = pytest.mark.cluster

WATCH = {
    ("etcd-operator.cozystack.io", "etcddefrags"): {"get", "list", "watch", "patch", "delete"},
    ("etcd-operator.cozystack.io", "etcddefrags/status"): {"patch"},
    ("etcdmaint.io", "etcdconnections"): {"get", "list", "watch"},
    ("etcdmaint.io", "etcdconnections/status"): {"patch"},
    ("etcdmaint.io", "storagecompressionconfigurations"): {"get", "list", "watch"},
    ("etcdmaint.io", "storagecompressionconfigurations/status"): {"patch"},
    ("", "configmaps"): {"get", "create", "update"},
    ("", "namespaces[kube-system]"): {"get"},
    ("etcd-operator.cozystack.io", "etcdclusters"): {"get", "list", "watch"},
    ("etcd-operator.cozystack.io", "etcdmembers"): {"list"},
    ("etcd-operator.cozystack.io", "etcdsnapshots"): {"list"},
    ("", "pods"): {"get"},
    ("", "secrets"): {"get"},
    ("", "events"): {"create"},
    ("coordination.k8s.io", "leases[aa20b3a9.etcd-operator.cozystack.io]"): {"list"},
}
SCANNING = {("apiextensions.k8s.io", "customresourcedefinitions"): {"list", "watch"}}
ELECTION = {
    ("coordination.k8s.io", "leases[x-etcdmaint]"): {"get", "update"},
    ("coordination.k8s.io", "leases"): {"create"},
}
HOOK_OBJECTS = {("etcd-operator.cozystack.io", "etcddefrags"): {"get", "list", "patch"}}
HOOK_OWN = {
    ("apps", "deployments/scale[x-etcdmaint]"): {"patch"},
    ("coordination.k8s.io", "leases[x-etcdmaint]"): {"get"},
}


def rights(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """The verbs by API group and resource, with the names in brackets where a rule is for those."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    key = (group, f"{resource}[{name}]" if name else resource)
                    found.setdefault(key, set()).update(rule["verbs"])
    return found


def pods(manifests: list[Manifest]) -> Iterable[Manifest]:
    return (each["spec"]["template"]["spec"] for each in manifests if "template" in spec(each))


def spec(manifest: Manifest) -> Manifest:
    found: Manifest = manifest.get("spec", {})
    return found


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_lint_finds_nothing(tmp_path: Path, values: Path) -> None:
    done = lint(tmp_path, f"--values={values}")
    assert done.returncode == 0, done.stdout


def test_the_charts_crds_are_word_for_word_those_of_the_source(tmp_path: Path) -> None:
    crds = list(of_kind(rendered(tmp_path), "CustomResourceDefinition"))
    source = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert source
    for crd in crds:
        assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    by_name = {crd["metadata"]["name"]: crd for crd in crds}
    assert by_name == {crd["metadata"]["name"]: crd for crd in source}


def test_the_script_that_copies_them_has_nothing_to_do() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "sync_chart_crds.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_each_crd_has_its_switch_and_keeping_them_too(tmp_path: Path) -> None:
    without = rendered(tmp_path, "--set=crds.etcdDefrag.install=false", "--set=crds.keep=false")
    crds = list(of_kind(without, "CustomResourceDefinition"))
    kinds = [crd["spec"]["names"]["kind"] for crd in crds]
    assert kinds == ["EtcdConnection", "StorageCompressionConfiguration"]
    assert not any("annotations" in crd["metadata"] for crd in crds)


def test_cluster_wide_it_may_do_exactly_what_it_does(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, "--set=rbac.aggregateToDefaultRoles=false")
    found = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")): rights(each)
        for kind in ("ClusterRole", "Role")
        for each in of_kind(manifests, kind)
    }
    assert found == {
        ("ClusterRole", "x-etcdmaint", None): WATCH | SCANNING,
        ("Role", "x-etcdmaint-leader-election", "sys"): ELECTION,
        ("ClusterRole", "x-etcdmaint-uninstall", None): HOOK_OBJECTS,
        ("Role", "x-etcdmaint-uninstall", "sys"): HOOK_OWN,
    }


def test_in_namespaces_it_may_do_nothing_outside_them(tmp_path: Path) -> None:
    manifests = rendered(tmp_path, f"--values={CHART / 'ci' / 'namespaced-values.yaml'}")
    assert list(of_kind(manifests, "ClusterRole")) == []
    assert list(of_kind(manifests, "ClusterRoleBinding")) == []
    found = {
        (each["metadata"]["name"], each["metadata"]["namespace"]): rights(each)
        for each in of_kind(manifests, "Role")
    }
    watched = {("x-etcdmaint", f"team-{each}"): WATCH for each in "ab"}
    freed = {("x-etcdmaint-uninstall-objects", f"team-{each}"): HOOK_OBJECTS for each in "ab"}
    own = {
        ("x-etcdmaint-leader-election", "sys"): ELECTION,
        ("x-etcdmaint-uninstall", "sys"): HOOK_OWN,
    }
    assert found == watched | freed | own


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_binding_leads_from_an_account_that_is_there_to_a_role_that_is_there(
    tmp_path: Path, values: Path
) -> None:
    manifests = rendered(tmp_path, f"--values={values}")
    accounts = {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
    bound = 0
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(manifests, kind):
            reference = binding["roleRef"]
            role = named_in(manifests, reference["kind"], reference["name"], binding)
            assert role["rules"]
            assert all(s["name"] in accounts and s["namespace"] == "sys" for s in subjects(binding))
            bound += 1
    assert bound >= 4


def named_in(manifests: list[Manifest], kind: str, name: str, binding: Manifest) -> Manifest:
    where = binding["metadata"].get("namespace") if kind == "Role" else None
    same = [each for each in manifests if each["metadata"].get("namespace") == where]
    return named(same, kind, name)


def subjects(binding: Manifest) -> list[Manifest]:
    found: list[Manifest] = binding["subjects"]
    assert found
    return found


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_no_rule_has_a_star_and_nobody_may_list_secrets(tmp_path: Path, values: Path) -> None:
    """D51: Secrets are read by name."""
    manifests = rendered(tmp_path, f"--values={values}")
    for kind in ("ClusterRole", "Role"):
        for role in of_kind(manifests, kind):
            for (_, resource), verbs in rights(role).items():
                assert "*" not in {resource, *verbs}
                assert resource != "secrets" or verbs == {"get"}


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_pod_keeps_to_the_restricted_standard(tmp_path: Path, values: Path) -> None:
    found = list(pods(rendered(tmp_path, f"--values={values}")))
    assert len(found) == 2
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork")
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]["memory"]
            assert container["resources"]["limits"]["memory"]
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_two_replicas_are_there_and_a_budget_keeps_one(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    deployment = named(manifests, "Deployment", "x-etcdmaint")
    assert deployment["spec"]["replicas"] == 2
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (budget["spec"]["selector"], deployment["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    (service,) = of_kind(manifests, "Service")
    assert service["spec"]["selector"].items() <= labels.items()
    alone = rendered(tmp_path, "--set=replicaCount=1")
    assert list(of_kind(alone, "PodDisruptionBudget")) == []


def test_the_uninstall_pod_is_none_of_the_operators(tmp_path: Path) -> None:
    manifests = rendered(tmp_path)
    (job,) = of_kind(manifests, "Job")
    selector = named(manifests, "Deployment", "x-etcdmaint")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_operator_knows_every_flag_that_it_is_given(tmp_path: Path, values: Path) -> None:
    from etcdmaint.cli.operator import operator

    deployment = named(rendered(tmp_path, f"--values={values}"), "Deployment", "x-etcdmaint")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, *flags = container["args"]
    assert command == "operator"
    known = {flag for each in operator.params for flag in each.opts}
    assert {flag.partition("=")[0] for flag in flags} <= known


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_uninstall_hook_is_a_command_that_parses(tmp_path: Path, values: Path) -> None:
    (job,) = of_kind(rendered(tmp_path, f"--values={values}"), "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    group, command, *flags = container["args"]
    assert (group, command) == ("finalizers", "strip")
    assert isinstance(strip, click.Command)
    given = strip.make_context("strip", flags).params
    assert given["everything"] is True
    assert str(given["stop_deployment"]) == "sys/x-etcdmaint"
    assert given["wait"] == 90


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("replicas=2", "replicas"),
        ("replicaCount=two", "replicaCount"),
        ("operator.drain=45", "drain"),
        ("operator.logFormat=xml", "logFormat"),
        ("operator.maxConcurrentRuns=0", "maxConcurrentRuns"),
        ("operator.unknown=1", "unknown"),
        ("watchNamespaces=team-a", "watchNamespaces"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
        ("watchNamespaces={a,a}", "watchNamespaces"),
        ("image.digest=latest", "digest"),
        ("crds.etcdDefrag=false", "etcdDefrag"),
        ("leaderElection.leaseDuration=never", "leaseDuration"),
        ("networkPolicy.etcdPorts={70000}", "etcdPorts"),
    ],
)
def test_a_bad_value_is_refused_and_named(tmp_path: Path, setting: str, field: str) -> None:
    done = template(tmp_path, f"--set={setting}", check=False)
    assert done.returncode != 0
    assert field in done.stderr


@pytest.mark.parametrize(
    ("drain", "grace", "wait", "fault"),
    [
        ("45s", 69, "90s", "terminationGracePeriodSeconds"),
        ("45s", 70, "90s", ""),
        ("1m30s", 114, "10m", "terminationGracePeriodSeconds"),
        ("1.5m", 115, "0.5h", ""),
        ("1h", 3700, "1h", "uninstallHook.wait"),
        ("500ms", 26, "25s", "uninstallHook.wait"),
    ],
)
def test_who_is_to_end_has_the_time_that_it_may_need(
    tmp_path: Path, drain: str, grace: int, wait: str, fault: str
) -> None:
    """D7: a member in flight is finished, and the hook waits for that."""
    settings = (f"operator.drain={drain}", f"uninstallHook.wait={wait}")
    flags = [f"--set={each}" for each in (*settings, f"terminationGracePeriodSeconds={grace}")]
    done = template(tmp_path, *flags, check=False)
    assert (done.returncode != 0) is bool(fault), done.stderr
    assert fault in done.stderr


def test_a_kubernetes_that_does_not_take_the_crds_is_refused(tmp_path: Path) -> None:
    done = template(tmp_path, check=False, version="--kube-version=1.29.15")
    assert done.returncode != 0
    assert "1.30" in done.stderr
    template(tmp_path, version="--kube-version=1.30.0")


def test_the_schema_has_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(values: Manifest, schema: Manifest, path: str) -> None:
        assert schema["additionalProperties"] is False, path
        known = set(schema["properties"]) - ({"global"} if not path else set())
        assert set(values) == known, path
        for key, value in values.items():
            below = schema["properties"][key]
            if isinstance(value, dict) and "properties" in below:
                compare(value, below, f"{path}.{key}")

    compare(values, schema, "")


def test_what_the_dockerfile_copies_is_there() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = re.findall(r"(?m)^COPY (?!--from)(\S+) ", text)
    assert len(copied) >= 4
    assert [each for each in copied if not (ROOT / each).exists()] == []
