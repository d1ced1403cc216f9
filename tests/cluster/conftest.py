"""What the tests with a real API server share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.cluster.objects import install_crds
from tests.cluster.operator_proxy import ApiProxy
from tests.cluster.operators import OperatorProcess, grant_in
from tests.controlplane.apiserver import ControlPlane


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The session's API server with our CRDs."""
    install_crds(control_plane)
    return control_plane


@pytest.fixture
def proxy(plane: ControlPlane, tmp_path: Path) -> Iterator[ApiProxy]:
    """Something between the operator and the API server; give its kubeconfig to the operator."""
    with ApiProxy(plane, tmp_path) as running:
        yield running


class OperatorFactory(Protocol):
    """Starts operators that end with the test."""

    def __call__(self, **options: Any) -> OperatorProcess:
        """Start one; takes what `OperatorProcess` takes, but for folder and plane."""


@pytest.fixture
def start_operator(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[OperatorFactory]:
    """Start operators that watch the test's namespace; fails the test on any 403."""
    started: list[OperatorProcess] = []
    grant_in(plane, "operator", namespace)

    def start(**options: Any) -> OperatorProcess:
        given = {"namespaces": [namespace], "lease_namespace": namespace, **options}
        operator = OperatorProcess(tmp_path, plane, **given)
        started.append(operator)
        return operator.start()

    try:
        yield start
        for operator in started:
            if operator.server.running:
                assert operator.forbidden() == []
    finally:
        for operator in started:
            operator.stop()
