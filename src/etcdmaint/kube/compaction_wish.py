"""What an object asks of compaction: its interval, and what of it makes a difference.

An EtcdConnection asks by its spec, somebody else's EtcdCluster by our annotation. Pure.
"""

from __future__ import annotations

from etcdmaint.api.connection import parse_connection
from etcdmaint.api.fields import parse_compaction_interval
from etcdmaint.api.names import COMPACTION_INTERVAL_ANNOTATION, PAUSED_ANNOTATION
from etcdmaint.kube.client import Json
from etcdmaint.kube.resources import ETCD_CONNECTIONS, Resource

_FIELD = f"metadata.annotations[{COMPACTION_INTERVAL_ANNOTATION}]"


def asks(resource: Resource, obj: Json) -> bool:
    """Whether the object says anything about compaction, be it sensible or not."""
    return _raw(resource, obj) is not None


def read_interval(resource: Resource, obj: Json) -> float:
    """Seconds between two compactions, 0 for none. Raises InvalidInput with the field."""
    if resource is ETCD_CONNECTIONS:
        compaction = parse_connection(obj).spec.compaction
        return compaction.interval if compaction else 0.0
    raw = _raw(resource, obj)
    return 0.0 if raw is None else parse_compaction_interval(raw, _FIELD)


def wish(resource: Resource, obj: Json) -> tuple[object, ...]:
    """What of the object makes a difference here: equal wishes need no second look."""
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    return (
        _raw(resource, obj),
        annotations.get(PAUSED_ANNOTATION),
        metadata.get("deletionTimestamp"),
        metadata.get("generation") if resource is ETCD_CONNECTIONS else None,
    )


def _raw(resource: Resource, obj: Json) -> str | None:
    if resource is ETCD_CONNECTIONS:
        spec = obj.get("spec")
        compaction = spec.get("compaction") if isinstance(spec, dict) else None
        return None if compaction is None else str(compaction)
    annotations = obj["metadata"].get("annotations") or {}
    found = annotations.get(COMPACTION_INTERVAL_ANNOTATION)
    return None if found is None else str(found)
