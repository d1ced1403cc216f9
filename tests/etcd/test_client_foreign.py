"""Whatever may listen where etcd should: web servers, proxies, silence, rubbish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.diagnosis import connection
from etcdmaint.etcd.endpoint import AddressMap, Endpoint
from etcdmaint.etcd.metrics import read_metrics
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.session import Session
from tests.controlplane.certificates import CertificateAuthority, KeyPair

SECRET = b"hunter2"
_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: _Serve) -> AsyncIterator[Endpoint]:
    """A server that does to each connection what it is told to."""
    async with contextlib.AsyncExitStack() as ends:

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.callback(writer.transport.abort)
            with contextlib.suppress(ConnectionError):
                await serve(reader, writer)

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        ends.callback(server.close)
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"HTTP/1.1 400 " + SECRET + b"\r\nX: " + SECRET + b"\r\n\r\n" + SECRET)
    await writer.drain()
    writer.close()


async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(SECRET * 1000)
    await writer.drain()
    await reader.read()


async def a_few_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"220")
    await writer.drain()
    writer.close()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize("serve", [web_server, rubbish, a_few_bytes])
async def test_what_is_not_etcd_is_told_and_its_words_are_not(serve: _Serve) -> None:
    """D51: no error quotes bytes received from a peer that is not etcd."""
    async with listening(serve) as endpoint, MemberClient(endpoint, Access(), timeout=3) as client:
        with pytest.raises(errors.NotEtcd) as told:
            await client.defragment(3)
        with pytest.raises(errors.NotEtcd) as page:
            await read_metrics(endpoint, Access(), timeout=3)
    for error in (told.value, page.value):
        assert SECRET.decode() not in f"{error} {error.details}"
        assert str(endpoint) in str(error)


async def test_neither_password_nor_key_reaches_a_peer_that_is_not_verified() -> None:
    """D51: all that a listener without TLS, or one with another's certificate, gets to see."""
    authority = CertificateAuthority()
    pair = authority.issue("root")
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65536))
        writer.close()

    access = Access(
        tls=Tls(authority.certificate, pair.certificate, pair.key),
        login=Login("root", SECRET.decode()),
    )
    async with listening(listen) as plain:
        async with MemberClient(replace(plain, secure=True), access, timeout=3) as client:
            with pytest.raises(errors.TLSFailed):
                await client.status()
        async with MemberClient(plain, access, timeout=3) as client:
            with pytest.raises(errors.TLSFailed):
                await client.status()
        with pytest.raises(errors.EtcdError):
            await read_metrics(plain, access, timeout=3)
    assert len(heard) >= 3
    hello = b"\x16\x03"
    assert all(words.startswith((hello, b"GET /metrics ")) for words in heard)
    for words in heard:
        assert SECRET not in words
        assert pair.certificate not in words


async def test_a_members_own_certificate_may_be_what_is_trusted() -> None:
    """As etcdctl and gRPC have it: also by Python's own ssl, which reads /metrics."""
    pair = CertificateAuthority().issue("server")
    tls = Tls(pair.certificate)
    async with grpc_server(a_member, pair=pair) as endpoint:
        async with MemberClient(endpoint, Access(tls=tls)) as client:
            assert (await client.status()).header.member_id == 2
        async with connection(endpoint, tls.context(), endpoint.host):
            pass


async def test_a_peer_that_hangs_up_is_unreachable() -> None:
    async with (
        listening(hang_up) as endpoint,
        MemberClient(endpoint, Access(), timeout=3) as client,
    ):
        with pytest.raises(errors.MemberUnreachable, match="closes connections at once"):
            await client.status()


async def test_a_peer_that_says_nothing_is_unreachable_once_the_time_to_connect_is_over() -> None:
    """Also for a call that may take long itself: what bounds connecting is the client's timeout."""
    async with (
        listening(silence) as endpoint,
        MemberClient(endpoint, Access(), timeout=0.3) as client,
    ):
        with pytest.raises(errors.MemberUnreachable, match=r"no connection within 0\.3 s"):
            await client.defragment(60)
        with pytest.raises(errors.RPCTimeout, match=r"no answer within 0\.3 s"):
            await read_metrics(endpoint, Access(), timeout=0.3)


async def test_a_closed_port_and_a_name_that_does_not_resolve_are_told_at_once() -> None:
    async with listening(silence) as endpoint:
        closed = endpoint
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for where, fault in (
        (closed, "connection refused"),
        (Endpoint("etcd-0.etcd.invalid"), "the name does not resolve"),
    ):
        async with MemberClient(where, Access(), timeout=20) as client:
            with pytest.raises(errors.MemberUnreachable, match=fault):
                await client.defragment(20)
        with pytest.raises(errors.MemberUnreachable, match=fault):
            await read_metrics(where, Access(), timeout=20)
    assert loop.time() - begun < 10


