"""pytest's way into the real servers: clusters by the test, one control plane by the session.

Name this module in ``pytest_plugins``. Starting an API server costs seconds, so a session (or one
xdist worker) shares one, and tests keep apart by namespace; an etcd cluster is what a test is
about, so each test has its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from . import build
from .apiserver import ControlPlane
from .etcd import EtcdCluster

_NUMBERS = itertools.count(1)

# What the tests with a marker start, built before the first of them.
_PROGRAMS = {
    "etcd": ("etcd", "etcdctl"),
    "cluster": ("etcd", "etcdctl", "kube-apiserver", "kubectl", "kube-controller-manager", "helm"),
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests will start.

    Once and in sight: a build inside a test would be silent, and run into the test's time limit.
    """
    if session.config.option.collectonly:
        return
    markers = {marker.name for item in session.items for marker in item.iter_markers()}
    missing = [
        name
        for marker in markers & _PROGRAMS.keys()
        for name in _PROGRAMS[marker]
        if _buildable(name)
    ]
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        for name in missing:
            # What cannot be had is reported by the tests that want it; the others go on.
            with contextlib.suppress(build.ProgramUnavailable):
                build.program(name)


class EtcdClusterFactory(Protocol):
    """Makes a started cluster; takes what ``EtcdCluster`` takes, but for the folder."""

    def __call__(self, **options: Any) -> EtcdCluster:
        """Start one more cluster of this test; it ends with the test."""


@pytest.fixture
def etcd_cluster_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdClusterFactory]:
    """Start etcd clusters that end with the test."""
    started: list[EtcdCluster] = []

    def start(**options: Any) -> EtcdCluster:
        cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), **options)
        started.append(cluster)
        return cluster.start()

    try:
        yield start
    finally:
        for cluster in started:
            cluster.close()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The session's API server, with the controllers that delete namespaces and orphans."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), controllers=True) as plane:
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; its deletion is begun at the end and not waited for."""
    name = _namespace_name(request.node.name)
    control_plane.api.create_namespace(name)
    yield name
    control_plane.api.delete_namespace(name)


def _namespace_name(test: str) -> str:
    # The test's name makes a failed run's objects findable; the number makes it unique.
    words = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "t")
    return f"{words}-{worker}{next(_NUMBERS)}"


def _buildable(name: str) -> bool:
    try:
        return build.find(name) is None
    except build.ProgramUnavailable:
        return False
