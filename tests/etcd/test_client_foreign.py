"""Whatever may listen where etcd should: web servers, proxies, silence, rubbish."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from grpc import aio

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.diagnosis import connection
from etcdmaint.etcd.endpoint import AddressMap, Endpoint
from etcdmaint.etcd.metrics import read_metrics
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.ranges import RangeReader
from tests.controlplane.certificates import CertificateAuthority
from tests.controlplane.ports import Ports
from tests.etcd.pretending import Serve, a_member, grpc_server, listening, silence

SECRET = b"hunter2"


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


@pytest.mark.parametrize("serve", [web_server, rubbish, a_few_bytes])
async def test_what_is_not_etcd_is_told_and_its_words_are_not(serve: Serve) -> None:
    """D51: no error quotes bytes received from a peer that is not etcd."""
    async with listening(serve) as endpoint, MemberClient(endpoint, Access(), timeout=20) as client:
        with pytest.raises(errors.NotEtcd) as told:
            await client.defragment(20)
        with pytest.raises(errors.NotEtcd) as page:
            await read_metrics(endpoint, Access(), timeout=20)
    for error in (told.value, page.value):
        assert SECRET.decode() not in f"{error} {error.details}"
        assert str(endpoint) in str(error)


async def test_neither_password_nor_key_reaches_a_peer_that_is_not_verified() -> None:
    """D51: all that a listener without TLS, or one with another's certificate, gets to see."""
    authority = CertificateAuthority()
    pair = authority.issue("root")
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Nothing at all where it was given up before it had spoken.
        if words := await reader.read(65536):
            heard.append(words)
        writer.close()

    access = Access(
        tls=Tls(authority.certificate, pair.certificate, pair.key),
        login=Login("root", SECRET.decode()),
    )
    async with listening(listen) as plain:
        async with MemberClient(replace(plain, secure=True), access, timeout=20) as client:
            with pytest.raises(errors.TLSFailed):
                await client.status()
        async with MemberClient(plain, access, timeout=20) as client:
            with pytest.raises(errors.TLSFailed):
                await client.status()
        with pytest.raises(errors.EtcdError):
            await read_metrics(plain, access, timeout=20)
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
        MemberClient(endpoint, Access(), timeout=20) as client,
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
    loop = asyncio.get_running_loop()
    with Ports() as ports:
        for where, fault in (
            (Endpoint("127.0.0.1", ports.take()), "connection refused"),
            (Endpoint("etcd-0.etcd.invalid"), "the name does not resolve"),
        ):
            begun = loop.time()
            async with MemberClient(where, Access(), timeout=30) as client:
                with pytest.raises(errors.MemberUnreachable, match=fault):
                    await client.defragment(30)
            with pytest.raises(errors.MemberUnreachable, match=fault):
                await read_metrics(where, Access(), timeout=30)
            # None of them waited for its timeout.
            assert loop.time() - begun < 20


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


async def test_a_grpc_server_that_ends_well_and_answers_nothing_is_not_etcd(caplog) -> None:
    """D51: status OK without a message, which gRPC hands out as None."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            async def handle(request: bytes, context: aio.ServicerContext):
                for nothing in ():
                    yield nothing

            return grpc.unary_stream_rpc_method_handler(handle)

    server = aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with MemberClient(Endpoint("127.0.0.1", port), Access()) as client:
            for call in (client.status(), client.range(b"k"), client.lease_grant(5)):
                with pytest.raises(errors.NotEtcd):
                    await call
            with pytest.raises(errors.NotEtcd):
                await anext(RangeReader(client, frugal=True).read(b"\0", b"\0", 0))
    finally:
        await server.stop(None)
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
            await client.defragment(20)


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
                await read_metrics(endpoint, Access(), timeout=60)


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
    with Ports() as ports:
        endpoint = Endpoint("127.0.0.1", ports.take())
        async with MemberClient(endpoint, Access(), timeout=5) as client:
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
