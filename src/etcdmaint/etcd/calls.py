"""How a call is made: deadline, token, failure, and the proof of who answered.

The one place that sends anything. It must not know what the calls are for: `client` says that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from grpc import aio

from etcdmaint import errors
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.connection import Connection
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.faults import fault
from etcdmaint.etcd.session import Session
from etcdmaint.etcd.types import format_id


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
class Rpc:
    """One of etcd's methods, and the message that it answers with.

    A few answer without a header: a wrong member cannot be told from the right one afterwards. One that
    is `unstoppable` goes on in etcd whatever becomes of its caller, so its time begins when it is sent.
    """

    path: str
    response: Any
    has_header: bool = True
    unstoppable: bool = False

    @property
    def method(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Sending:
    """A call about to be sent: `body` is the request on the wire, `seconds` what is left for it."""

    channel: aio.Channel
    rpc: Rpc
    body: bytes
    seconds: float
    metadata: tuple[tuple[str, str], ...]


def not_sent(rpc: Rpc, why: EtcdError) -> errors.MemberUnreachable:
    """The failure of something that had to go well before the call itself."""
    return errors.MemberUnreachable(
        f"{rpc.method} was not sent: {why}", code=why.code, endpoint=why.endpoint
    )


# Seconds by which a server may be ahead of us with one deadline.
_SLACK = 0.05

Exchange = Callable[[Sending], Awaitable[Any]]


async def one_message(sending: Sending) -> bytes:
    """A unary call, and what it is answered on the wire."""
    call = sending.channel.unary_unary(sending.rpc.path)
    answer = await call(sending.body, timeout=sending.seconds, metadata=sending.metadata)
    if answer is None:
        # A good end and no message: whatever stands in between made that up.
        raise DecodeError
    return bytes(answer)


async def one_answer(sending: Sending) -> Any:
    """A unary call, and its answer."""
    # Parsed here: gRPC would log a message that it cannot parse, and answer None.
    return sending.rpc.response.FromString(await one_message(sending))


def answers(sending: Sending, **options: Any) -> Any:
    """Open a stream of answers to one request; `read` gives the next, as bytes.

    Also where etcd would take more requests than one: gRPC says `Internal error from Core` in place
    of the status when a server refuses a stream that is still being written to.
    """
    return sending.channel.unary_stream(sending.rpc.path)(sending.body, **options)


async def first_answer(sending: Sending) -> Any:
    """A stream that is given up after its first answer."""
    call = answers(sending, timeout=sending.seconds, metadata=sending.metadata)
    try:
        answer = await call.read()
    finally:
        call.cancel()
    if answer is aio.EOF:
        raise DecodeError
    return sending.rpc.response.FromString(answer)


class Caller:
    """Makes calls to one address; see `MemberClient` for the arguments."""

    def __init__(
        self,
        endpoint: Endpoint,
        access: Access,
        *,
        timeout: float,
        observer: RpcObserver | None,
        identity: Identity | None,
        session: Session,
        keepalive: float,
    ) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        self.identity = identity
        self.connection = Connection(endpoint, access, keepalive=keepalive)
        self._observer = observer
        self._session = session if access.login is not None else None
        self._proven = False

    async def unary(
        self, rpc: Rpc, request: Any, timeout: float | None, exchange: Exchange = one_answer
    ) -> Any:
        """Send a request and give the one answer, from whom it should be."""
        answer = await self.call(rpc, request, timeout, exchange)
        if rpc.has_header:
            self.verify(rpc, answer.header)
        return answer

    async def call(self, rpc: Rpc, request: Any, timeout: float | None, exchange: Exchange) -> Any:
        """Send a request in the way of `exchange`, within `timeout` seconds (None: the default).

        To connect and to log in may take the default each, and no longer than that.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        seconds = self.timeout if timeout is None else timeout
        body = request.SerializeToString()
        code = "OK"
        try:
            if rpc.unstoppable and self.identity is not None and not self.connection.connected:
                # Who was asked a moment ago who it is may not be who is there on another connection.
                raise not_sent(rpc, self._gone("the connection has just broken"))
            channel = await self.connection.ready(begun + min(seconds, self.timeout))
            with self.connection.holding(channel):
                return await self._authorized(channel, rpc, body, begun, seconds, exchange)
        except EtcdError as failure:
            code = failure.code
            raise
        except BaseException:
            code = "CANCELLED"
            raise
        finally:
            if self._observer is not None:
                self._observer.rpc(rpc.method, code, loop.time() - begun)

    async def _authorized(
        self,
        channel: aio.Channel,
        rpc: Rpc,
        body: bytes,
        begun: float,
        seconds: float,
        exchange: Exchange,
    ) -> Any:
        now = asyncio.get_running_loop().time
        session = self._session

        async def send(token: str | None) -> Any:
            left = seconds if rpc.unstoppable else max(begun + seconds - now(), 0.001)
            metadata = () if token is None else (("token", token),)
            return await self._translated(Sending(channel, rpc, body, left, metadata), exchange)

        # Authenticate is what a session itself sends.
        if session is None or rpc.method == "Authenticate":
            return await send(None)

        async def log_in(stale: str | None = None) -> str:
            try:
                return await session.token(min(begun + seconds, now() + self.timeout), stale=stale)
            except (errors.RPCTimeout, errors.ConnectionLost) as unknown:
                if rpc.unstoppable:
                    raise not_sent(rpc, unknown) from unknown
                raise

        token = await log_in()
        try:
            return await send(token)
        except errors.TokenExpired:
            renewed = await log_in(stale=token)
            if rpc.unstoppable:
                # Who is there may have changed meanwhile, and is to be asked again first.
                raise
            return await send(renewed)

    async def _translated(self, sending: Sending, exchange: Exchange) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + sending.seconds
        try:
            return await exchange(sending)
        except aio.AioRpcError as failure:
            code, details = failure.code().name, failure.details() or ""
            if code == "CANCELLED" and loop.time() > deadline - _SLACK:
                # The server's clock ran out first, and its reset of the stream was the faster.
                code = "DEADLINE_EXCEEDED"
        except TimeoutError:
            code, details = "DEADLINE_EXCEEDED", ""
        except DecodeError:
            raise self._not_etcd(sending.rpc) from None
        except aio.UsageError:
            raise not_sent(sending.rpc, self._gone("this client is closed")) from None
        except asyncio.CancelledError:
            # gRPC cancels what is open when a channel is closed; a cancelled caller is another thing.
            task = asyncio.current_task()
            if not self.connection.closed or task is None or task.cancelling():
                raise
            code, details = "CANCELLED", ""
        raise self.fault(sending.rpc, code, details, sending.seconds)

    def fault(self, rpc: Rpc, code: str, details: str, seconds: float) -> EtcdError:
        """The exception for a call that failed after it was sent with `seconds` to go."""
        return fault(
            code,
            details,
            method=rpc.method,
            endpoint=str(self.endpoint),
            seconds=seconds,
            proven=self._proven,
        )

    def _gone(self, why: str) -> EtcdError:
        where = str(self.endpoint)
        return errors.MemberUnreachable(f"{where}: {why}", code="UNAVAILABLE", endpoint=where)

    def _not_etcd(self, rpc: Rpc) -> EtcdError:
        return errors.NotEtcd(
            f"{rpc.method} at {self.endpoint}: what answers there is not etcd",
            code="INTERNAL",
            endpoint=str(self.endpoint),
        )

    def verify(self, rpc: Rpc, header: Any) -> None:
        """Raise WrongMember, or NotEtcd, unless this is from whom it should be.

        `header` is whatever has a `cluster_id` and a `member_id`.
        """
        found = Identity(header.cluster_id, header.member_id)
        if found.cluster_id == 0 or found.member_id == 0:
            raise self._not_etcd(rpc)
        self._proven = True
        wanted = self.identity
        if wanted is None or found == wanted:
            return
        what, got, expected = "member", found.member_id, wanted.member_id
        if found.cluster_id != wanted.cluster_id:
            what, got, expected = "cluster", found.cluster_id, wanted.cluster_id
        raise errors.WrongMember(
            f"{rpc.method} at {self.endpoint}: {what} {format_id(got)} answered, "
            f"not {format_id(expected)}",
            endpoint=str(self.endpoint),
        )
