"""The oldest Kubernetes that is claimed, by its own validation of CRDs: no API server of it is run.

Newer API servers admit more (what a CEL rule is estimated to cost has gone down since), so that a
CRD that a new one takes may be refused by the oldest.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.controlplane.golang import NoGo
from tests.controlplane.gosource import go_program
from tests.controlplane.programs import MODULES

# The first build compiles a part of an old API server.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
MODULE = MODULES / "crdcheck"
CRDS = sorted((ROOT / "crds").glob("*.yaml"))


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return go_program(MODULE / "main.go", MODULE)
    except NoGo as error:
        pytest.skip(f"no Go to build an older Kubernetes' validation with: {error}")


def faults(program: Path, crd: Path) -> list[str]:
    done = subprocess.run([program, crd], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("crd", CRDS, ids=lambda path: path.stem)
def test_the_oldest_release_that_is_claimed_takes_our_crds(program: Path, crd: Path) -> None:
    """Issue 3 section 5: the lowest supported Kubernetes is named, and it is that one."""
    assert faults(program, crd) == []


def test_the_oldest_release_refuses_what_costs_too_much(program: Path, tmp_path: Path) -> None:
    crd = yaml.safe_load(CRDS[0].read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"].append(
        {"rule": "self.endpoints.all(a, self.endpoints.all(b, a.contains(b + b)))"}
    )
    costly = tmp_path / "costly.yaml"
    costly.write_text(yaml.safe_dump(crd))
    assert any("estimated rule cost" in fault for fault in faults(program, costly))


def test_every_place_names_the_same_oldest_release() -> None:
    """The chart, the docs and the pins of the check speak of one release."""
    (pinned,) = re.findall(r"apiextensions-apiserver v0\.(\d+)\.", (MODULE / "go.mod").read_text())
    chart = yaml.safe_load((ROOT / "deploy/chart/etcdmaint/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">=1.{pinned}.0-0"
    for page in ("docs/how-to/install.md", "docs/reference/custom-resources.md"):
        assert f"Kubernetes 1.{pinned} or newer" in (ROOT / page).read_text(), page
