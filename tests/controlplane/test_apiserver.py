"""The test control plane is a Kubernetes API like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from .apiserver import ControlPlane
from .processes import wait_until

pytestmark = pytest.mark.cluster

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.example.etcdmaint.test}
spec:
  group: example.etcdmaint.test
  names: {kind: Lamp, plural: lamps}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                watts:
                  type: integer
                  x-kubernetes-validations: [{rule: self > 0, message: a lamp needs power}]
"""


def test_a_crd_is_served_and_its_rules_are_enforced(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.apply(CRD)
    control_plane.wait_established("lamps.example.etcdmaint.test")
    lamp = (
        "apiVersion: example.etcdmaint.test/v1\nkind: Lamp\n"
        f"metadata: {{name: desk, namespace: {namespace}}}\nspec: {{watts: 0}}\n"
    )

    refused = control_plane.kubectl("create", "-f", "-", stdin=lamp, check=False)
    control_plane.apply(lamp.replace("watts: 0", "watts: 5"))

    assert "a lamp needs power" in refused.stderr
    stored = control_plane.etcd.etcdctl("get", "--prefix", "--keys-only", "/registry/").stdout
    assert f"/registry/example.etcdmaint.test/lamps/{namespace}/desk" in stored


def test_a_user_without_rights_gets_those_that_are_bound(
    control_plane: ControlPlane, namespace: str
) -> None:
    ask = ("get", "configmaps", "--namespace", namespace)
    refused = control_plane.kubectl(*ask, user="operator", check=False)
    control_plane.kubectl(
        "create", "rolebinding", "operator-views", "--clusterrole=view", "--user=operator",
        "--namespace", namespace,
    )  # fmt: skip

    def let_in() -> bool:
        return control_plane.kubectl(*ask, user="operator", check=False).returncode == 0

    assert "Forbidden" in refused.stderr
    # `view` is empty until the controller that fills it has started.
    wait_until(let_in, "the binding takes effect", 120)


def test_any_other_user_is_let_in_by_certificate_with_the_groups_named(
    control_plane: ControlPlane,
) -> None:
    control_plane.kubeconfig("alice", groups=["readers"])

    said = control_plane.kubectl("auth", "whoami", "--output=yaml", user="alice").stdout

    assert "username: alice" in said
    assert "- readers" in said


def test_a_deleted_namespace_goes_away_with_what_is_in_it(control_plane: ControlPlane) -> None:
    control_plane.api.create_namespace("short-lived")
    control_plane.kubectl("create", "configmap", "a", "--namespace=short-lived")

    delete = ("delete", "namespace", "short-lived", "--wait", "--timeout=180s")
    control_plane.kubectl(*delete, timeout=200)

    left = control_plane.etcd.etcdctl("get", "--prefix", "/registry/configmaps/short-lived").stdout
    assert left == ""


def test_the_api_server_runs_its_compactor_at_the_interval_given(tmp_path: Path) -> None:
    with ControlPlane(tmp_path, compaction_interval="2s") as plane:

        def version() -> int:
            answer = plane.etcd.members[0].gateway.post(
                "/v3/kv/range",
                {"key": "Y29tcGFjdF9yZXZfa2V5"},  # compact_rev_key
            )
            return int(answer["kvs"][0]["version"]) if "kvs" in answer else 0

        wait_until(lambda: version() >= 2, "two rounds of compaction", 60)

        plane.pause()
        assert not plane.api.ready(timeout=0.5)
        plane.resume()
        plane.restart()
        assert plane.api.ready(timeout=30)