@contextlib.asynccontextmanager
async def grpc_server(
    answer: Callable[[str, aio.ServicerContext], Awaitable[bytes]],
    where: str = "127.0.0.1:0",
    *,
    pair: KeyPair | None = None,
) -> AsyncIterator[Endpoint]:
    """A gRPC server that is not etcd: every unary method is answered by a function."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            async def handle(request: bytes, context: aio.ServicerContext) -> bytes:
                return await answer(details.method, context)

            return grpc.unary_unary_rpc_method_handler(handle)

    server = aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    if pair is None:
        port = server.add_insecure_port(where)
    else:
        credentials = grpc.ssl_server_credentials([(pair.key, pair.certificate)])
        port = server.add_secure_port(where, credentials)
    await server.start()
    try:
        yield replace(Endpoint.parse(where.removesuffix(":0")), port=port, secure=pair is not None)
    finally:
        await server.stop(None)


async def a_member(method: str, context: aio.ServicerContext) -> bytes:
    header = pb.ResponseHeader(cluster_id=1, member_id=2)
    return bytes(pb.StatusResponse(header=header).SerializeToString())


@pytest.mark.parametrize(
    "answer",
    [b"\xff\xff\xff not protobuf " + SECRET, b"", b"\x12\x05hello"],
    ids=["not protobuf", "an empty message", "a message without a header"],
)
async def test_a_grpc_server_that_answers_with_something_else_is_not_etcd(
    answer: bytes, caplog
) -> None:
    """D51: a frame that is no protobuf neither crashes anything nor is logged."""

    async def odd(method: str, context: aio.ServicerContext) -> bytes:
        return answer

    async with grpc_server(odd) as endpoint, MemberClient(endpoint, Access()) as client:
        for call in (client.status(), client.member_list(), client.range(b"k")):
            with pytest.raises(errors.NotEtcd) as told:
                await call
            assert SECRET.decode() not in str(told.value)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, errors.NotEtcd),
        (grpc.StatusCode.INTERNAL, errors.RPCFailed),
        (grpc.StatusCode.PERMISSION_DENIED, errors.PermissionDenied),
        (grpc.StatusCode.UNAVAILABLE, errors.ConnectionLost),
    ],
)
async def test_the_status_text_of_a_grpc_server_that_never_proved_to_be_etcd_is_kept_back(
    code: grpc.StatusCode, kind: type[errors.EtcdError]
) -> None:
    """D51."""

    async def refuse(method: str, context: aio.ServicerContext) -> bytes:
        await context.abort(code, SECRET.decode())
        return b""

    async with grpc_server(refuse) as endpoint, MemberClient(endpoint, Access()) as client:
        with pytest.raises(kind) as told:
            await client.status()
        assert type(told.value) is kind
        assert SECRET.decode() not in f"{told.value!r} {told.value.details}"


async def test_a_balancer_that_hands_each_connection_to_another_member_is_noticed() -> None:
    """D12: the identity is judged in every answer, not once."""
    turn = iter(range(1, 100))

    async def balanced(method: str, context: aio.ServicerContext) -> bytes:
        header = pb.ResponseHeader(cluster_id=1, member_id=next(turn))
        return bytes(pb.StatusResponse(header=header).SerializeToString())

    async with grpc_server(balanced) as endpoint, MemberClient(endpoint, Access()) as client:
        first = await client.status()
        assert (await client.status()).header != first.header
        client.expect(Identity(1, 1))
        with pytest.raises(errors.WrongMember, match="member 0000000000000003 answered, not"):
            await client.defragment(1)


async def test_a_web_server_s_page_of_metrics_is_not_taken_for_etcds() -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nprocess_start_time_seconds 1\n" + SECRET)
        await writer.drain()
        writer.close()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    for serve in (other, endless):
        async with listening(serve) as endpoint:
            with pytest.raises(errors.NotEtcd):
                await read_metrics(endpoint, Access(), timeout=10)


async def test_metrics_are_asked_of_the_host_that_is_advertised_wherever_it_is_dialled() -> None:
    asked: list[bytes] = []

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 200 OK\r\n\r\netcd_server_has_leader 1\n")
        writer.write_eof()

    async with listening(page) as here:
        elsewhere = Endpoint("etcd-0.example")
        access = Access(address_map=AddressMap({elsewhere.target: here.target}))
        await read_metrics(elsewhere, access)
    assert b"\r\nHost: etcd-0.example:2379\r\n" in asked[0]


async def test_no_proxy_of_the_environment_comes_between(monkeypatch) -> None:
    """etcd is dialled directly, whatever http_proxy says."""
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(100))
        writer.close()

    async with listening(proxy) as between, grpc_server(a_member) as endpoint:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, between.url)
        monkeypatch.delenv("no_proxy", raising=False)
        async with MemberClient(Endpoint("localhost", endpoint.port), Access()) as client:
            assert (await client.status()).header.member_id == 2
    assert asked == []


async def test_a_peer_that_goes_from_closed_to_open_is_reached_by_the_very_next_call() -> None:
    """A failed attempt leaves no back-off behind."""
    async with grpc_server(a_member) as endpoint:
        pass
    async with MemberClient(endpoint, Access(), timeout=1) as client:
        for _ in range(20):
            with pytest.raises(errors.MemberUnreachable):
                await client.status()
        async with grpc_server(a_member, endpoint.target):
            assert (await client.status()).header.member_id == 2


async def test_an_ipv6_address_is_dialled_like_any_other() -> None:
    async with grpc_server(a_member, "[::1]:0") as endpoint:
        assert endpoint.host == "::1"
        async with MemberClient(endpoint, Access()) as client:
            assert (await client.status()).header.member_id == 2
    async with MemberClient(endpoint, Access()) as client:
        with pytest.raises(
            errors.MemberUnreachable, match=r"http://\[::1\]:\d+: connection refused"
        ):
            await client.status()


class Guarded:
    """A member with auth on. Its first token has expired by the time of a Defragment."""

    def __init__(self) -> None:
        self.authority = CertificateAuthority()
        self.tokens = 0
        self.hangs = False
        self.slow = 0.0
        self.token = "token-{}"
        self.defragments: list[tuple[str, float]] = []

    def access(self) -> Access:
        return Access(tls=Tls(self.authority.certificate), login=Login("root", "root"))

    def serving(self) -> contextlib.AbstractAsyncContextManager[Endpoint]:
        return grpc_server(self.answer, pair=self.authority.issue("server"))

    async def answer(self, method: str, context: aio.ServicerContext) -> bytes:
        header = pb.ResponseHeader(cluster_id=1, member_id=2)
        if method.endswith("/Authenticate"):
            self.tokens += 1
            if self.tokens > 1:
                await asyncio.sleep(1000 if self.hangs else self.slow)
            answer = pb.AuthenticateResponse(header=header, token=self.token.format(self.tokens))
            return bytes(answer.SerializeToString())
        if method.endswith("/Defragment"):
            token = str(dict(context.invocation_metadata() or ())["token"])
            self.defragments.append((token, context.time_remaining()))
            if token == "token-1":
                await context.abort(
                    grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"
                )
            return b""
        return bytes(pb.StatusResponse(header=header).SerializeToString())


async def test_a_log_in_that_hangs_is_given_up_long_before_a_defragment_would_be() -> None:
    """D33, D50: and the error says that nothing was sent, not that the outcome is unknown."""
    member = Guarded()
    member.hangs = True
    loop = asyncio.get_running_loop()
    async with (
        member.serving() as endpoint,
        MemberClient(endpoint, member.access(), timeout=1) as client,
    ):
        client.expect(Identity(1, 2))
        begun = loop.time()
        with pytest.raises(errors.MemberUnreachable, match="Defragment was not sent"):
            await client.defragment(60)
        assert loop.time() - begun < 20
    assert [token for token, _ in member.defragments] == ["token-1"]


async def test_the_time_of_a_defragment_begins_when_it_is_sent() -> None:
    """D33: logging in anew takes nothing from it."""
    member = Guarded()
    member.slow = 2.0
    async with member.serving() as endpoint, MemberClient(endpoint, member.access()) as client:
        await client.defragment(60)
    (_, first), (token, second) = member.defragments
    assert token == "token-2"
    assert second > 59
    assert first > 59


async def test_a_token_that_could_not_be_sent_is_no_token(capfd) -> None:
    member = Guarded()
    async with member.serving() as endpoint:
        for member.token in ("", "a\nb", "\u00e9"):
            async with MemberClient(endpoint, member.access()) as client:
                with pytest.raises(errors.NotEtcd, match="no token"):
                    await client.status()
    assert capfd.readouterr().err == ""


async def test_a_client_that_is_closed_while_a_call_logs_in_sends_it_no_more() -> None:
    member = Guarded()

    class Closing(Session):
        async def token(self, deadline: float, *, stale: str | None = None) -> str:
            await client.close()
            return "token-2"

    async with member.serving() as endpoint:
        session = Closing(lambda _: pytest.fail("nobody logs in"), "")
        client = MemberClient(endpoint, member.access(), session=session)
        with pytest.raises(errors.MemberUnreachable, match=r"Defragment was not sent: .*closed"):
            await client.defragment(60)
    assert member.defragments == []


class Clients:
    """Every client of a member that was made, and those that were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[MemberClient] = []
        self.closed: list[MemberClient] = []
        init, close = MemberClient.__init__, MemberClient.close

        def opening(client: MemberClient, *arguments: object, **options: object) -> None:
            self.opened.append(client)
            init(client, *arguments, **options)  # type: ignore[arg-type]

        async def closing(client: MemberClient) -> None:
            self.closed.append(client)
            await close(client)

        monkeypatch.setattr(MemberClient, "__init__", opening)
        monkeypatch.setattr(MemberClient, "close", closing)


