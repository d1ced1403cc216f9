"""Between etcd's wire messages and the plain data of `types`.

Nothing here does I/O, and nothing outside of this package sees a protobuf message.
"""

from __future__ import annotations

from typing import Any

from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.types import (
    Alarm,
    AlarmKind,
    Compare,
    CompareTarget,
    DeleteOp,
    DeleteResult,
    Header,
    KeyValue,
    Member,
    MemberStatus,
    Op,
    OpResult,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    TxnResult,
)


def header(message: Any) -> Header:
    """A ResponseHeader."""
    return Header(message.cluster_id, message.member_id, message.revision, message.raft_term)


def member(message: Any) -> Member:
    """A row of MemberListResponse."""
    return Member(
        id=message.id,
        name=message.name,
        peer_urls=tuple(message.peer_urls),
        client_urls=tuple(message.client_urls),
        is_learner=message.is_learner,
    )


def status(message: Any) -> MemberStatus:
    """A StatusResponse."""
    return MemberStatus(
        header=header(message.header),
        version=message.version,
        db_size=message.db_size,
        db_size_in_use=message.db_size_in_use,
        leader=message.leader,
        raft_index=message.raft_index,
        raft_applied_index=message.raft_applied_index,
        raft_term=message.raft_term,
        errors=tuple(message.errors),
        is_learner=message.is_learner,
        db_size_quota=message.db_size_quota,
        storage_version=message.storage_version,
        downgrade_enabled=message.downgrade_info.enabled,
    )


def alarm_type(kind: AlarmKind) -> Any:
    """The number of an alarm on the wire."""
    return pb.AlarmType.Value(kind.value)


_KINDS = {pb.NOSPACE: AlarmKind.NOSPACE, pb.CORRUPT: AlarmKind.CORRUPT}


def alarms(message: Any) -> tuple[Alarm, ...]:
    """The armed alarms of an AlarmResponse; a kind that is yet to be invented is left out."""
    return tuple(
        Alarm(row.member_id, _KINDS[row.alarm]) for row in message.alarms if row.alarm in _KINDS
    )


def key_value(kv: Any) -> KeyValue:
    """A KeyValue."""
    return KeyValue(kv.key, kv.value, kv.version, kv.create_revision, kv.mod_revision, kv.lease)


def range_result(message: Any) -> RangeResult:
    """A RangeResponse."""
    return RangeResult(
        header=header(message.header),
        kvs=tuple(map(key_value, message.kvs)),
        more=message.more,
        count=message.count,
    )


def txn_request(
    compare: tuple[Compare, ...], success: tuple[Op, ...], failure: tuple[Op, ...]
) -> Any:
    """A TxnRequest: all comparisons hold, then `success`, else `failure`."""
    return pb.TxnRequest(
        compare=map(_compare, compare), success=map(_op, success), failure=map(_op, failure)
    )


_OPERANDS = {CompareTarget.VERSION: "version", CompareTarget.MOD: "mod_revision"}


def _compare(condition: Compare) -> Any:
    return pb.Compare(
        key=condition.key,
        target=condition.target.value,
        result=pb.Compare.EQUAL,
        **{_OPERANDS[condition.target]: condition.operand},
    )


def _op(op: Op) -> Any:
    match op:
        case PutOp():
            put = pb.PutRequest(key=op.key, value=op.value, lease=op.lease)
            return pb.RequestOp(request_put=put)
        case RangeOp():
            read = pb.RangeRequest(key=op.key, range_end=op.range_end, limit=op.limit)
            return pb.RequestOp(request_range=read)
        case DeleteOp():
            delete = pb.DeleteRangeRequest(key=op.key, range_end=op.range_end)
            return pb.RequestOp(request_delete_range=delete)


def txn_result(message: Any) -> TxnResult:
    """A TxnResponse."""
    return TxnResult(
        header=header(message.header),
        succeeded=message.succeeded,
        responses=tuple(map(_op_result, message.responses)),
    )


def _op_result(message: Any) -> OpResult:
    match message.WhichOneof("response"):
        case "response_put":
            return PutResult(header(message.response_put.header))
        case "response_delete_range":
            deleted = message.response_delete_range
            return DeleteResult(header(deleted.header), deleted.deleted)
        case _:
            return range_result(message.response_range)
