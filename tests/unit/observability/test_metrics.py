"""Each instrument counts what it is told, on the registry that it was given."""

from __future__ import annotations

import platform

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from etcdmaint.compaction.election import Result
from etcdmaint.defrag.run import Instrumentation
from etcdmaint.observability.metrics import (
    Compactions,
    Defragmentations,
    EtcdRpcs,
    KubernetesRequests,
    ProcessState,
    RequestResult,
    new_registry,
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def process_state(registry: CollectorRegistry) -> ProcessState:
    return ProcessState(
        registry,
        version="1.2.3",
        revision="abc",
        kopf_version="1.45.2",
        lease_name="etcdmaint",
        max_concurrent_runs=8,
    )


def test_an_rpc_is_counted_by_method_and_code(registry: CollectorRegistry) -> None:
    rpcs = EtcdRpcs(registry)
    rpcs.rpc("/etcdserverpb.Maintenance/Status", "OK", 0.02)
    rpcs.rpc("Status", "OK", 0.2)
    rpcs.rpc("Status", "UNAVAILABLE", 3.0)
    name = "etcdmaint_etcd_rpc_duration_seconds"
    ok = {"method": "Status", "code": "OK"}
    assert registry.get_sample_value(f"{name}_count", ok) == 2
    assert registry.get_sample_value(f"{name}_sum", ok) == pytest.approx(0.22)
    assert registry.get_sample_value(f"{name}_count", ok | {"code": "UNAVAILABLE"}) == 1


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, RequestResult.SUCCESS),
        (201, RequestResult.SUCCESS),
        (401, RequestResult.FORBIDDEN),
        (403, RequestResult.FORBIDDEN),
        (404, RequestResult.NOT_FOUND),
        (409, RequestResult.CONFLICT),
        (422, RequestResult.CLIENT_ERROR),
        (429, RequestResult.THROTTLED),
        (500, RequestResult.SERVER_ERROR),
        (503, RequestResult.SERVER_ERROR),
        (None, RequestResult.NO_ANSWER),
    ],
)
def test_an_http_status_becomes_one_word(
    registry: CollectorRegistry, status: int | None, result: RequestResult
) -> None:
    KubernetesRequests(registry).request("patch", "etcddefrags/status", status, 0.01)
    labels = {"verb": "patch", "resource": "etcddefrags/status", "result": str(result)}
    name = "etcdmaint_kubernetes_request_duration_seconds_count"
    assert registry.get_sample_value(name, labels) == 1


def test_status_conflicts_begin_at_zero(registry: CollectorRegistry) -> None:
    requests = KubernetesRequests(registry)
    assert registry.get_sample_value("etcdmaint_status_write_conflicts_total") == 0
    requests.status_conflict()
    assert registry.get_sample_value("etcdmaint_status_write_conflicts_total") == 1


def test_a_run_its_members_and_its_times_are_counted(registry: CollectorRegistry) -> None:
    counts: Instrumentation = Defragmentations(registry)
    done = {"outcome": "Defragmented", "reason": ""}
    assert registry.get_sample_value("etcdmaint_members_processed_total", done) == 0
    counts.member_finished("Defragmented", "", 1000)
    counts.member_finished("Defragmented", "InferredFromSize", -300)
    counts.member_finished("Skipped", "BelowThreshold", 0)
    counts.defragment_seconds(0.3)
    counts.sweep_overhead_seconds(1.2)
    counts.deferred("MemberUnreachable")
    counts.leadership_transfer("moved")
    counts.run_finished("Complete", "Completed")

    value = registry.get_sample_value
    run = {"operation": "defragment", "phase": "Complete", "reason": "Completed"}
    assert value("etcdmaint_runs_terminal_total", run) == 1
    skipped = {"outcome": "Skipped", "reason": "BelowThreshold"}
    assert value("etcdmaint_members_processed_total", skipped) == 1
    # What a member grew by is no reclaimed space, and a counter never goes back.
    assert value("etcdmaint_member_reclaimed_bytes_total") == 1000
    assert value("etcdmaint_member_defrag_duration_seconds_bucket", {"le": "0.4"}) == 1
    assert value("etcdmaint_member_defrag_duration_seconds_bucket", {"le": "0.2"}) == 0
    assert value("etcdmaint_sweep_overhead_seconds_sum") == 1.2
    assert value("etcdmaint_gate_deferrals_total", {"reason": "MemberUnreachable"}) == 1
    assert value("etcdmaint_leadership_transfers_total", {"result": "moved"}) == 1
    assert value("etcdmaint_leadership_transfers_total", {"result": "failed"}) == 0


