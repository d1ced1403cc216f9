"""A key-value store in memory that stands in for etcd where time must be the test's own.

It is no etcd: it knows one key, a revision that counts writes, and how far it is compacted. What real
etcd answers is shown by tests/etcd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from etcdmaint.compaction.election import KEY
from etcdmaint.errors import EtcdError, FutureRevision, RevisionCompacted, SpaceExceeded
from etcdmaint.etcd.types import (
    Compare,
    Header,
    KeyValue,
    Op,
    PutOp,
    PutResult,
    RangeResult,
    TxnResult,
)


@dataclass
class InMemoryStore:
    """One store, shared by any number of contenders; each call is carried out at once."""

    revision: int = 1
    kv: KeyValue | None = None
    compacted: int = 0
    nospace: bool = False
    compactions: list[tuple[int, bool]] = field(default_factory=list)
    """Every compaction that was carried out: its revision, and whether it was physical."""
    txns: list[tuple[Sequence[Compare], Sequence[Op], Sequence[Op]]] = field(default_factory=list)
    refuse: Callable[[str], EtcdError | None] = lambda _: None
    """Raises what a test wants an RPC of that name to fail with."""

    @property
    def header(self) -> Header:
        return Header(cluster_id=1, member_id=1, revision=self.revision)

    @property
    def version(self) -> int:
        return self.kv.version if self.kv else 0

    def write(self, times: int = 1) -> None:
        """Somebody writes other keys."""
        self.revision += times

    def put(self, value: bytes) -> None:
        """Somebody writes the key."""
        self.revision += 1
        created = self.kv.create_revision if self.kv else self.revision
        self.kv = KeyValue(KEY, value, self.version + 1, created, self.revision)

    def delete(self) -> None:
        """Somebody deletes the key."""
        if self.kv is not None:
            self.revision += 1
            self.kv = None

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Op],
        failure: Sequence[Op] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        self._fail("txn")
        if self.nospace:
            raise SpaceExceeded("mvcc: database space exceeded")
        self.txns.append((compare, success, failure))
        (condition,) = compare
        assert condition.key == KEY
        if condition.operand == self.version:
            (put,) = success
            assert isinstance(put, PutOp)
            self.put(put.value)
            return TxnResult(self.header, True, (PutResult(self.header),))
        return TxnResult(self.header, False, (self._found(),))

    async def range(self, key: bytes, *, timeout: float | None = None) -> RangeResult:
        self._fail("range")
        assert key == KEY
        return self._found()

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> Header:
        self._fail("compact")
        if revision <= self.compacted:
            raise RevisionCompacted("required revision has been compacted")
        if revision > self.revision:
            raise FutureRevision("required revision is a future revision")
        self.compacted = revision
        self.compactions.append((revision, physical))
        return self.header

    def _found(self) -> RangeResult:
        kvs = (self.kv,) if self.kv else ()
        return RangeResult(self.header, kvs, count=len(kvs))

    def _fail(self, rpc: str) -> None:
        fault = self.refuse(rpc)
        if fault is not None:
            raise fault
