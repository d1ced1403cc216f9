"""StorageCompressionConfiguration, as kopf sees it: only watched, so that none gets a finalizer.

EtcdConnections are watched along: one that comes, goes or changes is noticed at once.
"""

from __future__ import annotations

from typing import Any, Protocol

import kopf

from etcdmaint.api.metadata import object_key
from etcdmaint.api.names import (
    COMPRESSION_PLURAL,
    CONNECTION_PLURAL,
    ETCDMAINT_GROUP,
    ETCDMAINT_VERSION,
)


class Compressions(Protocol):
    """Who looks after StorageCompressionConfigurations."""

    def seen(self, obj: dict[str, Any]) -> None:
        """The object exists, as it is."""

    def gone(self, uid: str) -> None:
        """The object is deleted."""

    def connection_changed(self, namespace: str, name: str) -> None:
        """An EtcdConnection of that name came, went or changed."""


def register(registry: kopf.OperatorRegistry, compressions: Compressions) -> None:
    """Tell kopf."""

    @kopf.on.event(
        ETCDMAINT_GROUP, ETCDMAINT_VERSION, COMPRESSION_PLURAL, id="compression", registry=registry
    )
    async def note(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        if type == "DELETED":
            compressions.gone(uid)
        else:
            compressions.seen({key: body[key] for key in body})

    @kopf.on.event(
        ETCDMAINT_GROUP, ETCDMAINT_VERSION, CONNECTION_PLURAL, id="compression", registry=registry
    )
    async def follow(body: kopf.Body, **_: object) -> None:
        compressions.connection_changed(*object_key(body))
