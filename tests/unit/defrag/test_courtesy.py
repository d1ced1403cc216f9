"""Whom a reader stands back for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etcdmaint.defrag.courtesy import SlotCourtesy
from etcdmaint.defrag.lock import SLOT_KEY, SlotValue
from etcdmaint.defrag.process import process_holder
from etcdmaint.errors import EtcdError, RPCTimeout
from etcdmaint.etcd.types import Header, KeyValue, Member, RangeResult

OPERATOR = SlotValue(holder="operator etcdmaint-0", epoch="1", run="r").encode()
# A process number that no kernel gives out.
DEAD = process_holder().rpartition(" pid=")[0] + " pid=999999999 start=1"
GONE = SlotValue(holder=DEAD, epoch="1", run="r").encode()


def cluster(*answers: bytes | EtcdError | None) -> Any:
    """The first member is a learner, and is not to be asked."""

    def client(member_id: int) -> Any:
        assert member_id > 0
        answer = answers[member_id - 1]

        async def read(key: bytes, **_: object) -> RangeResult:
            assert key == SLOT_KEY
            if isinstance(answer, EtcdError):
                raise answer
            kvs = () if answer is None else (KeyValue(key, answer, 1, 1, 1),)
            return RangeResult(Header(7, member_id, 1, 1), kvs, False, len(kvs))

        return SimpleNamespace(range=read)

    members = [Member(0, "learner", is_learner=True)]
    members += [Member(number + 1, f"m{number}") for number in range(len(answers))]
    return SimpleNamespace(members=members, client=client)


@pytest.mark.parametrize(
    ("answers", "holder"),
    [
        ([OPERATOR], "operator etcdmaint-0"),
        ([None], ""),
        ([GONE], ""),
        ([b"rubbish"], "somebody who writes another format"),
        ([RPCTimeout("defragmenting"), OPERATOR], "operator etcdmaint-0"),
        ([RPCTimeout("defragmenting"), None], ""),
        ([RPCTimeout("late"), RPCTimeout("late")], ""),
    ],
    ids=["held", "free", "dead", "unknown", "one does not answer", "… and free", "nobody answers"],
)
async def test_whoever_may_be_at_work_is_told(
    answers: list[bytes | EtcdError | None], holder: str
) -> None:
    """D63: only who is proven dead is nobody."""
    assert await SlotCourtesy(cluster(*answers)).holder() == holder
