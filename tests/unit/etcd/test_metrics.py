"""Reading a page of metrics: what is there, what is not, and what is not etcd's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.etcd.metrics import MemberMetrics, _read, parse_metrics

PAGE = """\
# HELP etcd_disk_backend_defrag_duration_seconds The latency distribution of backend defragmentation.
# TYPE etcd_disk_backend_defrag_duration_seconds histogram
etcd_disk_backend_defrag_duration_seconds_bucket{le="0.1"} 7
etcd_disk_backend_defrag_duration_seconds_sum 0.25
etcd_disk_backend_defrag_duration_seconds_count 3
etcd_disk_defrag_inflight 1
etcd_server_id{server_id="3ec3e3bcba3b045"} 1
etcd_server_quota_backend_bytes 2.147483648e+09
grpc_server_handled_total{grpc_code="OK",grpc_method="Snapshot",grpc_service="x"} 2
grpc_server_handled_total{grpc_code="Canceled",grpc_method="Snapshot",grpc_service="x"} 1
grpc_server_handled_total{grpc_code="OK",grpc_method="Range",grpc_service="x"} 1e+06
grpc_server_started_total{grpc_method="Snapshot",grpc_service="x"} 5
etcd_network_snapshot_send_inflights_total{To="a"} 1
etcd_network_snapshot_receive_inflights_total{From="b"} 1
process_start_time_seconds 1.79599758349e+09
"""


def test_a_members_page_is_read_whole() -> None:
    """D16, D21, D36."""
    assert parse_metrics(PAGE) == MemberMetrics(
        defrag_count=3,
        defrag_inflight=1,
        process_start=1795997583.49,
        quota=2147483648,
        snapshot_streams=2,
        raft_snapshots_in_flight=2,
        server_id=0x3EC3E3BCBA3B045,
    )


def test_what_an_old_release_does_not_have_is_none_and_not_zero() -> None:
    """D16: only the raft snapshots are 0 while their rows are absent."""
    assert parse_metrics("etcd_server_has_leader 1\n") == MemberMetrics(raft_snapshots_in_flight=0)


def test_no_quota_at_all_is_negative() -> None:
    """D21."""
    found = parse_metrics("etcd_server_quota_backend_bytes -1\n")
    assert found is not None
    assert found.quota == -1


@pytest.mark.parametrize("page", ["", "<html>etcd_</html>", "process_start_time_seconds 1\n"])
def test_a_page_without_a_metric_of_etcds_is_not_etcds(page) -> None:
    assert parse_metrics(page) is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_is_not_there(value) -> None:
    found = parse_metrics(f"etcd_server_has_leader 1\netcd_disk_defrag_inflight {value}\n")
    assert found is not None
    assert found.defrag_inflight is None


async def test_a_page_that_comes_in_small_pieces_is_read_whole() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"HT")
    reading = asyncio.ensure_future(_read(reader))
    await asyncio.sleep(0)
    reader.feed_data(b"TP/1.0 200 OK\r\n\r\n")
    reader.feed_eof()
    assert await reading == b"HTTP/1.0 200 OK\r\n\r\n"


@given(st.text())
def test_any_page_is_read_or_refused_without_an_error(page) -> None:
    parse_metrics("etcd_server_has_leader 1\netcd_disk_defrag_inflight NaNa\n" + page)
