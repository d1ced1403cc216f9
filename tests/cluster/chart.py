"""The chart as the tests use it: rendered by helm, or installed by it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import build

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart" / "etcdmaint"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
# A helm that was built without its makefile believes in Kubernetes 1.20.
_KUBE_VERSION = "--kube-version=1.37.2"

Manifest = dict[str, Any]


def helm_command(*arguments: str, kubeconfig: Path | None = None) -> list[str]:
    """The whole command, for a caller that runs it in its own way."""
    command = [str(build.program("helm")), *arguments]
    return command if kubeconfig is None else [*command, f"--kubeconfig={kubeconfig}"]


def helm_environment(folder: Path) -> dict[str, str]:
    """With helm's caches in `folder` and not in anybody's home."""
    homes = {f"HELM_{kind}_HOME": str(folder / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    return {**os.environ, **homes, "KUBECONFIG": os.devnull}


def helm(
    *arguments: str, folder: Path, kubeconfig: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run helm to its end."""
    done = subprocess.run(
        helm_command(*arguments, kubeconfig=kubeconfig),
        check=False,
        capture_output=True,
        text=True,
        env=helm_environment(folder),
        timeout=120,
    )
    if check:
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done


def lint(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`helm lint --strict`; does not check its exit code."""
    return helm(
        "lint", "--strict", _KUBE_VERSION, str(CHART), *arguments, folder=folder, check=False
    )


def template(
    folder: Path, *arguments: str, check: bool = True, version: str = _KUBE_VERSION
) -> subprocess.CompletedProcess[str]:
    """`helm template` of a release `x` in namespace `sys`."""
    release = ("template", "x", str(CHART), "--namespace=sys", version)
    return helm(*release, *arguments, folder=folder, check=check)


def rendered(folder: Path, *arguments: str) -> list[Manifest]:
    """The manifests of `helm template`."""
    return [each for each in yaml.safe_load_all(template(folder, *arguments).stdout) if each]


def of_kind(manifests: list[Manifest], kind: str) -> Iterator[Manifest]:
    """Those of one kind."""
    return (each for each in manifests if each["kind"] == kind)


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """The one of that kind and name."""
    (found,) = (each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name)
    return found


def copy_of_the_chart(folder: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(CHART, folder / "chart"))
