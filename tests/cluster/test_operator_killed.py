"""The operator dies at any point of a run, and another process finishes what it began (D2, D36)."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from tests.cluster.conftest import OperatorFactory
from tests.cluster.objects import ask, connect, defragmentations, phase_of, status_of
from tests.cluster.operator_proxy import ApiProxy, Write
from tests.cluster.operators import OperatorProcess, until
from tests.cluster.turns import filled, first_turn_stalled, in_flight
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.fixtures import EtcdClusterFactory

pytestmark = pytest.mark.cluster

# The stamps Pending and Running, two a member, and the end.
STATUS_WRITES = 2 + 2 * 3 + 1
# Dying before a write is what dying after the last one is, but for an RPC in between: so not all.
DEATHS = [(2, False), (4, False), (8, False), (9, False)]
DEATHS += [(1, True), (2, True), (3, True), (4, True)]
POD = "etcdmaint-0"


class Killer:
    """Ends an operator with SIGKILL at its nth status write, before or after it is carried out."""

    def __init__(self, proxy: ApiProxy, name: str, nth: int, *, carried_out: bool) -> None:
        self.victim: OperatorProcess | None = None
        self.done = False
        self._numbers = itertools.count(1)
        self._name = name
        self._nth = nth
        if carried_out:
            proxy.after = self._strike
        else:
            proxy.before = self._strike

    def _strike(self, write: Write) -> None:
        if self.done or not write.is_status or write.name != self._name:
            return
        if next(self._numbers) == self._nth and self.victim is not None:
            victim = self.victim.server
            os.kill(victim.pid, signal.SIGKILL)
            # Else its socket might still be open when it is asked whether anybody waits.
            until(lambda: not victim.running, "the operator is dead")
            self.done = True


@pytest.mark.timeout(900)
def test_killed_before_and_after_every_status_write_the_run_is_finished_with_one_rpc_a_member(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D2, D32, D36: whatever was written last, nothing is done twice and nothing left out."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    for round_, (nth, carried_out) in enumerate(DEATHS, start=1):
        name = f"run-{round_}"
        killer = Killer(proxy, name, nth, carried_out=carried_out)
        killer.victim = start_operator(pod=POD, kubeconfig=proxy.kubeconfig)
        killer.victim.wait_leading()
        ask(plane, namespace, name=name)
        until(lambda killer=killer: killer.done, f"killed at write {nth}")
        killer.victim.stop()
        proxy.before = proxy.after = None
        heir = start_operator(pod=POD, kubeconfig=proxy.kubeconfig)
        until(lambda name=name: phase_of(plane, namespace, name) in ("Complete", "Failed"), name)
        heir.stop()
        status = status_of(plane, namespace, name)
        where = f"{'after' if carried_out else 'before'} write {nth}"
        assert status["phase"] == "Complete", (where, status)
        assert defragmentations(etcd) == [round_] * 3, where


def test_killed_while_a_member_defragments_the_run_waits_for_it_and_sends_no_second_rpc(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D33, D36: the member goes on by itself; its successor counts it as defragmented."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    victim = start_operator(pod=POD, kubeconfig=proxy.kubeconfig)
    with first_turn_stalled(proxy, etcd) as held:
        ask(plane, namespace)
        member = in_flight(held)
        victim.kill()
        heir = start_operator(pod=POD)
        heir.wait_leading()
        until(
            lambda: any(r["message"] == "leads" for r in heir.records()), "the heir has looked", 10
        )
        assert phase_of(plane, namespace) == "Running"
        assert member.defragmenting()
        assert sum(defragmentations(etcd)) == 0
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    assert phase_of(plane, namespace) == "Complete", status_of(plane, namespace)
    assert defragmentations(etcd) == [1, 1, 1]


def test_a_run_costs_at_most_five_writes_and_two_a_member(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """The issue's figure: finalizer patches included, Events and the Lease not."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    # A member that answers late is waited for, and that would cost writes as well.
    timing = {"rpc_timeout": 30.0, "metrics_timeout": 30.0}
    start_operator(kubeconfig=proxy.kubeconfig, timing=timing).wait_leading()
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) == "Complete", "complete")

    def freed() -> bool:
        patches = [w for w in proxy.run_writes("now") if not w.is_status]
        return len(patches) >= 2

    until(freed, "the finalizer is off again")
    # And all of it has come through: the CRD knows each field that is written.
    stored, last = status_of(plane, namespace), proxy.status_writes("now")[-1].body["status"]
    assert {key: stored[key] for key in last} == last
    writes = proxy.run_writes("now")
    assert len(writes) <= 5 + 2 * 3, [(w.method, w.path, w.body) for w in writes]
    assert len(proxy.status_writes("now")) == STATUS_WRITES


def test_a_conflict_on_every_status_write_changes_nothing_but_the_time(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D32, D38: each write is computed anew on the object as it is then."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    provoked: list[str] = []
    seen: set[str] = set()

    def provoke(write: Write) -> None:
        if not write.is_status or write.name != "now":
            return
        text = str(write.body["status"])
        if text in seen:
            return
        seen.add(text)
        provoked.append(text)
        path = write.path.removesuffix("/status")
        patch = {"metadata": {"annotations": {"example.com/number": str(len(provoked))}}}
        plane.api.request("PATCH", path, patch, content_type="application/merge-patch+json")

    proxy.before = provoke
    operator = start_operator(kubeconfig=proxy.kubeconfig)
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    assert phase_of(plane, namespace) == "Complete"
    assert defragmentations(etcd) == [1, 1, 1]
    assert len(provoked) >= STATUS_WRITES
    assert (operator.metric("etcdmaint_status_write_conflicts_total") or 0) >= STATUS_WRITES


def test_a_paused_predecessor_that_wakes_up_does_nothing_and_ends(
    plane: ControlPlane,
    namespace: str,
    proxy: ApiProxy,
    start_operator: OperatorFactory,
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D37, D62: stopped between intent and RPC, it must not send the RPC when it goes on."""
    etcd = filled(etcd_cluster_factory)
    connect(plane, namespace, etcd)
    first = start_operator(kubeconfig=proxy.kubeconfig)
    first.wait_leading()
    second = start_operator()
    stopped: list[str] = []

    def stop(write: Write) -> None:
        done = sum(row.get("outcome") == "Defragmented" for row in write.rows)
        if write.in_flight and done == 1 and not stopped:
            stopped.append(write.in_flight)
            first.server.pause()

    proxy.after = stop
    ask(plane, namespace)
    until(lambda: phase_of(plane, namespace) in ("Complete", "Failed"), "over")
    assert phase_of(plane, namespace) == "Complete"
    assert second.leads()
    before = status_of(plane, namespace)
    assert defragmentations(etcd) == [1, 1, 1]
    first.server.resume()
    assert first.wait_exit() == 1
    assert defragmentations(etcd) == [1, 1, 1]
    assert status_of(plane, namespace) == before
    assert second.leads()
