"""EtcdConnection, as kopf sees it: only watched, so that no finalizer of ours is ever put on one."""

from __future__ import annotations

from typing import Any, Protocol

import kopf

from etcdmaint.api.names import CONNECTION_PLURAL, ETCDMAINT_GROUP, ETCDMAINT_VERSION


class Connections(Protocol):
    """Who keeps an eye on EtcdConnections."""

    def seen(self, obj: dict[str, Any]) -> None:
        """The object exists, as it is."""

    def gone(self, uid: str) -> None:
        """The object is deleted."""


def register(registry: kopf.OperatorRegistry, connections: Connections) -> None:
    """Tell kopf."""

    @kopf.on.event(
        ETCDMAINT_GROUP, ETCDMAINT_VERSION, CONNECTION_PLURAL, id="connections", registry=registry
    )
    async def note(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        if type == "DELETED":
            connections.gone(uid)
        else:
            connections.seen({key: body[key] for key in body})
