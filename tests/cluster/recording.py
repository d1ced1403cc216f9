"""A relay between a gRPC client and etcd that keeps what the client said: to compare it byte by byte.

It reads just as much of HTTP/2 as it takes to find gRPC's messages in clear text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_HEADER = 9
_DATA, _PADDED = 0, 0x8


@dataclass
class Recording:
    """What each connection's client has sent so far."""

    url: str = ""
    connections: list[bytearray] = field(default_factory=list)

    def messages(self) -> list[bytes]:
        """Every whole gRPC message, stream by stream."""
        return [message for sent in self.connections for message in _messages(bytes(sent))]


def _messages(sent: bytes) -> list[bytes]:
    streams: dict[int, bytearray] = defaultdict(bytearray)
    at = len(_PREFACE)
    assert sent[:at] == _PREFACE[: len(sent)]
    while at + _FRAME_HEADER <= len(sent):
        length, kind, flags = int.from_bytes(sent[at : at + 3]), sent[at + 3], sent[at + 4]
        stream = int.from_bytes(sent[at + 5 : at + 9]) & 0x7FFFFFFF
        at += _FRAME_HEADER
        if kind == _DATA:
            assert not flags & _PADDED
            streams[stream] += sent[at : at + length]
        at += length
    found = []
    for data in streams.values():
        begin = 0
        while begin + 5 <= len(data):
            assert data[begin] == 0, "compressed"
            size = int.from_bytes(data[begin + 1 : begin + 5])
            if begin + 5 + size <= len(data):
                found.append(bytes(data[begin + 5 : begin + 5 + size]))
            begin += 5 + size
    return found


@asynccontextmanager
async def recording(upstream: str) -> AsyncIterator[Recording]:
    """Relay to this URL, in clear text, while the `with` lasts."""
    parts = urlsplit(upstream)
    kept = Recording()
    served: set[asyncio.Task[None]] = set()

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: bytearray | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if keep is not None:
                    keep += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(parts.hostname, parts.port)
        kept.connections.append(bytearray())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pass_on(reader, here, kept.connections[-1]))
                group.create_task(pass_on(there, writer, None))
        finally:
            for end in (here, writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.get_running_loop().create_task(relay(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    kept.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield kept
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
