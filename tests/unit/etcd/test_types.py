"""The plain data: what it shows and what it hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.etcd import messages
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.types import (
    Alarm,
    AlarmKind,
    Compare,
    DeleteOp,
    KeyValue,
    Member,
    PutOp,
    RangeOp,
    format_id,
    prefix_end,
)


def test_an_id_is_printed_as_etcd_prints_it_with_its_leading_zeros() -> None:
    assert format_id(0x33EC3E3BCBA3B045) == "33ec3e3bcba3b045"
    assert format_id(1) == "0000000000000001"


def test_no_repr_shows_a_stored_value() -> None:
    """A value may be a Secret: D51."""
    for shown in (
        KeyValue(b"k", b"hunter2", 1, 1, 1),
        PutOp(b"k", b"hunter2"),
    ):
        assert "hunter2" not in repr(shown)
        assert "b'k'" in repr(shown)


def test_a_member_that_never_started_has_neither_name_nor_urls() -> None:
    """D11."""
    assert not Member(5, "").started
    assert str(Member(5, "")) == "0000000000000005"
    assert Member(5, "a", (), ("http://a",)).started


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_end_of_a_prefix_is_after_all_keys_with_it_and_before_the_next(prefix, rest) -> None:
    end = prefix_end(prefix)
    if end == b"\0":
        assert not prefix.strip(b"\xff")
    else:
        assert prefix + rest < end
        assert not end.startswith(prefix)


@pytest.mark.parametrize(
    ("condition", "wire"),
    [
        (Compare.version(b"k", 3), pb.Compare(key=b"k", target="VERSION", version=3)),
        (Compare.mod_revision(b"k", 0), pb.Compare(key=b"k", target="MOD", mod_revision=0)),
    ],
)
def test_a_comparison_reaches_the_wire_with_its_operand_set_even_when_it_is_zero(
    condition, wire
) -> None:
    request = messages.txn_request((condition,), (), ())
    assert request.compare[0] == wire
    assert request.compare[0].WhichOneof("target_union") is not None


def test_the_operations_of_a_txn_reach_the_wire_in_their_order() -> None:
    request = messages.txn_request(
        (), (PutOp(b"a", b"1", 7), DeleteOp(b"b")), (RangeOp(b"c", b"d", 2),)
    )
    put, delete = request.success
    assert (put.request_put.key, put.request_put.value, put.request_put.lease) == (b"a", b"1", 7)
    assert delete.request_delete_range.key == b"b"
    read = request.failure[0].request_range
    assert (read.key, read.range_end, read.limit) == (b"c", b"d", 2)


def test_a_negative_quota_arrives_negative_and_an_unknown_alarm_is_left_out() -> None:
    """D21."""
    wire = pb.StatusResponse(db_size_quota=-1).SerializeToString()
    assert messages.status(pb.StatusResponse.FromString(wire)).db_size_quota == -1
    rows = pb.AlarmResponse()
    rows.alarms.add(member_id=1, alarm=pb.NOSPACE)
    rows.alarms.add(member_id=2, alarm=9)
    assert messages.alarms(rows) == (Alarm(1, AlarmKind.NOSPACE),)
