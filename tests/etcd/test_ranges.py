"""Ranges of real etcd: streamed by 3.7, in bounded pages by older ones, the same keys either way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from etcdmaint.errors import (
    ConnectionLost,
    FutureRevision,
    PermissionDenied,
    RevisionCompacted,
    RPCTimeout,
    WrongMember,
)
from etcdmaint.etcd import ranges
from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import Identity, MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.entries import Chunk, Entry
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.ranges import RangeReader
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls

from .planting import client_of, plant, values

pytestmark = pytest.mark.etcd

ALL = (b"\0", b"\0")
PLANTED = dict(sorted(values().items()))


@pytest.fixture(scope="module", params=["3.7", "3.6", "3.5"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdCluster]:
    folder = tmp_path_factory.mktemp("ranges")
    with EtcdCluster(folder, size=1, version=request.param) as started:
        plant(started, PLANTED.items())
        yield started


@asynccontextmanager
async def reader_of(cluster: EtcdCluster, **options: object) -> AsyncIterator[RangeReader]:
    async with client_of(cluster) as client:
        yield RangeReader(client, **options)  # type: ignore[arg-type]


async def read(
    reader: RangeReader, start: bytes = b"\0", end: bytes = b"\0", revision: int = 0
) -> list[Entry]:
    found: list[Entry] = []
    async with aclosing(reader.read(start, end, revision)) as chunks:
        async for chunk in chunks:
            assert chunk.size >= sum(len(each.key) + len(each.value) for each in chunk.entries)
            found += chunk.entries
    return found


async def rest_of(chunks: AsyncIterator[Chunk]) -> None:
    async for _ in chunks:
        pass


async def test_all_keys_come_once_in_order_with_their_values(cluster: EtcdCluster) -> None:
    async with reader_of(cluster) as reader:
        revision = await reader.newest()
        found = await read(reader, revision=revision)
        again = await read(reader, revision=revision)
        assert await reader.count(*ALL) == len(PLANTED)
        assert reader.streams is (cluster.version == "3.7")
    assert [(each.key, each.value) for each in found] == list(PLANTED.items())
    assert found == again
    assert all(each.version == 1 and 1 < each.mod_revision <= revision for each in found)


async def test_what_is_on_its_way_when_a_reader_is_left_may_fail_unseen(
    cluster: EtcdCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next page is asked for while the latest is dealt with."""
    failed = asyncio.Event()

    async def fail(*_: object) -> None:
        failed.set()
        raise ConnectionLost("gone")

    async with (
        reader_of(cluster) as reader,
        aclosing(reader.read(*ALL, await reader.newest())) as chunks,
    ):
        await anext(chunks)
        monkeypatch.setattr(reader, "_page", fail)
        await anext(chunks)
        if not reader.streams:
            await failed.wait()
    gc.collect()
    assert caplog.records == []


async def test_a_frugal_reader_reads_the_same_in_small_pages(cluster: EtcdCluster) -> None:
    """Whatever etcd can do: the operator audits in little memory."""
    sizes = []
    async with reader_of(cluster, frugal=True) as reader:
        async with aclosing(reader.read(*ALL, await reader.newest())) as chunks:
            found = []
            async for chunk in chunks:
                sizes.append(len(chunk.entries))
                found += [(each.key, each.value) for each in chunk.entries]
        assert reader.streams is False
    assert found == list(PLANTED.items())
    assert max(sizes) <= 250


async def test_a_range_has_its_own_keys_and_no_others(cluster: EtcdCluster) -> None:
    async with reader_of(cluster) as reader:
        found = await read(reader, b"/registry/pods/", b"/registry/pods0")
        assert [each.key for each in found] == [key for key in PLANTED if b"/pods/" in key]
        assert await read(reader, b"/registry/nothing/", b"/registry/nothing0") == []


async def test_a_revision_is_read_as_it_was(cluster: EtcdCluster) -> None:
    async with reader_of(cluster) as reader:
        revision = await reader.newest()
        await reader.client.put(b"/registry/pods/ns-1/framed-0", b"written later")
        await reader.client.put(b"/registry/pods/later", b"written later")
        try:
            found = await read(reader, revision=revision)
        finally:
            await reader.client.put(
                b"/registry/pods/ns-1/framed-0", PLANTED[b"/registry/pods/ns-1/framed-0"]
            )
            await reader.client.delete_range(b"/registry/pods/later")
        assert [(each.key, each.value) for each in found] == list(PLANTED.items())
        with pytest.raises(FutureRevision):
            await read(reader, revision=revision + 1000)


