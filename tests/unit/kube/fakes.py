"""A clock that only moves when it is told to, and an API server of a few dictionaries."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from etcdmaint.errors import LeadershipLost
from etcdmaint.kube.client import Conflict, Forbidden, NotFound, Unavailable
from etcdmaint.kube.resources import ObjectRef, Resource

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Sleeping takes no time but moves the clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


class FakeFence:
    """Held until it is said to be lost, or until a moment of a clock."""

    holder = "ns/etcdmaint/uid"
    epoch = "0-test"

    def __init__(self, clock: FakeClock | None = None, until: float = float("inf")) -> None:
        self._clock = clock
        self._until = until

    def assert_held(self) -> None:
        if self._clock is not None and self._clock.seconds >= self._until:
            raise LeadershipLost("lost")


class Observer:
    """Counts."""

    def __init__(self) -> None:
        self.conflicts = 0

    def request(self, verb: str, resource: str, status: int | None, seconds: float) -> None:
        """Ignore it."""

    def status_conflict(self) -> None:
        self.conflicts += 1


class FakeApi:
    """Stands for `KubeApi`: objects by resource, namespace and name, with resourceVersions.

    `disturb` is called before each write is carried out, and may change the object or raise.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.observer = Observer()
        self.writes: list[tuple[str, str, Any]] = []
        self.outages = 0
        self.forbidden: set[str] = set()
        """Namespaces that may not be listed."""
        self.disturb: Callable[[], None] = lambda: None
        self._versions = itertools.count(1)

    def put(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        """Store an object as it is, with a new version."""
        metadata = obj["metadata"]
        metadata.setdefault("namespace", "ns")
        metadata.setdefault("uid", f"uid-{metadata['name']}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[resource.plural, metadata["namespace"], metadata["name"]] = obj
        return obj

    def server_now(self) -> datetime:
        return self.clock.now()

    def age(self, obj: dict[str, Any]) -> float:
        return 60.0

    async def get(self, resource: Resource, namespace: str, name: str, **_: Any) -> dict[str, Any]:
        self._answer()
        return copy.deepcopy(self._find(resource, namespace, name))

    async def list(self, resource: Resource, namespace: str = "", **_: Any) -> list[dict[str, Any]]:
        self._answer()
        if namespace in self.forbidden:
            raise Forbidden("no")
        return [
            copy.deepcopy(obj)
            for (plural, where, _name), obj in self.objects.items()
            if plural == resource.plural and namespace in ("", where)
        ]

    async def patch_status(
        self, ref: ObjectRef, status: dict[str, Any], resource_version: str
    ) -> dict[str, Any]:
        self._answer()
        self.disturb()
        obj = self._find(ref.resource, ref.namespace, ref.name)
        if obj["metadata"]["resourceVersion"] != resource_version:
            raise Conflict("changed")
        merged = {**obj.get("status", {}), **status}
        obj["status"] = {key: value for key, value in merged.items() if value is not None}
        self.writes.append(("patch", ref.name, status))
        return copy.deepcopy(self.put(ref.resource, obj))

    async def delete(self, ref: ObjectRef, *, resource_version: str = "") -> None:
        self._answer()
        obj = self._find(ref.resource, ref.namespace, ref.name)
        if obj["metadata"]["uid"] != ref.uid:
            raise Conflict("another object")
        if resource_version and obj["metadata"]["resourceVersion"] != resource_version:
            raise Conflict("changed")
        del self.objects[ref.resource.plural, ref.namespace, ref.name]
        self.writes.append(("delete", ref.name, None))

    def _find(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        found = self.objects.get((resource.plural, namespace, name))
        if found is None:
            raise NotFound(f"{resource.plural} {name} not found")
        return found

    def _answer(self) -> None:
        if self.outages > 0:
            self.outages -= 1
            raise Unavailable("away")


class Crowd:
    """A real HTTP server that answers nobody but watches before it is told to, and counts who waits."""

    def __init__(self) -> None:
        self.url = ""
        self.waiting = self.most = 0
        self.let_in = asyncio.Event()
        self._came = asyncio.Condition()

    async def until(self, waiting: int) -> None:
        """Return when so many wait."""
        async with self._came:
            await self._came.wait_for(lambda: self.waiting >= waiting)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.query.get("watch") != "true":
            async with self._came:
                self.waiting += 1
                self.most = max(self.most, self.waiting)
                self._came.notify_all()
            await self.let_in.wait()
            self.waiting -= 1
        return web.json_response({})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """It answers at `url` meanwhile."""
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()
