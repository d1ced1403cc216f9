"""Servers that stand where etcd should, and do what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import grpc
from grpc import aio

from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.proto import etcd_pb2 as pb
from tests.controlplane.certificates import KeyPair

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[Endpoint]:
    """A server that does to each connection what it is told to."""
    async with contextlib.AsyncExitStack() as ends:

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.callback(writer.transport.abort)
            with contextlib.suppress(ConnectionError):
                await serve(reader, writer)

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        ends.callback(server.close)
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


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
