"""Both parsers of ranges read the same, and neither is fooled by damaged messages."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.etcd import entries
from etcdmaint.etcd.entries import WALK_BYTES, Entry, parse
from etcdmaint.etcd.proto import etcd_pb2 as pb

_NUMBERS = st.integers(0, 2**63 - 1)
_ENTRIES = st.lists(
    st.builds(
        Entry,
        key=st.binary(max_size=40),
        value=st.binary(max_size=300),
        version=_NUMBERS,
        create_revision=_NUMBERS,
        mod_revision=_NUMBERS,
        lease=_NUMBERS,
    ),
    max_size=8,
)


def message(found: list[Entry], *, streamed: bool, header: bool = True) -> bytes:
    answer = pb.RangeResponse(
        kvs=[pb.KeyValue(**entry._asdict()) for entry in found], more=True, count=7
    )
    if header:
        answer.header.cluster_id = 2**64 - 1
        answer.header.member_id = 3
        answer.header.revision = 5
    whole = pb.RangeStreamResponse(range_response=answer) if streamed else answer
    return whole.SerializeToString()


@given(_ENTRIES, st.booleans(), st.booleans())
def test_both_parsers_read_what_etcd_sends(
    found: list[Entry], streamed: bool, header: bool
) -> None:
    data = message(found, streamed=streamed, header=header)
    for mean in (0.0, float(WALK_BYTES)):
        answer = parse(data, streamed=streamed, mean=mean)
        assert answer.entries == found
        assert (answer.more, answer.count) == (True, 7)
        assert answer.revision == (5 if header else 0)
        assert answer.cluster_id == (2**64 - 1 if header else 0)


@given(_ENTRIES, st.booleans(), st.data())
def test_a_message_that_is_cut_off_is_no_message_or_a_shorter_one(
    found: list[Entry], streamed: bool, data: st.DataObject
) -> None:
    whole = message(found, streamed=streamed)
    cut = whole[: data.draw(st.integers(0, max(len(whole) - 1, 0)))]
    for mean in (0.0, float(WALK_BYTES)):
        try:
            answer = parse(cut, streamed=streamed, mean=mean)
        except DecodeError:
            continue
        assert answer.entries == found[: len(answer.entries)]


@given(st.binary(max_size=200), st.booleans())
def test_rubbish_is_refused_and_never_anything_else(rubbish: bytes, streamed: bool) -> None:
    for mean in (0.0, float(WALK_BYTES)):
        try:
            parse(rubbish, streamed=streamed, mean=mean)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    "tail",
    [b"\x12\x05\x0a", b"\x12\x80", b"\x12" + b"\xff" * 11, b"\x13", b"\x12\x02\x0a\x7f"],
    ids=["longer than there is", "no length", "endless length", "a group", "inner length"],
)
def test_the_walk_refuses_fields_that_lie(tail: bytes) -> None:
    with pytest.raises(DecodeError):
        parse(tail, streamed=False, mean=float(WALK_BYTES))


@pytest.mark.parametrize(
    "field",
    [b"\x3a\x02ab", b"\x38\x07", b"\x82\x01\x02ab", b"\x3d\0\0\0\0"],
    ids=["bytes", "a number", "a field above 15", "a fixed number"],
)
def test_fields_of_a_later_release_are_passed_by(field: bytes) -> None:
    """In a message and in an entry, whatever the size of the values."""
    plain = message([Entry(b"k", b"v" * 300, 1, 2, 3, 4)], streamed=False)
    kv = pb.KeyValue(key=b"k", value=b"v").SerializeToString() + field
    for data in (plain + field, b"\x12" + bytes([len(kv)]) + kv):
        wanted = parse(data, streamed=False, mean=0.0)
        assert wanted.entries
        assert parse(data, streamed=False, mean=float(WALK_BYTES)) == wanted


def test_no_value_is_in_a_repr() -> None:
    """A22: tracebacks and logs show keys only."""
    entry = Entry(b"k", b"hunter2", 1, 1, 1, 0)
    assert "hunter2" not in repr(entry)
    assert "hunter2" not in repr(entries.Chunk([entry], 10))
    assert "hunter2" not in repr(entries.Answer([entry], False, 1, 1, 1, 1))
