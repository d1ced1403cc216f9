"""Objects that are only watched, each looked after by a task of its own.

There is no finalizer, so only watching tells that one has come, changed or gone; what that missed lists
correct. This module must not know what is done for an object.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from etcdmaint.api.metadata import generation_of
from etcdmaint.errors import EtcdmaintError
from etcdmaint.kube.client import Conflict, Json, NotFound, Unavailable, read_exactly
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ObjectRef, Resource

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Followed:
    """One object as it was seen last."""

    ref: ObjectRef
    obj: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    generation: int = -1
    """Of the spec that was looked at last."""
    task: asyncio.Task[None] | None = None
    unlisted: bool = False
    """Whether the last list lacked it."""


F = TypeVar("F", bound=Followed)


class Following(ABC, Generic[F]):
    """All objects that are followed while `run` runs; a subclass says what that means for one.

    `retry` is in seconds, after a look that went wrong.
    """

    def __init__(self, parts: Parts, retry: float) -> None:
        self._parts = parts
        self._retry = retry
        self._followed: dict[str, F] = {}
        self._group: asyncio.TaskGroup | None = None

    @abstractmethod
    def _begin(self, ref: ObjectRef, obj: Json) -> F | None:
        """What is kept of an object that is new; None to leave it alone."""

    @abstractmethod
    async def _tend(self, followed: F) -> None:
        """Look after the object for ever, or until it is `gone`."""

    def _renew(self, followed: F, obj: Json) -> None:
        """Take the object as it is by now; `changed` is set where it has to be looked at anew."""
        followed.obj = obj
        if generation_of(obj) != followed.generation:
            followed.changed.set()

    def __iter__(self) -> Iterator[F]:
        return iter(tuple(self._followed.values()))

    def find(self, uid: str) -> F | None:
        """What is known of the object."""
        return self._followed.get(uid)

    def seen(self, resource: Resource, obj: Json) -> None:
        """The object exists, as it is."""
        metadata = obj["metadata"]
        if (known := self.find(metadata["uid"])) is not None:
            self._renew(known, obj)
            return
        ref = ObjectRef(resource, metadata["namespace"], metadata["name"], metadata["uid"])
        if (begun := self._begin(ref, obj)) is not None:
            self._followed[ref.uid] = begun
            self._start(begun)

    def gone(self, uid: str) -> F | None:
        """The object is deleted, or is to be left alone: its task is cancelled."""
        followed = self._followed.pop(uid, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()
        return followed

    def replace(self, resource: Resource, objects: Iterable[Json]) -> None:
        """These are all of that kind that existed a moment ago.

        That may be older than what was watched while they were listed. So it turns nothing back, and only
        who is missing twice is gone.
        """
        listed = {obj["metadata"]["uid"]: obj for obj in objects}
        for followed in self:
            if followed.ref.resource is not resource:
                continue
            obj = listed.get(followed.ref.uid)
            if obj is None and followed.unlisted:
                self.gone(followed.ref.uid)
            followed.unlisted = obj is None
            if obj is not None and _is_older(obj, followed.obj):
                del listed[followed.ref.uid]
        for obj in listed.values():
            self.seen(resource, obj)

    async def run(self) -> None:
        """For ever: what goes wrong with one object stays with it."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for followed in self:
                    self._start(followed)
                await asyncio.Event().wait()
        finally:
            self._group = None

    def _start(self, followed: F) -> None:
        if self._group is not None:
            followed.task = self._group.create_task(self._tend(followed), name=str(followed.ref))

    async def _contained(self, followed: F, look: Awaitable[float | None]) -> float | None:
        """What a look gives: the seconds until the next, None for no other. A fault stays with its object."""
        about = {"object": str(followed.ref)}
        try:
            return await look
        except (Conflict, Unavailable) as error:
            log.debug("not now", extra={**about, "error": str(error)})
        except EtcdmaintError as error:
            log.warning("not looked after", extra={**about, "error": str(error)})
        except Exception:  # the outermost shell of one object: the others go on, and so does it
            log.exception("a fault while looking after an object", extra=about)
        return self._retry

    async def _revise(
        self, followed: F, generation: int, make_patch: Callable[[Json], Json | None]
    ) -> bool:
        """Write what `make_patch` makes of the object as it is; whether its status says that now.

        Nothing is written where that is None, or where the spec is not of that generation any more. Where
        somebody else writes at the same moment, the next look compares with what stands there then.
        Raises what KubeApi and the fence raise.
        """
        try:
            obj = await read_exactly(self._parts.api, followed.ref)
            current = generation_of(obj) == generation
            if current and (patch := make_patch(obj)) is not None:
                self._parts.fence.assert_held()
                version = obj["metadata"]["resourceVersion"]
                obj = await self._parts.api.patch_status(followed.ref, patch, version)
        except NotFound:
            self.gone(followed.ref.uid)
            return False
        except Conflict:
            self._parts.api.observer.status_conflict()
            return False
        if not _is_older(obj, followed.obj):
            self._renew(followed, obj)
        return current


Followers = Mapping[Resource, Sequence[Following[Any]]]
"""Who follows the objects of which kind."""


def _is_older(obj: Json, known: Json) -> bool:
    """API servers count their resourceVersions up."""
    version, newest = (str(o["metadata"].get("resourceVersion", "")) for o in (obj, known))
    return version.isdecimal() and newest.isdecimal() and int(version) < int(newest)
