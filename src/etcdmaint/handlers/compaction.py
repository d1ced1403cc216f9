"""Who is measured and who asks for compaction, as kopf sees it: only watched.

A daemon or a timer would put a finalizer on somebody else's object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import kopf

from etcdmaint.kube.resources import ETCD_CLUSTERS, ETCD_CONNECTIONS, Resource


class Connections(Protocol):
    """Who keeps an eye on EtcdConnections."""

    def seen(self, obj: dict[str, Any]) -> None:
        """The object exists, as it is."""

    def gone(self, uid: str) -> None:
        """The object is deleted."""


class Compactions(Protocol):
    """Who has clusters compacted."""

    def seen(self, resource: Resource, obj: dict[str, Any]) -> None:
        """The object exists, as it is."""

    def gone(self, uid: str) -> None:
        """The object is deleted."""


def register(
    registry: kopf.OperatorRegistry, connections: Connections, compactions: Compactions
) -> None:
    """Tell kopf."""
    _watch(registry, ETCD_CONNECTIONS, "connections", connections.seen, connections.gone)
    for resource in (ETCD_CONNECTIONS, ETCD_CLUSTERS):
        seen = partial(compactions.seen, resource)
        _watch(registry, resource, "compaction", seen, compactions.gone)


def _watch(
    registry: kopf.OperatorRegistry,
    resource: Resource,
    handler: str,
    seen: Callable[[dict[str, Any]], None],
    gone: Callable[[str], None],
) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, id=handler, registry=registry)
    async def note(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        if type == "DELETED":
            gone(uid)
        else:
            seen({key: body[key] for key in body})
