"""Tells people what happens: core/v1 Events, one a transition, best effort.

Nothing waits for an Event. The truth is in the status; when the API server is away or slow, Events are
dropped, and the log still has each of them. This module must not know which transitions there are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from etcdmaint.api.fields import format_time
from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Severity
from etcdmaint.kube.client import Json, KubeApi, KubeError
from etcdmaint.kube.resources import EVENTS, FIELD_MANAGER, ObjectRef

log = logging.getLogger("etcdmaint.events")

_WAITING = 256
_LONGEST = 1000
"""Characters of a message; the API takes 1024 bytes."""


class EventSink:
    """Queues Events and posts them one by one in `run`."""

    def __init__(self, api: KubeApi, clock: Clock, *, instance: str) -> None:
        self._api = api
        self._clock = clock
        self._instance = instance
        self._queue: asyncio.Queue[Json] = asyncio.Queue(_WAITING)

    def post(self, ref: ObjectRef, severity: Severity, reason: str, message: str) -> None:
        """Log it and queue it; returns at once and never raises."""
        level = logging.WARNING if severity is Severity.WARNING else logging.INFO
        log.log(level, message, extra={"reason": reason, "object": f"{ref.resource.kind}/{ref}"})
        try:
            self._queue.put_nowait(self._body(ref, severity, reason, message))
        except asyncio.QueueFull:
            log.warning("too many events: one is dropped")

    async def run(self) -> None:
        """Post for ever."""
        while True:
            body = await self._queue.get()
            try:
                await self._api.create(EVENTS, body["metadata"]["namespace"], body)
            except KubeError as error:
                log.debug("an event was not posted", extra={"error": str(error)})
            self._queue.task_done()

    async def flush(self, timeout: float) -> None:
        """Wait until all that was queued is posted, but no longer than so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._queue.join()
        except TimeoutError:
            log.warning("some events were not posted")

    def _body(self, ref: ObjectRef, severity: Severity, reason: str, message: str) -> Json:
        now = format_time(self._clock.now())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{ref.name[:200].rstrip('-.')}.{secrets.token_hex(8)}",
                "namespace": ref.namespace,
            },
            "involvedObject": {
                "apiVersion": ref.resource.api_version,
                "kind": ref.resource.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "type": severity.value,
            "reason": reason,
            "message": shortened(message),
            "source": {"component": FIELD_MANAGER, "host": self._instance},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def shortened(message: str) -> str:
    """A message that fits: at most 1000 bytes of UTF-8."""
    data = message.encode()
    return message if len(data) <= _LONGEST else data[:_LONGEST].decode(errors="ignore") + "…"
