"""One member of an etcd cluster, over one channel of its own.

Every call has a deadline and every failure is an `EtcdError` that says whether the call may have
been carried out. Nothing is retried, but for one login when etcd says that the token is no good:
then the call was refused before it began. This module must not know of other members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from google.protobuf.message import DecodeError
from grpc import aio

from etcdmaint import errors
from etcdmaint.errors import EtcdError
from etcdmaint.etcd import messages
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.connection import Connection
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.faults import fault
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.session import Session
from etcdmaint.etcd.types import (
    Alarm,
    AlarmKind,
    Compare,
    DeleteResult,
    Header,
    Member,
    MemberStatus,
    Op,
    PutResult,
    RangeResult,
    TxnResult,
    format_id,
)
from etcdmaint.etcd.watch import Watch


class RpcObserver(Protocol):
    """Told of each call once it has ended."""

    def rpc(self, method: str, code: str, seconds: float) -> None:
        """`method` is etcd's name of it (`Status`), `code` gRPC's (`OK`, `UNAVAILABLE`)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which member of which cluster is expected to answer."""

    cluster_id: int
    member_id: int


@dataclass(frozen=True, slots=True)
class _Rpc:
    path: str
    response: Any

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


_RANGE = _Rpc("/etcdserverpb.KV/Range", pb.RangeResponse)
_PUT = _Rpc("/etcdserverpb.KV/Put", pb.PutResponse)
_DELETE_RANGE = _Rpc("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeResponse)
_TXN = _Rpc("/etcdserverpb.KV/Txn", pb.TxnResponse)
_COMPACT = _Rpc("/etcdserverpb.KV/Compact", pb.CompactionResponse)
_WATCH = _Rpc("/etcdserverpb.Watch/Watch", pb.WatchResponse)
_LEASE_GRANT = _Rpc("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
_LEASE_REVOKE = _Rpc("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
_LEASE_KEEP_ALIVE = _Rpc("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
_MEMBER_LIST = _Rpc("/etcdserverpb.Cluster/MemberList", pb.MemberListResponse)
_ALARM = _Rpc("/etcdserverpb.Maintenance/Alarm", pb.AlarmResponse)
_STATUS = _Rpc("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
_DEFRAGMENT = _Rpc("/etcdserverpb.Maintenance/Defragment", pb.DefragmentResponse)
_MOVE_LEADER = _Rpc("/etcdserverpb.Maintenance/MoveLeader", pb.MoveLeaderResponse)
_AUTHENTICATE = _Rpc("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)

# These answer without a header, so a wrong member cannot be told from the right one afterwards.
_HEADERLESS = {_DEFRAGMENT.path, _MOVE_LEADER.path}


class MemberClient:
    """The RPCs of one member, as an async context manager; it connects at the first call.

    `timeout` (seconds) bounds each call that is not given its own, and every attempt to connect.
    `identity`, when set, must match every answer (WrongMember). `session` gives the tokens where
    they come from elsewhere: a learner knows them but hands out none. `keepalive` is how often, in
    seconds, the connection is pinged while a call is open; a peer silent for half as long more is
    given up. Every method raises only subclasses of `EtcdError`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        access: Access,
        *,
        timeout: float = 5.0,
        observer: RpcObserver | None = None,
        identity: Identity | None = None,
        session: Session | None = None,
        keepalive: float = 10.0,
    ) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        self.identity = identity
        self._observer = observer
        self._connection = Connection(endpoint, access, keepalive=keepalive)
        self._login = access.login
        if session is None and access.login is not None:
            session = Session(self._log_in)
        self._session = session
        self._proven = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that are still open end as ConnectionLost."""
        await self._connection.close()

    # Maintenance

    async def status(self, *, timeout: float | None = None) -> MemberStatus:
        """Maintenance/Status. Blocks while the member defragments: a timeout is not "down"."""
        return messages.status(await self._unary(_STATUS, pb.StatusRequest(), timeout))

    async def defragment(self, timeout: float) -> None:
        """Maintenance/Defragment. It cannot be cancelled: a second call queues a second one.

        Where an identity is set, the member is first asked who it is. If that fails, nothing was
        sent, which is what MemberUnreachable (or WrongMember) says. RPCTimeout and ConnectionLost
        mean that the member may still be at it.
        """
        await self._confirm(_DEFRAGMENT)
        await self._unary(_DEFRAGMENT, pb.DefragmentRequest(), timeout)

    async def move_leader(self, target_id: int, *, timeout: float | None = None) -> None:
        """Maintenance/MoveLeader, which only the leader answers (else NotLeader).

        Raises BadTransferee for a learner and for an unknown member. A target that is dead makes it
        hang until the deadline, and the cluster take no writes for an election timeout.
        """
        await self._confirm(_MOVE_LEADER)
        await self._unary(_MOVE_LEADER, pb.MoveLeaderRequest(target_id=target_id), timeout)

    async def alarms(self, *, timeout: float | None = None) -> tuple[Alarm, ...]:
        """Maintenance/Alarm GET: all armed alarms of the cluster. It needs a quorum."""
        request = pb.AlarmRequest(action=pb.AlarmRequest.GET)
        return messages.alarms(await self._unary(_ALARM, request, timeout))

    async def disarm(
        self, member_id: int, kind: AlarmKind, *, timeout: float | None = None
    ) -> None:
        """Maintenance/Alarm DEACTIVATE, of one member. An ID that raised none is a silent no-op."""
        request = pb.AlarmRequest(
            action=pb.AlarmRequest.DEACTIVATE,
            member_id=member_id,
            alarm=messages.alarm_type(kind),
        )
        await self._unary(_ALARM, request, timeout)

    # Cluster

    async def member_list(
        self, *, linearizable: bool = True, timeout: float | None = None
    ) -> tuple[Header, tuple[Member, ...]]:
        """Cluster/MemberList. Not linearizable, it is answered at once even in a defragmentation."""
        request = pb.MemberListRequest(linearizable=linearizable)
        answer = await self._unary(_MEMBER_LIST, request, timeout)
        return messages.header(answer.header), tuple(map(messages.member, answer.members))

    # Keys

    async def range(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        limit: int = 0,
        revision: int = 0,
        serializable: bool = False,
        keys_only: bool = False,
        count_only: bool = False,
        timeout: float | None = None,
    ) -> RangeResult:
        r"""KV/Range: a key, or all from `key` up to but without `range_end` (`b"\0"`: no end).

        `revision` 0 is the newest, `limit` 0 is none. Serializable reads are answered by the member
        alone, perhaps stale, and by learners as well.
        """
        request = pb.RangeRequest(
            key=key,
            range_end=range_end,
            limit=limit,
            revision=revision,
            serializable=serializable,
            keys_only=keys_only,
            count_only=count_only,
        )
        return messages.range_result(await self._unary(_RANGE, request, timeout))

    async def put(
        self, key: bytes, value: bytes, *, lease: int = 0, timeout: float | None = None
    ) -> PutResult:
        """KV/Put."""
        request = pb.PutRequest(key=key, value=value, lease=lease)
        return PutResult(messages.header((await self._unary(_PUT, request, timeout)).header))

    async def delete_range(
        self, key: bytes, range_end: bytes = b"", *, timeout: float | None = None
    ) -> DeleteResult:
        """KV/DeleteRange, with a range as in `range`."""
        request = pb.DeleteRangeRequest(key=key, range_end=range_end)
        answer = await self._unary(_DELETE_RANGE, request, timeout)
        return DeleteResult(messages.header(answer.header), answer.deleted)

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Op],
        failure: Sequence[Op] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        """KV/Txn: if all comparisons hold, then `success`, else `failure`."""
        request = messages.txn_request(tuple(compare), tuple(success), tuple(failure))
        return messages.txn_result(await self._unary(_TXN, request, timeout))

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> Header:
        """KV/Compact. `physical` waits until the space is free, else only the history is cut off.

        Raises RevisionCompacted where it has already happened, FutureRevision beyond the newest.
        """
        request = pb.CompactionRequest(revision=revision, physical=physical)
        return messages.header((await self._unary(_COMPACT, request, timeout)).header)

    # Leases

    async def lease_grant(self, ttl: int, *, timeout: float | None = None) -> tuple[int, int]:
        """Lease/LeaseGrant for `ttl` seconds: the lease's ID, and the seconds that etcd gave."""
        answer = await self._unary(_LEASE_GRANT, pb.LeaseGrantRequest(ttl=ttl), timeout)
        return answer.id, answer.ttl

    async def lease_revoke(self, lease_id: int, *, timeout: float | None = None) -> None:
        """Lease/LeaseRevoke: its keys are deleted. LeaseNotFound where it is gone already."""
        await self._unary(_LEASE_REVOKE, pb.LeaseRevokeRequest(id=lease_id), timeout)

    async def lease_keep_alive(self, lease_id: int, *, timeout: float | None = None) -> int:
        """Lease/LeaseKeepAlive, one beat: the seconds left. LeaseNotFound where it has expired."""
        request = pb.LeaseKeepAliveRequest(id=lease_id)
        answer = await self._call(_LEASE_KEEP_ALIVE, request, timeout, self._first_of_stream)
        if answer.ttl <= 0:
            raise errors.LeaseNotFound(
                f"LeaseKeepAlive at {self.endpoint}: lease {format_id(lease_id)} has expired",
                code="NOT_FOUND",
                endpoint=str(self.endpoint),
            )
        return int(answer.ttl)

    # Watch

    @asynccontextmanager
    async def watch(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        progress_notify: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Watch]:
        """Watch/Watch of a range as in `range`, from `start_revision` on (0: from now on).

        It requires a leader: a member cut off from the others ends it with NoLeader rather than
        going silent. `timeout` is for the start; there is none afterwards. RevisionCompacted (from
        here or from the iteration) has the `compact_revision`; to start again is the caller's part.
        """
        request = pb.WatchCreateRequest(
            key=key,
            range_end=range_end,
            start_revision=start_revision,
            progress_notify=progress_notify,
        )
        watch = await self._call(
            _WATCH, pb.WatchRequest(create_request=request), timeout, self._open_watch
        )
        with self._connection:
            try:
                yield watch
            finally:
                watch.cancel()

    # Auth

    async def authenticate(self, *, timeout: float | None = None) -> str:
        """Auth/Authenticate with the login of the access: a new token. Calls do this by themselves.

        Raises AuthenticationFailed, or AuthNotEnabled. It needs a quorum, and a member that is not
        being defragmented; a learner refuses it.
        """
        assert self._login is not None
        request = pb.AuthenticateRequest(name=self._login.user, password=self._login.password)
        return str((await self._unary(_AUTHENTICATE, request, timeout)).token)

    # How a call is made

    async def _confirm(self, rpc: _Rpc) -> None:
        if self.identity is None:
            return
        try:
            await self.status()
        except (errors.RPCTimeout, errors.ConnectionLost) as unknown:
            raise errors.MemberUnreachable(
                f"{rpc.method} was not sent: {unknown}",
                code=unknown.code,
                endpoint=unknown.endpoint,
            ) from unknown

    async def _unary(self, rpc: _Rpc, request: Any, timeout: float | None) -> Any:
        answer = await self._call(rpc, request, timeout, self._answer)
        if rpc.path not in _HEADERLESS:
            self._verify(rpc, answer.header)
        return answer

    async def _call(self, rpc: _Rpc, request: Any, timeout: float | None, send: Any) -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seconds = self.timeout if timeout is None else timeout
        deadline = begun + seconds
        code = "OK"
        try:
            channel = await self._connection.ready(min(deadline, begun + self.timeout))
            with self._connection:
                return await self._send(channel, rpc, request, deadline, send)
        except EtcdError as failure:
            code = failure.code
            raise
        except BaseException:
            code = "CANCELLED"
            raise
        finally:
            if self._observer is not None:
                self._observer.rpc(rpc.method, code, loop.time() - begun)

    async def _send(
        self, channel: aio.Channel, rpc: _Rpc, request: Any, deadline: float, send: Any
    ) -> Any:
        if self._session is None or rpc is _AUTHENTICATE:
            return await self._translated(channel, rpc, request, deadline, send, token=None)
        token = await self._token(deadline)
        try:
            return await self._translated(channel, rpc, request, deadline, send, token=token)
        except errors.TokenExpired:
            token = await self._token(deadline, stale=token)
            return await self._translated(channel, rpc, request, deadline, send, token=token)

    async def _translated(
        self,
        channel: aio.Channel,
        rpc: _Rpc,
        request: Any,
        deadline: float,
        send: Any,
        *,
        token: str | None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        metadata = (("token", token),) if token is not None else ()
        try:
            return await send(channel, rpc, request, max(deadline - begun, 0.001), metadata)
        except aio.AioRpcError as failure:
            raise self._fault(
                rpc, failure.code().name, failure.details() or "", loop.time() - begun
            ) from None
        except DecodeError:
            raise self._not_etcd(rpc) from None
        except asyncio.CancelledError:
            # gRPC cancels what is open when a channel is closed; a cancelled caller is another thing.
            task = asyncio.current_task()
            if self._connection.closed and task is not None and not task.cancelling():
                raise self._fault(rpc, "CANCELLED", "", loop.time() - begun) from None
            raise

    async def _token(self, deadline: float, *, stale: str | None = None) -> str:
        assert self._session is not None
        try:
            return await self._session.token(deadline, stale=stale)
        except TimeoutError:
            raise self._fault(_AUTHENTICATE, "DEADLINE_EXCEEDED", "", self.timeout) from None

    async def _log_in(self, deadline: float) -> str:
        return await self.authenticate(timeout=deadline - asyncio.get_running_loop().time())

    async def _answer(
        self, channel: aio.Channel, rpc: _Rpc, request: Any, seconds: float, metadata: Any
    ) -> Any:
        call = channel.unary_unary(rpc.path)
        answer = await call(request.SerializeToString(), timeout=seconds, metadata=metadata)
        # Parsed here: gRPC would log a message that it cannot parse, and answer None.
        return rpc.response.FromString(answer)

    async def _first_of_stream(
        self, channel: aio.Channel, rpc: _Rpc, request: Any, seconds: float, metadata: Any
    ) -> Any:
        call = channel.stream_stream(rpc.path)(
            iter([request.SerializeToString()]), timeout=seconds, metadata=metadata
        )
        try:
            async for answer in call:
                return rpc.response.FromString(answer)
            raise self._not_etcd(rpc)
        finally:
            call.cancel()

    async def _open_watch(
        self, channel: aio.Channel, rpc: _Rpc, request: Any, seconds: float, metadata: Any
    ) -> Watch:
        call = channel.stream_stream(rpc.path)(metadata=(*metadata, ("hasleader", "true")))
        watch = Watch(call, self._fault_of_watch)
        try:
            async with asyncio.timeout(seconds):
                await watch.open(request.SerializeToString())
        except BaseException as failure:
            watch.cancel()
            if isinstance(failure, TimeoutError):
                raise self._fault(rpc, "DEADLINE_EXCEEDED", "", seconds) from None
            raise
        return watch

    def _fault_of_watch(self, code: str, details: str) -> EtcdError:
        return self._fault(_WATCH, code, details, 0.0)

    def _fault(self, rpc: _Rpc, code: str, details: str, seconds: float) -> EtcdError:
        return fault(
            code,
            details,
            method=rpc.method,
            endpoint=str(self.endpoint),
            seconds=seconds,
            proven=self._proven,
        )

    def _not_etcd(self, rpc: _Rpc) -> EtcdError:
        return errors.NotEtcd(
            f"{rpc.method} at {self.endpoint}: what answers there is not etcd",
            code="INTERNAL",
            endpoint=str(self.endpoint),
        )

    def _verify(self, rpc: _Rpc, header: Any) -> None:
        if header.cluster_id == 0 or header.member_id == 0:
            raise self._not_etcd(rpc)
        self._proven = True
        found = Identity(header.cluster_id, header.member_id)
        if self.identity is None or found == self.identity:
            return
        if found.cluster_id != self.identity.cluster_id:
            what = "cluster"
            wanted, got = self.identity.cluster_id, found.cluster_id
        else:
            what = "member"
            wanted, got = self.identity.member_id, found.member_id
        raise errors.WrongMember(
            f"{rpc.method} at {self.endpoint}: {what} {format_id(got)} answered, "
            f"not {format_id(wanted)}",
            endpoint=str(self.endpoint),
        )
