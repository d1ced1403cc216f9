"""EtcdDefrag, as kopf sees it: a daemon for each that is not over, a last word, a note of every change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import kopf

from etcdmaint.api.names import COZYSTACK_GROUP, COZYSTACK_VERSION, DEFRAG_PLURAL
from etcdmaint.defrag.run import Phase
from etcdmaint.kube.inventory import RunInventory
from etcdmaint.kube.resources import ETCD_DEFRAGS, ObjectRef
from etcdmaint.kube.status import member_at_stake
from etcdmaint.kube.surroundings import StopSignal

_KIND = (COZYSTACK_GROUP, COZYSTACK_VERSION, DEFRAG_PLURAL)
_OVER = (Phase.COMPLETE.value, Phase.FAILED.value)


class Runs(Protocol):
    """Who carries runs out."""

    async def run(self, ref: ObjectRef, stop: StopSignal) -> None:
        """Return when the run is over, or has stopped because it was asked to."""

    async def settle(self, ref: ObjectRef) -> bool:
        """Of a deleted one: return when no member can be at it any more, or (False) when told to leave."""


def is_unfinished(status: Mapping[str, Any], **_: object) -> bool:
    """The daemon's filter. It tests the phase and nothing else.

    Were it to ask for the deletion as well, kopf would let the object go while a member is in flight.
    """
    return status.get("phase") not in _OVER


def is_deleted_too_early(body: kopf.Body, **_: object) -> bool:
    """The filter of what is done before a deleted object goes; also the one reason to keep it."""
    return bool(body.metadata.get("deletionTimestamp")) and member_at_stake(body)


def register(registry: kopf.OperatorRegistry, runs: Runs, inventory: RunInventory) -> None:
    """Tell kopf."""

    # No cancellation_backoff and no cancellation_timeout: a member's turn outlasts any of them, and
    # the object must stay until it is over (D7).
    @kopf.daemon(*_KIND, id="defrag", registry=registry, when=is_unfinished)
    async def defrag(
        name: str, namespace: str | None, uid: str, stopped: kopf.DaemonStopped, **_: object
    ) -> None:
        await runs.run(ObjectRef(ETCD_DEFRAGS, namespace or "", name, uid), stopped)

    # kopf begins no daemon for an object that it finds deleted. The operator may have been down then,
    # with a member in flight.
    @kopf.on.delete(*_KIND, id="settle", registry=registry, when=is_deleted_too_early)
    async def settle(name: str, namespace: str | None, uid: str, **_: object) -> None:
        if not await runs.settle(ObjectRef(ETCD_DEFRAGS, namespace or "", name, uid)):
            # Until this process ends: its successor lets the object go.
            await asyncio.Event().wait()

    @kopf.on.event(*_KIND, id="inventory", registry=registry)
    async def note(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        if type == "DELETED":
            inventory.gone(uid)
        else:
            inventory.seen(body)