def test_known_endings_are_told_at_zero_so_that_the_first_failure_is_an_increase(
    registry: CollectorRegistry,
) -> None:
    Defragmentations(registry)
    value = registry.get_sample_value
    run = {"operation": "defragment", "phase": "Failed", "reason": "DeadlineExceeded"}
    assert value("etcdmaint_runs_terminal_total", run) == 0
    member = {"outcome": "Failed", "reason": "RPCTimeout"}
    assert value("etcdmaint_members_processed_total", member) == 0
    assert value("etcdmaint_gate_deferrals_total", {"reason": "NoLeader"}) == 0


def test_leading_is_told_by_the_name_that_dashboards_know(registry: CollectorRegistry) -> None:
    state = process_state(registry)
    status = ("leader_election_master_status", {"name": "etcdmaint"})
    assert registry.get_sample_value(*status) == 0
    state.leading(True)
    assert registry.get_sample_value(*status) == 1
    state.leading(False)
    assert registry.get_sample_value(*status) == 0


def test_the_build_and_the_limit_are_told(registry: CollectorRegistry) -> None:
    process_state(registry)
    labels = {
        "version": "1.2.3",
        "revision": "abc",
        "python_version": platform.python_version(),
        "kopf_version": "1.45.2",
    }
    assert registry.get_sample_value("etcdmaint_build_info", labels) == 1
    assert registry.get_sample_value("etcdmaint_max_concurrent_runs") == 8


def test_a_clock_that_steps_back_gives_no_negative_lag(registry: CollectorRegistry) -> None:
    process_state(registry).loop_lag(-0.5)
    assert registry.get_sample_value("etcdmaint_event_loop_lag_seconds_sum") == 0


def test_the_rounds_of_a_cluster_begin_at_zero_and_end_with_it(
    registry: CollectorRegistry,
) -> None:
    compactions = Compactions(registry)
    compactions.started("00000000000000ab")
    labels = {"cluster": "00000000000000ab"}
    for result in Result:
        rounds = labels | {"result": str(result)}
        assert registry.get_sample_value("etcdmaint_compaction_rounds_total", rounds) == 0
    compactions.round("00000000000000ab", "won", clock=7)
    compactions.advanced("00000000000000ab", 1234, 1.7e9)
    won = labels | {"result": "won"}
    assert registry.get_sample_value("etcdmaint_compaction_rounds_total", won) == 1
    assert registry.get_sample_value("etcdmaint_compaction_clock", labels) == 7
    assert registry.get_sample_value("etcdmaint_compaction_revision", labels) == 1234
    last = "etcdmaint_compaction_last_success_timestamp_seconds"
    assert registry.get_sample_value(last, labels) == 1.7e9
    compactions.stopped("00000000000000ab")
    assert b"00000000000000ab" not in generate_latest(registry)


def test_a_round_with_an_unknown_result_is_refused(registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="drawn"):
        Compactions(registry).round("00000000000000ab", "drawn", clock=1)


def test_two_registries_count_apart() -> None:
    first, second = new_registry(), new_registry()
    EtcdRpcs(first).rpc("Status", "OK", 0.1)
    EtcdRpcs(second)
    assert b'method="Status"' in generate_latest(first)
    assert b'method="Status"' not in generate_latest(second)


def test_no_created_series_and_the_process_own_metrics_are_there() -> None:
    registry = new_registry()
    Defragmentations(registry).defragment_seconds(0.3)
    text = generate_latest(registry)
    assert b"_created" not in text
    assert b"python_info" in text
    assert b"process_resident_memory_bytes" in text
    assert b"python_gc_collections_total" in text
