"""Objects that are only watched, each looked after by a task of its own.

There is no finalizer, so only watching tells that one has come, changed or gone; what that missed lists
correct. This module must not know what is done for an object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from etcdmaint.defrag.run import Fence
from etcdmaint.kube.client import Conflict, Json, KubeApi, read_exactly
from etcdmaint.kube.resources import ObjectRef, Resource


@dataclass(slots=True, eq=False)
class Followed:
    """One object as it was seen last."""

    ref: ObjectRef
    obj: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    unlisted: bool = False
    """Whether the last list lacked it."""


F = TypeVar("F", bound=Followed)


class Following(Generic[F]):
    """All objects that are followed; `tend` looks after one while `run` runs."""

    def __init__(self, tend: Callable[[F], Coroutine[Any, Any, None]]) -> None:
        self._tend = tend
        self._followed: dict[str, F] = {}
        self._group: asyncio.TaskGroup | None = None

    def __iter__(self) -> Iterator[F]:
        return iter(tuple(self._followed.values()))

    def find(self, uid: str) -> F | None:
        """What is known of the object."""
        return self._followed.get(uid)

    def begin(self, followed: F) -> None:
        """Look after this one too."""
        self._followed[followed.ref.uid] = followed
        self._start(followed)

    def forget(self, uid: str) -> F | None:
        """Leave the object alone from now on: its task is cancelled."""
        followed = self._followed.pop(uid, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()
        return followed

    def compare(self, resource: Resource, objects: Iterable[Json]) -> tuple[list[Json], list[str]]:
        """What of a list is news, and the UIDs of those that are gone by it.

        It may be older than what was watched while it was read. So it turns nothing back, and only who
        is missing twice is gone.
        """
        listed = {obj["metadata"]["uid"]: obj for obj in objects}
        gone = []
        for followed in self:
            if followed.ref.resource is not resource:
                continue
            obj = listed.get(followed.ref.uid)
            if obj is None and followed.unlisted:
                gone.append(followed.ref.uid)
            followed.unlisted = obj is None
            if obj is not None and _is_older(obj, followed.obj):
                del listed[followed.ref.uid]
        return list(listed.values()), gone

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for followed in self:
                self._start(followed)
            await asyncio.Event().wait()

    def _start(self, followed: F) -> None:
        if self._group is not None:
            followed.task = self._group.create_task(self._tend(followed), name=str(followed.ref))


async def revise_status(
    api: KubeApi, fence: Fence, followed: Followed, make_patch: Callable[[Json], Json | None]
) -> Json | None:
    """Write what `make_patch` makes of the object as it is; gives the object afterwards.

    Nothing is written where that is None, or where the spec is another one by now than what was looked
    at. Gives None where somebody else wrote at the same moment: the next look compares with what stands
    there then. Raises NotFound when the object is gone, and what KubeApi and the fence raise.
    """
    ref = followed.ref
    obj = await read_exactly(api, ref)
    metadata = obj["metadata"]
    if metadata.get("generation") != followed.obj["metadata"].get("generation"):
        return obj
    patch = make_patch(obj)
    if patch is None:
        return obj
    fence.assert_held()
    try:
        return await api.patch_status(ref, patch, metadata["resourceVersion"])
    except Conflict:
        api.observer.status_conflict()
        return None


def _is_older(obj: Json, known: Json) -> bool:
    """API servers count their resourceVersions up."""
    version, newest = (str(o["metadata"].get("resourceVersion", "")) for o in (obj, known))
    return version.isdecimal() and newest.isdecimal() and int(version) < int(newest)
