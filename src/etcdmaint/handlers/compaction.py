"""Who asks for compaction, as kopf sees it: only watched, so that nobody gets a finalizer of ours."""

from __future__ import annotations

from typing import Any, Protocol

import kopf

from etcdmaint.api.names import (
    CLUSTER_PLURAL,
    CONNECTION_PLURAL,
    COZYSTACK_GROUP,
    COZYSTACK_VERSION,
    ETCDMAINT_GROUP,
    ETCDMAINT_VERSION,
)
from etcdmaint.kube.resources import ETCD_CLUSTERS, ETCD_CONNECTIONS, Resource


class Compactions(Protocol):
    """Who has clusters compacted."""

    def seen(self, resource: Resource, obj: dict[str, Any]) -> None:
        """The object exists, as it is."""

    def gone(self, uid: str) -> None:
        """The object is deleted."""


def register(registry: kopf.OperatorRegistry, compactions: Compactions) -> None:
    """Tell kopf."""

    def note(resource: Resource, type_: str | None, body: kopf.Body, uid: str) -> None:
        if type_ == "DELETED":
            compactions.gone(uid)
        else:
            compactions.seen(resource, {key: body[key] for key in body})

    @kopf.on.event(
        ETCDMAINT_GROUP, ETCDMAINT_VERSION, CONNECTION_PLURAL, id="compaction", registry=registry
    )
    async def connection(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        note(ETCD_CONNECTIONS, type, body, uid)

    @kopf.on.event(
        COZYSTACK_GROUP, COZYSTACK_VERSION, CLUSTER_PLURAL, id="compaction", registry=registry
    )
    async def cluster(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        note(ETCD_CLUSTERS, type, body, uid)