async def test_a_revision_compacted_away_in_the_middle_is_told(cluster: EtcdCluster) -> None:
    # Enough that neither etcd nor the wire can be ahead of a reader that stops.
    large = [(b"/large/%02d" % number, bytes([number]) * 1_000_000) for number in range(30)]
    async with reader_of(cluster) as reader:
        for key, value in large:
            await reader.client.put(key, value)
        revision = await reader.newest()
        async with aclosing(reader.read(b"/large/", b"/large0", revision)) as chunks:
            first = await anext(chunks)
            await reader.client.put(b"/other", b"x")
            await reader.client.compact(revision + 1, physical=True)
            try:
                with pytest.raises(RevisionCompacted):
                    await rest_of(chunks)
            finally:
                await reader.client.delete_range(b"/large/", b"/large0")
                await reader.client.delete_range(b"/other")
        assert 0 < len(first.entries) < 30


async def test_large_values_take_the_memory_of_a_few(cluster: EtcdCluster) -> None:
    async with reader_of(cluster) as reader:
        for number in range(20):
            await reader.client.put(b"/huge/%02d" % number, bytes(1_500_000))
        sizes = []
        async with aclosing(reader.read(b"/huge/", b"/huge0", 0)) as chunks:
            async for chunk in chunks:
                sizes.append(chunk.size)
        await reader.client.delete_range(b"/huge/", b"/huge0")
    assert sum(sizes) > 30_000_000
    # Both begin with about ten values, before they know how large they are.
    assert max(sizes) <= 16_000_000


async def test_pages_are_taken_from_parts_that_etcd_can_count_quickly(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd counts the rest of a range with every page."""
    monkeypatch.setattr(ranges, "_PART_KEYS", 100)
    counted: list[int] = []

    class Counting(RangeReader):
        async def _page(self, *arguments: Any) -> Any:
            answer, chunk = await super()._page(*arguments)
            counted.append(answer.count)
            return answer, chunk

    async with client_of(cluster) as client:
        found = await read(Counting(client, frugal=True))
    assert [(each.key, each.value) for each in found] == list(PLANTED.items())
    assert sum(counted) < 12 * len(PLANTED)


async def test_a_stalled_member_ends_a_read_in_time(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory(size=1)
    plant(cluster, [(b"/large/%02d" % number, bytes(1_000_000)) for number in range(20)])
    async with reader_of(cluster, timeout=3.0) as reader:
        chunks = reader.read(b"\0", b"\0", 0)
        async with aclosing(chunks):
            await anext(chunks)
            cluster.members[0].pause()
            try:
                with pytest.raises(RPCTimeout):
                    await rest_of(chunks)
            finally:
                cluster.members[0].resume()


def part(number: int, **header: int) -> bytes:
    """One message of a stream; the last one of etcd's has a header."""
    answer = pb.RangeResponse(kvs=[pb.KeyValue(key=b"%d" % number, value=b"v", mod_revision=1)])
    if header:
        answer.header.CopyFrom(pb.ResponseHeader(**header))
    return bytes(pb.RangeStreamResponse(range_response=answer).SerializeToString())


ME = {"cluster_id": 7, "member_id": 1, "revision": 9}


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([part(1), part(2, **ME)], None),
        ([part(1), part(2)], ConnectionLost),
        ([], ConnectionLost),
        ([part(1), part(2, **ME | {"member_id": 2})], WrongMember),
        ([part(1), part(2, **ME | {"cluster_id": 8})], WrongMember),
    ],
    ids=["whole", "cut off", "nothing at all", "another member", "another cluster"],
)
async def test_a_stream_that_is_cut_off_is_never_taken_for_a_whole_one(
    parts: list[bytes], fault: type[Exception] | None
) -> None:
    """R150: a scan that misses keys proves nothing, whatever status whoever is in between gives."""

    async def stream(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for each in parts:
            yield each

    server = aio.server()
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("etcdserverpb.KV", {"RangeStream": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    identity = Identity(ME["cluster_id"], ME["member_id"])
    try:
        endpoint = Endpoint("127.0.0.1", port)
        async with MemberClient(endpoint, Access(), timeout=5.0, identity=identity) as client:
            if fault is None:
                assert [each.key for each in await read(RangeReader(client))] == [b"1", b"2"]
            else:
                with pytest.raises(fault):
                    await read(RangeReader(client))
    finally:
        await server.stop(None)


async def test_ranges_are_read_with_a_login_and_refused_without_the_right(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    tls = ClusterTls(tmp_path, client_certificates=False)
    for version in ("3.7", "3.6"):
        cluster = etcd_cluster_factory(size=1, version=version, tls=tls)
        cluster.members[0].gateway.put(b"/registry/pods/a/b", b"x")
        cluster.enable_auth(users={"nobody": ("secret", [])})
        endpoint = Endpoint.parse(cluster.client_urls[0])
        for user, password, allowed in (("root", "root", True), ("nobody", "secret", False)):
            access = Access(tls=Tls(tls.authority.certificate), login=Login(user, password))
            async with MemberClient(endpoint, access) as client:
                reader = RangeReader(client)
                if allowed:
                    assert [each.key for each in await read(reader)] == [b"/registry/pods/a/b"]
                else:
                    with pytest.raises(PermissionDenied):
                        await read(reader)
