"""What we read of an object's metadata, and what our annotations mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from etcdmaint.api.fields import ObjectName, Time
from etcdmaint.api.names import (
    ALLOW_UNSAFE_VERSION_ANNOTATION,
    DRY_RUN_ANNOTATION,
    PAUSED_ANNOTATION,
)
from etcdmaint.api.schema import Model


def is_paused(annotations: object) -> bool:
    """Whether somebody pressed the stop button (D9): any value but `false` stops.

    Whoever writes `yes` there in an emergency means it.
    """
    return _switched_on(annotations, PAUSED_ANNOTATION)


def is_dry_run(annotations: object) -> bool:
    """Whether the annotation asks for a dry run (D8): any value but `false` does, as above."""
    return _switched_on(annotations, DRY_RUN_ANNOTATION)


def allowed_unsafe_version(annotations: object) -> str:
    """The etcd version that somebody takes the risk for (D17), "" for none."""
    value = (
        annotations.get(ALLOW_UNSAFE_VERSION_ANNOTATION) if isinstance(annotations, Mapping) else ""
    )
    return value.strip() if isinstance(value, str) else ""


def _switched_on(annotations: object, name: str) -> bool:
    if not isinstance(annotations, Mapping) or name not in annotations:
        return False
    value = annotations[name]
    return not (isinstance(value, str) and value.strip().lower() == "false")


def _strings(value: object) -> object:
    if not isinstance(value, Mapping):
        return {}
    return {
        key: text for key, text in value.items() if isinstance(key, str) and isinstance(text, str)
    }


class Metadata(Model):
    """Of a namespaced object that the API server has admitted."""

    name: ObjectName
    namespace: ObjectName
    uid: Annotated[str, Field(min_length=1, max_length=128)]
    creation_timestamp: Time
    deletion_timestamp: Time | None = None
    annotations: Annotated[dict[str, str], BeforeValidator(_strings)] = Field(default_factory=dict)


class Resource(Model):
    """A custom resource of ours: metadata and whatever its subclass adds."""

    metadata: Metadata

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace: also that of everything it refers to."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """What tells it from an earlier object of the same name."""
        return self.metadata.uid

    @property
    def deleting(self) -> bool:
        """Whether somebody has asked for it to be deleted."""
        return self.metadata.deletion_timestamp is not None


def object_key(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name of any object, "" for what is missing; never raises."""
    metadata = part_of(obj, "metadata")
    namespace, name = metadata.get("namespace"), metadata.get("name")
    return (
        namespace if isinstance(namespace, str) else "",
        name if isinstance(name, str) else "",
    )


def part_of(obj: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A nested object, empty where anything on the way is missing or is no object."""
    for key in keys:
        found = obj.get(key)
        if not isinstance(found, Mapping):
            return {}
        obj = found
    return obj


def generation_of(obj: Mapping[str, Any]) -> int:
    """Which spec of the object it is; 0 where that is not told."""
    return int(part_of(obj, "metadata").get("generation") or 0)
