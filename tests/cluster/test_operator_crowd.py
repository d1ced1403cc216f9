"""Many runs, several names for one etcd, and a Kubernetes API that goes away in between."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from datetime import datetime
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
    install_crds,
    path_of,
    phase_of,
    status_of,
)
from tests.cluster.operator_proxy import ApiProxy, Write
from tests.cluster.operators import OperatorProcess, grant_everywhere, until
from tests.cluster.turns import filled, first_turn_stalled, in_flight
from tests.cluster.version_proxy import VersionProxy
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.stalling import hold_snapshot

pytestmark = pytest.mark.cluster


def runs(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    return list(plane.api.request("GET", path_of("etcddefrags", namespace))["items"])


def test_two_runs_for_one_etcd_by_two_names_take_turns(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D3, D60: serialized by the etcd cluster's ID; the second says whom it waits for."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd, name="one")
    connect(plane, namespace, etcd.client_urls[1:2], name="other")
    with hold_snapshot(etcd.members[2]):
        # The gate defers both, so that both have looked before either may begin.
        start_operator()
        ask(plane, namespace, name="first", cluster="one")
        ask(plane, namespace, name="second", cluster="other")
        for name in ("first", "second"):
            until(
                lambda name=name: (
                    condition(defrag(plane, namespace, name) or {}, "Progressing").get("reason")
                    == "SnapshotInProgress"
                ),
                "deferred",
            )
    for name in ("first", "second"):
        until(lambda name=name: phase_of(plane, namespace, name) == "Complete", name)
    assert defragmentations(etcd) == [2, 2, 2]
    assert not overlap(plane, namespace)


def overlap(plane: ControlPlane, namespace: str) -> bool:
    """Whether the turns of members of two runs overlap, by whole seconds as recorded."""
    spans = []
    for run in runs(plane, namespace):
        rows = run["status"]["members"]
        spans.append((min(map(_at("startedAt"), rows)), max(map(_at("finishedAt"), rows))))
    spans.sort()
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def _at(field: str) -> Any:
    return lambda row: datetime.fromisoformat(row[field])


@pytest.mark.timeout(900)
def test_a_hundred_runs_at_once_are_all_carried_out_one_after_another(
    plane: ControlPlane,
    namespace: str,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D3: never two Running, and the queue comes to its end; with an operator that stays well."""
    etcd = etcd_cluster_factory(size=1)
    etcd.fill(bytes_live=200_000, bytes_deleted=200_000)
    connect(plane, namespace, etcd)
    operator = start_operator(timing={"queue_interval": 0.3, "commit_interval": 0.05})
    threads = [
        threading.Thread(target=ask, args=(plane, namespace), kwargs={"name": f"run-{n:03}"})
        for n in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def over() -> bool:
        phases = [run.get("status", {}).get("phase", "") for run in runs(plane, namespace)]
        assert phases.count("Running") <= 1, phases
        return len(phases) == 100 and set(phases) == {"Complete"}

    until(over, "all are over", 800)
    assert defragmentations(etcd) == [100]
    until(lambda: operator.probe("healthz") == 200, "well")
    assert operator.complaints() == []


def test_a_person_with_the_command_line_is_told_who_holds_the_cluster(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D60, D63: exit 5 with the holder's name, and not a single RPC more."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    start_operator(kubeconfig=proxy.kubeconfig)
    answers: list[subprocess.CompletedProcess[str]] = []
    answered = threading.Event()
    attempts = itertools.count(1)

    def meddle(write: Write) -> None:
        # Between two members, when nothing but the slot stands against it. What the operator writes
        # again, since this takes long, waits too.
        if sum(row.get("outcome") == "Defragmented" for row in write.rows) != 1:
            return
        if next(attempts) > 1:
            answered.wait(60)
            return
        command = [sys.executable, "-m", "etcdmaint", "defrag", "--all"]
        command += ["--dial-timeout=20s", "--command-timeout=20s"]
        endpoints = f"--endpoints={','.join(etcd.client_urls)}"
        answers.append(
            subprocess.run(
                [*command, endpoints], capture_output=True, text=True, check=False, timeout=60
            )
        )
        answered.set()

    proxy.before = meddle
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    assert phase_of(plane, namespace) == "Complete"
    (by_hand,) = answers
    assert by_hand.returncode == 5, by_hand.stderr
    assert f"{namespace}/etcdmaint" in by_hand.stdout + by_hand.stderr
    assert defragmentations(etcd) == [1, 1, 1]


@pytest.fixture
def own_plane(tmp_path: Path) -> Any:
    """An API server of the test's own, to be ended and started again."""
    with ControlPlane(tmp_path / "plane") as running:
        install_crds(running)
        running.api.create_namespace("work")
        grant_everywhere(running, "operator", "default")
        yield running


def test_an_api_server_that_is_away_for_30_s_in_mid_sweep_costs_nothing_but_time(
    own_plane: ControlPlane, tmp_path: Path, etcd_cluster_factory: EtcdClusterFactory
) -> None:
    """D32, D38: the member in flight is finished, no other begins, nothing is repeated or lost."""
    etcd = filled(etcd_cluster_factory)
    connect(own_plane, "work", etcd)
    lease = {"lease_duration": 60.0, "renew_deadline": 45.0, "retry_period": 5.0}
    with (
        VersionProxy(own_plane, tmp_path) as proxy,
        OperatorProcess(tmp_path, own_plane, kubeconfig=proxy.kubeconfig, **lease) as operator,
    ):
        with first_turn_stalled(proxy, etcd) as held:
            ask(own_plane, "work")
            in_flight(held)
            proxy.away = True
            own_plane.server.kill()
            gone_at = time.monotonic()
        # Behind the proxy it is back earlier: a slow start must not cost the Lease.
        own_plane.server.start()
        until(lambda: held[0].defrag_count() == 1, "it is finished while the API is away", 25)
        until(lambda: operator.probe("readyz") == 503, "not ready without the API", 25)
        own_plane.wait_ready()
        until(lambda: time.monotonic() - gone_at >= 30.0, "30 s are over", 40)
        assert sum(defragmentations(etcd)) == 1, "no other member has begun"
        proxy.away = False
        until(lambda: phase_of(own_plane, "work") in ("Complete", "Failed"), "over")
        assert phase_of(own_plane, "work") == "Complete", status_of(own_plane, "work")
        assert defragmentations(etcd) == [1, 1, 1]
        until(lambda: operator.probe("readyz") == 200, "ready again")
        assert operator.leads()


def test_an_operator_that_loses_its_lease_ends_with_1_and_leaves_etcd_alone(
    own_plane: ControlPlane, tmp_path: Path, etcd_cluster_factory: EtcdClusterFactory
) -> None:
    """D37: nothing is begun, disarmed or released by a process that may not act any more."""
    etcd = filled(etcd_cluster_factory)
    names = {member.name: member.id_hex for member in etcd.members}
    connect(own_plane, "work", etcd)
    lease = {"lease_duration": 16.0, "renew_deadline": 12.0, "retry_period": 1.0}
    with ApiProxy(own_plane, tmp_path) as proxy:
        with (
            OperatorProcess(tmp_path, own_plane, kubeconfig=proxy.kubeconfig, **lease) as operator,
            first_turn_stalled(proxy, etcd) as held,
        ):
            ask(own_plane, "work")
            in_flight(held)
            other = next(member for member in etcd.members if member is not held[0])
            slot = ("get", "etcdmaint.io/lock", "--print-value-only")
            before = etcd.etcdctl(*slot, member=other).stdout
            assert names[held[0].name] in before
            own_plane.server.kill()
            assert operator.wait_exit() == 1
            assert etcd.etcdctl(*slot, member=other).stdout == before
        until(lambda: held[0].defrag_count() == 1, "the member finishes by itself")
        own_plane.server.start()
        own_plane.wait_ready()
        with OperatorProcess(tmp_path, own_plane, **lease):
            until(lambda: phase_of(own_plane, "work") == "Complete", "its heir ends it")
    assert defragmentations(etcd) == [1, 1, 1]