def a_list(*urls: str) -> bytes:
    """The member list of a cluster of one."""
    header = pb.ResponseHeader(cluster_id=1, member_id=2)
    members = [pb.Member(id=2, name="a", client_urls=urls)]
    return bytes(pb.MemberListResponse(header=header, members=members).SerializeToString())


async def test_a_cluster_that_is_given_up_while_it_is_reached_leaves_no_channel_behind(
    monkeypatch,
) -> None:
    clients = Clients(monkeypatch)
    tried = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.set()
        await reader.read()

    async with listening(silent) as away:

        async def listed(method: str, context: aio.ServicerContext) -> bytes:
            return a_list(away.url)

        async with grpc_server(listed) as seed:
            connecting = asyncio.ensure_future(ClusterClient.connect([seed], Access(), timeout=60))
            await tried.wait()
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
    assert len(clients.opened) == 2
    assert set(clients.closed) == set(clients.opened)


async def test_a_cluster_that_is_closed_while_it_is_refreshed_stays_closed(monkeypatch) -> None:
    clients = Clients(monkeypatch)
    urls: list[str] = []
    hangs, asked = False, asyncio.Event()

    async def listed(method: str, context: aio.ServicerContext) -> bytes:
        if hangs:
            asked.set()
            await asyncio.sleep(1000)
        return a_list(*urls)

    async with grpc_server(listed) as seed:
        urls.append(seed.url)
        cluster = await ClusterClient.connect([seed], Access(), timeout=60)
        hangs = True
        refreshing = asyncio.ensure_future(cluster.refresh())
        await asked.wait()
        await cluster.close()
        with pytest.raises(errors.MemberUnreachable, match="is closed"):
            async with asyncio.timeout(10):
                await refreshing
    assert set(clients.closed) == set(clients.opened)


