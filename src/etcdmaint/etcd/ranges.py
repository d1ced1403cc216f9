"""Reading everything in a range of one member, at one revision and in bounded memory.

etcd 3.7 streams a range; an older one is asked for pages, each from a part of it (`window`). What the
keys mean, and what to do when a member or a revision goes away, is the caller's part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.protobuf.message import DecodeError
from grpc import aio

from etcdmaint import errors
from etcdmaint.etcd.calls import Rpc, Sending, answers, one_message
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.entries import Answer, Chunk, parse
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.window import Window

_RANGE = Rpc("/etcdserverpb.KV/Range", pb.RangeResponse)
_RANGE_STREAM = Rpc("/etcdserverpb.KV/RangeStream", pb.RangeStreamResponse, has_header=False)

# etcd counts what is left with each page: above this, in keys, a page is taken from a part of it.
_PART_KEYS = 10_000
# A page has about so many bytes.
_PAGE_BYTES = 2 << 20
_FIRST_PAGE_KEYS = 8
# Where small values end and large ones begin, a page is as large as its keys allow: about twice what
# kube-apiserver itself asks for at once.
_PAGE_KEYS = 1_000
# For a reader that must be small.
_FRUGAL_BYTES = 512 << 10
_FRUGAL_KEYS = 250


class RangeReader:
    r"""Reads ranges of one member; `b"\0"` as the end is no end, as the start it is the first key.

    `timeout` is for each message, in seconds. Serializable reads are the member's own, perhaps
    behind the others.

    `frugal` reads small pages whatever etcd can do: it streams as much at once as it sees fit, and a
    process may have to do with less memory. It costs etcd some counting, and the reader time.
    """

    def __init__(
        self,
        client: MemberClient,
        *,
        serializable: bool = True,
        timeout: float = 10.0,
        frugal: bool = False,
    ) -> None:
        self.client = client
        self._serializable = serializable
        self._timeout = timeout
        self._frugal = frugal
        self._streams: bool | None = False if frugal else None
        self._page_bytes = _FRUGAL_BYTES if frugal else _PAGE_BYTES
        self._page_keys = _FRUGAL_KEYS if frugal else _PAGE_KEYS
        self._mean = 0.0

    @property
    def streams(self) -> bool | None:
        """Whether this etcd streams ranges; None as long as nothing was read."""
        return self._streams

    async def newest(self, key: bytes = b"\0") -> int:
        """The newest revision of the cluster, which this member then has; `key` may be read."""
        answer = await self.client.range(key, keys_only=True, timeout=self._timeout)
        return answer.header.revision

    async def count(self, start: bytes, end: bytes, revision: int = 0) -> int:
        """How many keys there are."""
        answer = await self.client.range(
            start,
            end,
            revision=revision,
            serializable=self._serializable,
            count_only=True,
            timeout=self._timeout,
        )
        return answer.count

    async def read(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Chunk, None]:
        """All keys of the range in their order, in chunks of a megabyte or a few.

        Close it (`aclosing`). Raises RevisionCompacted, also in the middle, and other EtcdErrors.
        """
        if self._streams is not False:
            try:
                async with aclosing(self._stream(start, end, revision)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except errors.RPCUnsupported:
                self._streams = False
            else:
                return
        async with aclosing(self._pages(start, end, revision)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _request(self, start: bytes, end: bytes, revision: int, limit: int = 0) -> Any:
        return pb.RangeRequest(
            key=start,
            range_end=end,
            limit=limit,
            revision=revision,
            serializable=self._serializable,
        )

    def _note(self, answer: Answer, size: int) -> Chunk:
        if answer.entries:
            self._mean = size / len(answer.entries)
        return Chunk(answer.entries, size)

    async def _stream(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Chunk, None]:
        caller = self.client.caller
        request = self._request(start, end, revision)
        channel, stream, data = await caller.call(_RANGE_STREAM, request, self._timeout, self._open)
        with caller.connection.holding(channel):
            coming: asyncio.Future[Any] | None = None
            try:
                self._streams = True
                ended = False
                while data is not aio.EOF:
                    # On its way while this one is dealt with, so that etcd does not wait for us.
                    coming = asyncio.ensure_future(stream.read())
                    answer = parse(data, streamed=True, mean=self._mean)
                    if answer.cluster_id:
                        # The last part alone has a header.
                        caller.verify(_RANGE_STREAM, answer)
                        ended = True
                    chunk = self._note(answer, len(data))
                    del data
                    if answer.entries:
                        yield chunk
                    # Not held while the next one is waited for.
                    del answer, chunk
                    async with asyncio.timeout(self._timeout):
                        data = await coming
                if not ended:
                    # Cut off by whatever is in between, and the status says OK.
                    raise caller.fault(_RANGE_STREAM, "UNAVAILABLE", "", self._timeout)
            except aio.AioRpcError as failure:
                code, details = failure.code().name, failure.details() or ""
                raise caller.fault(_RANGE_STREAM, code, details, self._timeout) from None
            except TimeoutError:
                raise caller.fault(_RANGE_STREAM, "DEADLINE_EXCEEDED", "", self._timeout) from None
            except DecodeError:
                raise caller.fault(_RANGE_STREAM, "INTERNAL", "", self._timeout) from None
            finally:
                stream.cancel()
                await _give_up(coming)

    async def _open(self, sending: Sending) -> tuple[aio.Channel, Any, Any]:
        """The channel, the stream and its first message."""
        # No deadline: a reader that is slow on purpose may take hours.
        call = answers(sending, metadata=sending.metadata)
        try:
            async with asyncio.timeout(sending.seconds):
                return sending.channel, call, await call.read()
        except BaseException:
            call.cancel()
            raise

    async def _pages(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Chunk, None]:
        window = Window(start, end, _PART_KEYS)
        keys = _FIRST_PAGE_KEYS

        def ask() -> asyncio.Future[tuple[Answer, Chunk]]:
            return asyncio.ensure_future(self._page(window, revision, keys))

        coming: asyncio.Future[tuple[Answer, Chunk]] | None = ask()
        try:
            while coming is not None:
                try:
                    answer, chunk = await coming
                except errors.MessageTooLarge:
                    if keys == 1:
                        raise
                    keys = max(keys // 8, 1)
                    coming = ask()
                    continue
                if answer.entries:
                    window.passed([entry.key for entry in answer.entries], answer.count)
                    fitting = int(self._page_bytes / self._mean)
                    keys = max(1, min(fitting, 4 * keys, self._page_keys))
                more = answer.more or window.widen()
                # The next one is on its way while this one is dealt with, where that may take memory.
                coming = ask() if more and not self._frugal else None
                del answer
                if chunk.entries:
                    yield chunk
                del chunk
                if more and coming is None:
                    coming = ask()
        finally:
            await _give_up(coming)

    async def _page(self, window: Window, revision: int, keys: int) -> tuple[Answer, Chunk]:
        caller = self.client.caller

        async def exchange(sending: Sending) -> tuple[Answer, Chunk]:
            data = await one_message(sending)
            answer = parse(data, streamed=False, mean=self._mean)
            return answer, self._note(answer, len(data))

        request = self._request(window.position, window.bound, revision, keys)
        answer, chunk = await caller.call(_RANGE, request, self._timeout, exchange)
        caller.verify(_RANGE, answer)
        return answer, chunk


async def _give_up(coming: asyncio.Future[Any] | None) -> None:
    """What is still on its way is not wanted any more, nor what became of it."""
    if coming is not None:
        coming.cancel()
        await asyncio.wait({coming})
