"""One process that stands in for many single-member etcds: `python -m tests.bench.standin COUNT`.

200 real etcds do not fit on the machine that measures an operator with 200 connections. This is not an
etcd: each port answers MemberList, Status, Range, Txn, Compact, leases, Watch and /metrics' absence with the
least that the operator needs, each as a cluster of its own with an ID of its own. Only the operator's own
memory and CPU time are measured against it, beside a check with real etcds. It prints its URLs, one a line.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import grpc

from etcdmaint.etcd.proto import etcd_pb2 as pb
from tests.controlplane.ports import Ports


class Standin(grpc.GenericRpcHandler):
    """One single-member etcd with one key."""

    def __init__(self, number: int, url: str) -> None:
        self._cluster_id = 0xC000 + number
        self._member_id = 0xE000 + number
        self._url = url
        self._revision = itertools.count(2)
        self._now = 1
        self._version = 0
        self._value = b"0"
        self._answers = {
            "Cluster/MemberList": (pb.MemberListRequest, self._member_list),
            "Maintenance/Status": (pb.StatusRequest, self._status),
            "KV/Range": (pb.RangeRequest, self._range),
            "KV/Txn": (pb.TxnRequest, self._txn),
            "KV/Compact": (pb.CompactionRequest, self._compact),
            "Lease/LeaseGrant": (pb.LeaseGrantRequest, self._grant),
        }

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.removeprefix("/etcdserverpb.")
        if name == "Watch/Watch":
            return grpc.stream_stream_rpc_method_handler(
                self._watch,
                request_deserializer=pb.WatchRequest.FromString,
                response_serializer=pb.WatchResponse.SerializeToString,
            )
        if name not in self._answers:
            return None
        request, answer = self._answers[name]

        async def handle(message: Any, _: Any) -> Any:
            return answer(message)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _header(self) -> Any:
        return pb.ResponseHeader(
            cluster_id=self._cluster_id,
            member_id=self._member_id,
            revision=self._now,
            raft_term=2,
        )

    def _member_list(self, _: Any) -> Any:
        member = pb.Member(id=self._member_id, name="standin", client_urls=[self._url])
        return pb.MemberListResponse(header=self._header(), members=[member])

    def _status(self, _: Any) -> Any:
        return pb.StatusResponse(
            header=self._header(),
            version="3.7.3",
            db_size=100 << 20,
            db_size_in_use=90 << 20,
            leader=self._member_id,
            raft_index=10,
            raft_applied_index=10,
            raft_term=2,
            db_size_quota=2 << 30,
        )

    def _range(self, _: Any) -> Any:
        kvs = []
        if self._version:
            kvs = [pb.KeyValue(key=b"compact_rev_key", value=self._value, version=self._version)]
        return pb.RangeResponse(header=self._header(), kvs=kvs, count=len(kvs))

    def _txn(self, request: Any) -> Any:
        self._now = next(self._revision)
        self._version += 1
        for op in request.success:
            self._value = op.request_put.value
        return pb.TxnResponse(
            header=self._header(),
            succeeded=True,
            responses=[pb.ResponseOp(response_put=pb.PutResponse(header=self._header()))],
        )

    def _compact(self, _: Any) -> Any:
        return pb.CompactionResponse(header=self._header())

    def _grant(self, request: Any) -> Any:
        return pb.LeaseGrantResponse(header=self._header(), ID=1, TTL=request.TTL)

    async def _watch(self, requests: Any, _: Any) -> Any:
        async for _request in requests:
            yield pb.WatchResponse(header=self._header(), created=True)
        # As etcd's, the stream outlives its client's last request.
        await asyncio.Event().wait()


async def main() -> None:
    """Serve until the process is ended."""
    ports = Ports()
    servers = []  # a server that nobody holds is stopped
    for number in range(int(sys.argv[1])):
        port = ports.take()
        url = f"http://127.0.0.1:{port}"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Standin(number, url),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
        print(url, flush=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
