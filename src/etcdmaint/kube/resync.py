"""Corrects from time to time what watching may have missed, and lets finished objects go (D5).

Everything here is also right when the operator was down at the moment that counted: it lists, and does
not rely on having seen a change.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Fence
from etcdmaint.kube.client import (
    Conflict,
    Forbidden,
    Json,
    KubeApi,
    KubeError,
    NotFound,
    Rejected,
    read_exactly,
)
from etcdmaint.kube.following import Followers
from etcdmaint.kube.inventory import KnownRun, RunInventory, read_run
from etcdmaint.kube.resources import ETCD_DEFRAGS, Resource

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 5.0
_SUSPICIOUS = 60.0


@dataclass(slots=True, kw_only=True)
class Resync:
    """Lists every `interval` seconds, and deletes what is due in between.

    `active` gives the UIDs of the runs that are being carried out.
    """

    api: KubeApi
    inventory: RunInventory
    followers: Followers
    fence: Fence
    clock: Clock
    active: Callable[[], Collection[str]]
    namespaces: Sequence[str] = ()
    interval: float = 600.0
    orphans: dict[str, float] = field(default_factory=dict)
    """Unfinished runs that nobody works on, by UID, and for how many seconds; confirmed ones only."""

    async def run(self) -> None:
        """For ever; no trouble with the Kubernetes API ends it."""
        listed_at: float | None = None
        while True:
            now = self.clock.monotonic()
            try:
                if listed_at is None or now - listed_at >= self.interval:
                    await self._list()
                    listed_at = now
            except KubeError as error:
                log.warning("cannot list", extra={"error": str(error)})
            try:
                await self._retire()
                await self._find_orphans()
            except KubeError as error:
                log.warning("cannot look after runs", extra={"error": str(error)})
            await self.clock.sleep(self._pause())

    def _pause(self) -> float:
        due = self.inventory.next_due()
        if due is None:
            return _LONGEST_PAUSE
        left = (due - self.api.server_now()).total_seconds()
        return min(_LONGEST_PAUSE, max(1.0, left))

    async def _list(self) -> None:
        self.inventory.replace(await self._all(ETCD_DEFRAGS))
        for resource, those in self.followers.items():
            objects = await self._all(resource)
            for following in those:
                following.replace(resource, objects)

    async def _all(self, resource: Resource) -> list[Json]:
        found: list[Json] = []
        refused: list[Forbidden] = []
        namespaces = self.namespaces or ("",)
        for namespace in namespaces:
            try:
                found += await self.api.list(resource, namespace)
            except NotFound:  # the kind is not installed
                continue
            except Forbidden as error:
                # One namespace that is gone, and our rights there with it, must not hide the others.
                refused.append(error)
                log.warning("cannot list", extra={"namespace": namespace, "error": str(error)})
        if len(refused) == len(namespaces):
            raise refused[0]
        return found

    async def _find_orphans(self) -> None:
        idle = self.inventory.unattended(self.active(), self.clock.monotonic())
        orphans = {}
        for known in tuple(self.inventory.runs()):
            seconds = idle.get(known.ref.uid, 0.0)
            if seconds < _SUSPICIOUS:
                continue
            try:
                obj = await self._confirmed(known)
            except Forbidden:
                continue
            now_known = read_run(obj) if obj is not None else None
            if now_known is not None and not (now_known.phase.terminal or now_known.deleting):
                orphans[known.ref.uid] = seconds
        self.orphans = orphans

    async def _retire(self) -> None:
        for known in self.inventory.due(self.api.server_now()):
            try:
                await self._retire_one(known)
            except Conflict:
                continue
            except (Forbidden, Rejected) as error:
                log.warning("cannot delete", extra={"object": str(known.ref), "error": str(error)})

    async def _retire_one(self, known: KnownRun) -> None:
        # The object itself decides: what was seen may be out of date.
        obj = await self._confirmed(known)
        due = read_run(obj).due if obj is not None else None
        if obj is None or due is None or due > self.api.server_now():
            return
        self.fence.assert_held()
        with contextlib.suppress(NotFound):
            await self.api.delete(known.ref, resource_version=obj["metadata"]["resourceVersion"])
        self.inventory.gone(known.ref.uid)
        log.info("deleted, its time to live is over", extra={"object": str(known.ref)})

    async def _confirmed(self, known: KnownRun) -> Json | None:
        """The object as it is, noted as that; None when it is not there any more, which is noted too."""
        try:
            obj = await read_exactly(self.api, known.ref)
        except NotFound:
            self.inventory.gone(known.ref.uid)
            return None
        self.inventory.seen(obj)
        return obj
