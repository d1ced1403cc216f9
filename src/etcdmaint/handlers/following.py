"""What is followed, as kopf sees it: only watched.

A daemon or a timer would put a finalizer on the object, which may be somebody else's.
"""

from __future__ import annotations

from typing import Any

import kopf

from etcdmaint.api.metadata import object_key
from etcdmaint.kube.following import Followers, Following
from etcdmaint.kube.resources import ETCD_CONNECTIONS, Resource
from etcdmaint.kube.storage_compression import CompressionMonitor


def register(
    registry: kopf.OperatorRegistry, followers: Followers, compressions: CompressionMonitor
) -> None:
    """Tell kopf. `compressions` is also told at once of each EtcdConnection that comes, goes or changes."""
    for resource, those in followers.items():
        for following in those:
            _watch(registry, resource, following)

    kind = ETCD_CONNECTIONS

    @kopf.on.event(kind.group, kind.version, kind.plural, id="clusterRef", registry=registry)
    async def change(body: kopf.Body, **_: object) -> None:
        compressions.connection_changed(*object_key(body))


def _watch(registry: kopf.OperatorRegistry, resource: Resource, following: Following[Any]) -> None:
    name = type(following).__name__

    @kopf.on.event(resource.group, resource.version, resource.plural, id=name, registry=registry)
    async def note(type: str | None, body: kopf.Body, uid: str, **_: object) -> None:  # noqa: A002  # kopf's own name
        if type == "DELETED":
            following.gone(uid)
        else:
            following.seen(resource, {key: body[key] for key in body})