async def test_a_client_that_is_closed_while_it_connects_says_so_at_once() -> None:
    dialled = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await reader.read()

    async with listening(silent) as endpoint:
        client = MemberClient(endpoint, Access(), timeout=60)
        calling = asyncio.ensure_future(client.status())
        await dialled.wait()
        await client.close()
        with pytest.raises(errors.MemberUnreachable, match="this client is closed"):
            async with asyncio.timeout(10):
                await calling


@pytest.mark.parametrize("first", ["etcd.cluster", "etcd.client", "compression.encryption.kms"])
def test_grpc_is_quiet_whichever_module_is_imported_first(first: str) -> None:
    script = """
        import asyncio, importlib, sys
        importlib.import_module(f"etcdmaint.{sys.argv[1]}")
        from grpc import aio

        async def main():
            async with aio.insecure_channel("127.0.0.1:1") as channel:
                try:
                    await channel.unary_unary("/a/b")(b"", metadata=(("token", "not\\nvalid"),))
                except Exception:
                    print("refused")

        asyncio.run(main())
    """
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), first],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("refused\n", "")


def test_a_resolver_that_hangs_holds_up_neither_the_answer_nor_the_end_of_the_loop(
    monkeypatch,
) -> None:
    """Issue 3, section 4: `status` answers in time also where the cluster's DNS is away."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30))
    begun = time.monotonic()
    try:
        with pytest.raises(errors.RPCTimeout):
            asyncio.run(read_metrics(Endpoint("etcd-0.example"), Access(), timeout=0.1))
        assert time.monotonic() - begun < 10
    finally:
        over.set()


async def test_every_address_of_a_name_is_tried(monkeypatch) -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    async with listening(silence) as here:
        name = Endpoint("etcd-0.example", here.port)
        async with connection(name, None, name.host):
            pass
    with pytest.raises(errors.MemberUnreachable, match="connection refused"):
        await read_metrics(name, Access())
