"""One watch, on a stream of its own.

It ends with an exception or when its caller leaves, never silently; to begin again, and from which
revision, is the caller's part. This module must not know how the stream is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from google.protobuf.message import DecodeError
from grpc import aio

from etcdmaint import errors
from etcdmaint.errors import EtcdError
from etcdmaint.etcd import messages
from etcdmaint.etcd.proto import etcd_pb2 as pb
from etcdmaint.etcd.types import Header, KeyValue


class EventKind(StrEnum):
    """What happened to a key."""

    PUT = "PUT"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Event:
    """One change. A deleted key has only its `key` and, as `mod_revision`, when it was deleted."""

    kind: EventKind
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """The changes of one message. No events is a progress notice: all up to `header.revision` seen."""

    header: Header
    events: tuple[Event, ...] = ()


class Watch:
    """An async iterator of `WatchBatch`; made by `MemberClient.watch`, which also cancels it."""

    def __init__(self, call: Any, fault: Callable[[str, str], EtcdError]) -> None:
        """`call` is the stream, `fault` makes an exception of a code and a text."""
        self._call = call
        self._fault = fault
        self._header = Header(0, 0)

    @property
    def header(self) -> Header:
        """The header of the last message; that of the start says from which revision it watches."""
        return self._header

    async def open(self) -> None:
        """Wait for etcd to accept it."""
        answer = await self._read()
        if not answer.created:
            raise self._fault("INTERNAL", "")

    def cancel(self) -> None:
        """End the watch at once; etcd forgets it when the stream is gone."""
        self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        answer = await self._read()
        return WatchBatch(
            header=self._header,
            events=tuple(
                Event(
                    EventKind.DELETE if event.type == pb.Event.DELETE else EventKind.PUT,
                    messages.key_value(event.kv),
                )
                for event in answer.events
            ),
        )

    async def _read(self) -> Any:
        try:
            received = await self._call.read()
            if received is aio.EOF:
                raise self._fault("UNAVAILABLE", "")
            answer = pb.WatchResponse.FromString(received)
        except aio.AioRpcError as failure:
            raise self._fault(failure.code().name, failure.details() or "") from None
        except DecodeError:
            raise self._fault("INTERNAL", "") from None
        except asyncio.CancelledError:
            # The client was closed; a cancelled caller is another thing.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._fault("CANCELLED", "") from None
        self._header = messages.header(answer.header)
        if answer.compact_revision:
            raise errors.RevisionCompacted(
                f"the revision to watch from is gone, {answer.compact_revision} is the oldest left",
                code="OUT_OF_RANGE",
                compact_revision=answer.compact_revision,
            )
        if answer.canceled:
            raise self._fault("UNKNOWN", answer.cancel_reason)
        return answer
