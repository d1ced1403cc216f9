"""Which generation of the EtcdDefrag CRD is installed.

An older public CRD of the same name lets the API server drop our additions without a word: a `dryRun`
would become a real run. So the schema that is really served is read, from the OpenAPI document that
every client may read, whatever its rights.
"""

from __future__ import annotations

from typing import Any

from etcdmaint.clock import Clock
from etcdmaint.kube.client import KubeApi, NotFound, Unavailable
from etcdmaint.kube.resources import ETCD_DEFRAGS

_KEEP = 15.0
_CREATION_ROUNDS = 2.0
"""Seconds by which an age may be too large: timestamps of objects, and of answers, are whole seconds."""

_ADDITIONS = (
    ("spec", "dryRun"),
    ("spec", "leaderTransfer"),
    ("spec", "clusterRef", "kind"),
    ("status", "members", "memberID"),
)


class DefragSchema:
    """Knows whether the served EtcdDefrag has our additions; asks again after some seconds."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._missing: tuple[str, ...] = ()
        self._read_at: float | None = None

    async def missing(self, age: float) -> tuple[str, ...]:
        """The additions that are not there; empty for our own CRD.

        Raises KubeError: Unavailable where it cannot be known now.

        `age` is that of the object it is asked for: that fields are missing holds a run up for good, so
        it must have been so after the object was created.
        """
        now = self._clock.monotonic()
        keep = min(_KEEP, age - _CREATION_ROUNDS) if self._missing else _KEEP
        if self._read_at is None or now - self._read_at > keep:
            try:
                missing = missing_additions(await self._api.schema(ETCD_DEFRAGS))
            except NotFound:
                missing = None
            if missing is None:
                # An API server that has just started publishes the kinds one after another.
                raise Unavailable("the Kubernetes API does not publish EtcdDefrag's schema yet")
            self._missing, self._read_at = missing, now
        return self._missing


def missing_additions(document: dict[str, Any]) -> tuple[str, ...] | None:
    """Which of our fields an OpenAPI v3 document lacks for EtcdDefrag; None where it has no such kind."""
    for schema in document.get("components", {}).get("schemas", {}).values():
        for kind in schema.get("x-kubernetes-group-version-kind") or ():
            if kind.get("kind") == ETCD_DEFRAGS.kind:
                return tuple(".".join(path) for path in _ADDITIONS if not _has(schema, path))
    return None


def _has(schema: dict[str, Any], path: tuple[str, ...]) -> bool:
    for key in path:
        schema = schema.get("items", schema)
        found = schema.get("properties", {}).get(key)
        if found is None:
            return False
        schema = found
    return True
