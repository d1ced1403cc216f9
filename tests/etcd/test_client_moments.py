"""A client that is closed, cancelled or kept waiting at the worst moment."""

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

import grpc
import pytest
from grpc import aio

from etcdmaint import errors
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.diagnosis import connection
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.metrics import read_metrics
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.session import Session
from tests.controlplane.certificates import CertificateAuthority
from tests.etcd.pretending import grpc_server, listening, silence


class Guarded:
    """A member with auth on. Its first token has expired by the time of a Defragment."""

    def __init__(self) -> None:
        self.authority = CertificateAuthority()
        self.tokens = 0
        self.hangs = False
        self.slow = 0.0
        self.member_id = self.later = 2
        self.token = "token-{}"
        self.defragments: list[tuple[str, float]] = []

    def access(self) -> Access:
        return Access(tls=Tls(self.authority.certificate), login=Login("root", "root"))

    def serving(self) -> contextlib.AbstractAsyncContextManager[Endpoint]:
        return grpc_server(self.answer, pair=self.authority.issue("server"))

    async def answer(self, method: str, context: aio.ServicerContext) -> bytes:
        header = pb.ResponseHeader(cluster_id=1, member_id=self.member_id)
        if method.endswith("/Authenticate"):
            self.tokens += 1
            if self.tokens > 1:
                self.member_id = self.later
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
    member.slow = 4.0
    async with (
        member.serving() as endpoint,
        MemberClient(endpoint, member.access(), timeout=30.0) as client,
    ):
        await client.defragment(60)
    (_, first), (token, second) = member.defragments
    assert token == "token-2"
    # Were the log-in counted, no more than 56 s would be left.
    assert second > 57
    assert first > 57


async def test_who_is_there_is_asked_again_before_a_defragment_is_sent_with_a_new_token() -> None:
    """D12: logging in takes time, and an address may lead elsewhere afterwards."""
    member = Guarded()
    member.later = 3
    async with member.serving() as endpoint, MemberClient(endpoint, member.access()) as client:
        client.expect(Identity(1, 2))
        with pytest.raises(errors.WrongMember):
            await client.defragment(60)
    assert [token for token, _ in member.defragments] == ["token-1"]


async def test_a_defragment_goes_over_the_connection_on_which_its_member_was_asked_who_it_is(
    monkeypatch,
) -> None:
    """D12: a new connection may lead elsewhere."""
    member = Guarded()
    async with member.serving() as endpoint, MemberClient(endpoint, member.access()) as client:
        client.expect(Identity(1, 2))
        asked = client.status

        async def asked_and_broken() -> object:
            status = await asked()
            await client.caller.connection._drop()
            return status

        monkeypatch.setattr(client, "status", asked_and_broken)
        with pytest.raises(errors.MemberUnreachable, match=r"was not sent: .*just broken"):
            await client.defragment(60)
    assert member.defragments == []


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
            init(client, *arguments, **options)  # type: ignore[arg-type]  # handed on as they came

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
