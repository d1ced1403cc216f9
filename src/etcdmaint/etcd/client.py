"""One member of an etcd cluster, over one channel of its own.

Every call has a deadline and every failure is an `EtcdError` that says whether the call may have
been carried out. Nothing is retried, but for one login when etcd says that the token is no good:
then the call was refused before it began. This module must not know of other members.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from grpc import aio

from etcdmaint import errors
from etcdmaint.etcd import messages
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.calls import (
    Caller,
    Identity,
    Rpc,
    RpcObserver,
    Sending,
    answers,
    first_answer,
    not_sent,
)
from etcdmaint.etcd.endpoint import Endpoint
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

__all__ = ["Identity", "MemberClient", "RpcObserver"]

_RANGE = Rpc("/etcdserverpb.KV/Range", pb.RangeResponse)
_PUT = Rpc("/etcdserverpb.KV/Put", pb.PutResponse)
_DELETE_RANGE = Rpc("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeResponse)
_TXN = Rpc("/etcdserverpb.KV/Txn", pb.TxnResponse)
_COMPACT = Rpc("/etcdserverpb.KV/Compact", pb.CompactionResponse)
_WATCH = Rpc("/etcdserverpb.Watch/Watch", pb.WatchResponse)
_LEASE_GRANT = Rpc("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
_LEASE_REVOKE = Rpc("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
_LEASE_KEEP_ALIVE = Rpc("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
_MEMBER_LIST = Rpc("/etcdserverpb.Cluster/MemberList", pb.MemberListResponse)
_ALARM = Rpc("/etcdserverpb.Maintenance/Alarm", pb.AlarmResponse)
_STATUS = Rpc("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
_DEFRAGMENT = Rpc(
    "/etcdserverpb.Maintenance/Defragment",
    pb.DefragmentResponse,
    has_header=False,
    unstoppable=True,
)
_MOVE_LEADER = Rpc("/etcdserverpb.Maintenance/MoveLeader", pb.MoveLeaderResponse, has_header=False)
_AUTHENTICATE = Rpc("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)


class MemberClient:
    """The RPCs of one member, as an async context manager; it connects at the first call.

    `timeout` (seconds) bounds each call that is not given its own, and every attempt to connect.
    `identity`, when set, must match every answer (WrongMember). `session` gives the tokens where
    they come from elsewhere: a learner knows them but hands out none. `keepalive` is how often, in
    seconds, the connection is pinged while a call is open; a peer silent for as long again is given
    up. Every method raises only subclasses of `EtcdError`.
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
        self._login = access.login
        self._caller = Caller(
            endpoint,
            access,
            timeout=timeout,
            observer=observer,
            identity=identity,
            session=session or Session(self._log_in, str(endpoint)),
            keepalive=keepalive,
        )
        self._unary = self._caller.unary

    @property
    def endpoint(self) -> Endpoint:
        """The address as it was given: what is dialled may be another one, by the address map."""
        return self._caller.endpoint

    @property
    def caller(self) -> Caller:
        """For the modules of this package that have calls of their own."""
        return self._caller

    def expect(self, identity: Identity) -> None:
        """From now on take answers from nobody else."""
        self._caller.identity = identity

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that are still open end as ConnectionLost."""
        await self._caller.connection.close()

    # Maintenance

    async def status(self, *, timeout: float | None = None) -> MemberStatus:
        """Maintenance/Status. Blocks while the member defragments: a timeout is not "down"."""
        return messages.status(await self._unary(_STATUS, pb.StatusRequest(), timeout))

    async def defragment(
        self, timeout: float, *, last_check: Callable[[], None] = lambda: None
    ) -> None:
        """Maintenance/Defragment. It cannot be cancelled: a second call queues a second one.

        Where an identity is set, the member is first asked who it is. If that fails, or a log-in does,
        nothing was sent, which is what MemberUnreachable (or WrongMember) says. RPCTimeout and
        ConnectionLost mean that the member may still be at it: `timeout` counts from the sending.
        `last_check` comes after all that takes time, and nothing is sent when it raises.
        """
        for retried in (False, True):
            await self._confirm(_DEFRAGMENT)
            last_check()
            try:
                await self._unary(_DEFRAGMENT, pb.DefragmentRequest(), timeout)
                return
            except errors.TokenExpired:
                # Refused before it began, and there is a new token now.
                if retried:
                    raise

    async def move_leader(
        self,
        target_id: int,
        *,
        timeout: float | None = None,
        last_check: Callable[[], None] = lambda: None,
    ) -> None:
        """Maintenance/MoveLeader, which only the leader answers (else NotLeader).

        Raises BadTransferee for a learner and for an unknown member. A target that is dead makes it
        hang until the deadline, and the cluster take no writes for an election timeout. `last_check`
        as in `defragment`.
        """
        await self._confirm(_MOVE_LEADER)
        last_check()
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
        answer = await self._unary(_LEASE_KEEP_ALIVE, request, timeout, first_answer)
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
        going silent. `progress_notify` has etcd tell now and then (every ten minutes, unless it is
        configured otherwise) up to which revision nothing was missed. `timeout` is for the start;
        there is none afterwards. RevisionCompacted (from here or from the iteration) has the
        `compact_revision`; to start again is the caller's part.
        """
        request = pb.WatchCreateRequest(
            key=key,
            range_end=range_end,
            start_revision=start_revision,
            progress_notify=progress_notify,
        )
        create = pb.WatchRequest(create_request=request)
        channel, watch = await self._caller.call(_WATCH, create, timeout, self._open_watch)
        with self._caller.connection.holding(channel):
            try:
                yield watch
            finally:
                watch.cancel()

    async def _open_watch(self, sending: Sending) -> tuple[aio.Channel, Watch]:
        call = answers(sending, metadata=(*sending.metadata, ("hasleader", "true")))
        watch = Watch(call, lambda code, details: self._caller.fault(_WATCH, code, details, 0.0))
        try:
            async with asyncio.timeout(sending.seconds):
                await watch.open()
            self._caller.verify(_WATCH, watch.header)
        except BaseException:
            watch.cancel()
            raise
        return sending.channel, watch

    # Auth

    async def authenticate(self, *, timeout: float | None = None) -> str:
        """Auth/Authenticate with the login of the access: a new token. Calls do this by themselves.

        Raises AuthenticationFailed, or AuthNotEnabled. It needs a quorum, and a member that is not
        being defragmented; a learner refuses it.
        """
        assert self._login is not None
        request = pb.AuthenticateRequest(name=self._login.user, password=self._login.password)
        token = str((await self._unary(_AUTHENTICATE, request, timeout)).token)
        if not (token.isascii() and token.isprintable() and token):
            # It could not be sent as metadata.
            raise errors.NotEtcd(
                f"Authenticate at {self.endpoint}: what it gives is no token",
                code="INTERNAL",
                endpoint=str(self.endpoint),
            )
        return token

    async def _log_in(self, deadline: float) -> str:
        return await self.authenticate(timeout=deadline - asyncio.get_running_loop().time())

    async def _confirm(self, rpc: Rpc) -> None:
        if self._caller.identity is None:
            return
        try:
            await self.status()
        except (errors.RPCTimeout, errors.ConnectionLost) as unknown:
            raise not_sent(rpc, unknown) from unknown
