"""Codes and texts of each etcd release, and what they become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint import errors
from etcdmaint.etcd.faults import classify, fault, quotable

# Code and text as etcd 3.5, 3.6 and 3.7 send them (etcd-facts 3.2, 3.5, 7), and gRPC's own.
KNOWN = [
    ("UNKNOWN", "auth: user name is empty", errors.AuthenticationRequired),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", errors.AuthenticationRequired),
    ("UNKNOWN", "auth: permission denied", errors.PermissionDenied),
    ("PERMISSION_DENIED", "etcdserver: permission denied", errors.PermissionDenied),
    ("UNKNOWN", "auth: invalid auth token", errors.TokenExpired),
    ("UNAUTHENTICATED", "etcdserver: invalid auth token", errors.TokenExpired),
    ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", errors.TokenExpired),
    (
        "INVALID_ARGUMENT",
        "etcdserver: authentication failed, invalid user ID or password",
        errors.AuthenticationFailed,
    ),
    ("FAILED_PRECONDITION", "etcdserver: authentication is not enabled", errors.AuthNotEnabled),
    ("UNAVAILABLE", "etcdserver: rpc not supported for learner", errors.LearnerRefused),
    ("FAILED_PRECONDITION", "etcdserver: rpc not supported for learner", errors.LearnerRefused),
    ("FAILED_PRECONDITION", "etcdserver: not leader", errors.NotLeader),
    ("FAILED_PRECONDITION", "etcdserver: bad leader transferee", errors.BadTransferee),
    ("UNKNOWN", "raft proposal dropped", errors.ProposalDropped),
    ("UNAVAILABLE", "etcdserver: leader changed", errors.ProposalDropped),
    ("UNAVAILABLE", "etcdserver: no leader", errors.NoLeader),
    ("UNAVAILABLE", "etcdserver: request timed out", errors.RPCTimeout),
    (
        "UNAVAILABLE",
        "etcdserver: request timed out, possibly due to previous leader failure",
        errors.RPCTimeout,
    ),
    ("DEADLINE_EXCEEDED", "context deadline exceeded", errors.RPCTimeout),
    ("DEADLINE_EXCEEDED", "Deadline Exceeded", errors.RPCTimeout),
    ("UNKNOWN", "Stream removed (Deadline Exceeded)", errors.RPCTimeout),
    ("DEADLINE_EXCEEDED", "Received RST_STREAM with error code 8", errors.RPCTimeout),
    ("UNAVAILABLE", "etcdserver: server stopped", errors.ConnectionLost),
    ("UNAVAILABLE", "Socket closed", errors.ConnectionLost),
    ("UNAVAILABLE", "ping timeout", errors.ConnectionLost),
    ("INTERNAL", "Received RST_STREAM with error code 2", errors.ConnectionLost),
    ("UNKNOWN", "Stream removed", errors.ConnectionLost),
    ("CANCELLED", "", errors.ConnectionLost),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", errors.TooManyRequests),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", errors.SpaceExceeded),
    (
        "RESOURCE_EXHAUSTED",
        "CLIENT: Received message larger than max (5 vs. 4)",
        errors.MessageTooLarge,
    ),
    ("INVALID_ARGUMENT", "etcdserver: request is too large", errors.MessageTooLarge),
    (
        "UNKNOWN",
        "write /var/lib/etcd/member/snap/db.tmp.12: no space left on device",
        errors.NoDiskSpace,
    ),
    ("DATA_LOSS", "etcdserver: corrupt cluster", errors.ClusterCorrupt),
    (
        "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision has been compacted",
        errors.RevisionCompacted,
    ),
    (
        "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision is a future revision",
        errors.FutureRevision,
    ),
    ("NOT_FOUND", "etcdserver: requested lease not found", errors.LeaseNotFound),
    (
        "UNIMPLEMENTED",
        "unknown method RangeStream for service etcdserverpb.KV",
        errors.RPCUnsupported,
    ),
    ("UNIMPLEMENTED", "unknown service etcdserverpb.KV", errors.NotEtcd),
    ("UNIMPLEMENTED", "Method not found!", errors.NotEtcd),
    ("UNAVAILABLE", "Received http2 header with status: 503", errors.NotEtcd),
    ("UNIMPLEMENTED", "Received http2 header with status: 404", errors.NotEtcd),
    ("INVALID_ARGUMENT", "etcdserver: duplicate key given in txn request", errors.RPCFailed),
    ("INTERNAL", "whatever", errors.RPCFailed),
]


@pytest.mark.parametrize(("code", "details", "kind"), KNOWN)
def test_a_code_and_a_text_become_the_one_class_that_says_what_to_do(code, details, kind) -> None:
    """D50, D15, D64, D34: on each release, whatever code it uses for the same text."""
    assert classify(code, details, proven=False) is kind


@pytest.mark.parametrize(
    "details",
    ["Received http2 header with status: 504", "Method not found!"],
)
def test_a_proxy_in_front_of_a_known_member_leaves_the_outcome_unknown(details) -> None:
    """D33: a gateway's 504 under a Defragment does not mean that nothing runs."""
    assert classify("UNIMPLEMENTED", details, proven=True) is errors.ConnectionLost


@given(
    st.sampled_from(["UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED", "DEADLINE_EXCEEDED"]),
    st.text(max_size=60),
    st.booleans(),
)
def test_no_answer_to_a_call_that_was_sent_is_ever_read_as_nothing_was_carried_out(
    code, details, proven
) -> None:
    """D33: MemberUnreachable is decided before a call is sent, and only there."""
    assert not issubclass(classify(code, details, proven=proven), errors.MemberUnreachable)


def test_the_words_of_a_peer_that_is_not_known_to_be_etcd_are_not_repeated() -> None:
    """D51: whoever points us at a web server does not get to read its pages in a condition."""
    told = fault(
        "INTERNAL",
        "secret page",
        method="Status",
        endpoint="http://a:1",
        seconds=1.0,
        proven=False,
    )
    assert "secret" not in f"{told} {told.details}"
    assert str(told) == "Status at http://a:1: failed with INTERNAL"
    assert quotable("etcdserver: \x1b[2J", proven=False) == ""


def test_the_words_of_a_known_member_are_made_safe_to_print_and_short() -> None:
    told = quotable("write \x1b[2J" + "x" * 500, proven=True)
    assert told.startswith("write ?[2J")
    assert len(told) == 300


def test_a_timeout_says_how_long_it_was_waited() -> None:
    told = fault(
        "DEADLINE_EXCEEDED",
        "Deadline Exceeded",
        method="Status",
        endpoint="http://a:1",
        seconds=2.5,
        proven=True,
    )
    assert str(told) == "Status at http://a:1: no answer within 2.5 s"
    assert told.code == "DEADLINE_EXCEEDED"
