"""Puts the file into its ConfigMap, and keeps it there as it is.

Only a ConfigMap with our object's UID among its owners is ever written; one that somebody has changed is
put right. It goes with its owner, by the garbage collector alone. This module must not know whether the
file may be published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from etcdmaint.api.names import POLICY_HASH_ANNOTATION
from etcdmaint.defrag.run import Fence
from etcdmaint.kube.client import Json, KubeApi, NotFound
from etcdmaint.kube.resources import CONFIG_MAPS, FIELD_MANAGER, ObjectRef
from etcdmaint.kube.storage_compression_file import PolicyFile

FILE_NAME: Final = "storage-compression.yaml"
SUFFIX: Final = "-storage-compression"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class Publication(StrEnum):
    """What became of an attempt to publish."""

    CREATED = "created"
    UPDATED = "updated"
    RESTORED = "restored"
    UNCHANGED = "unchanged"
    NAME_TAKEN = "name_taken"


@dataclass(frozen=True, slots=True)
class Found:
    """What lies under the ConfigMap's name: nothing, somebody else's, or ours with a file."""

    obj: Json | None
    owned: bool = False
    hash: str = ""

    @property
    def intact(self) -> bool:
        """Whether the file is the one that its annotation speaks of."""
        annotations = (self.obj or {}).get("metadata", {}).get("annotations") or {}
        return bool(self.hash) and annotations.get(POLICY_HASH_ANNOTATION) == self.hash


def config_map_name(ref: ObjectRef) -> str:
    """At most 253 characters: the CRD bounds the object's own name."""
    return f"{ref.name}{SUFFIX}"


async def find(api: KubeApi, ref: ObjectRef) -> Found:
    """Look at the ConfigMap: whose it is, and what the file in it hashes to. Raises KubeError."""
    try:
        obj = await api.get(CONFIG_MAPS, ref.namespace, config_map_name(ref))
    except NotFound:
        return Found(None)
    owners = obj["metadata"].get("ownerReferences") or ()
    owned = any(owner.get("uid") == ref.uid for owner in owners)
    text = (obj.get("data") or {}).get(FILE_NAME)
    return Found(obj, owned, _hash(text) if isinstance(text, str) else "")


async def publish(
    api: KubeApi, fence: Fence, ref: ObjectRef, file: PolicyFile, found: Found, published: str
) -> Publication:
    """Write the file where it is not there yet; `published` is the hash of what we wrote last.

    Raises KubeError: Conflict when somebody was quicker, Rejected when the API server takes it not.
    """
    if found.obj is None:
        fence.assert_held()
        await api.create(CONFIG_MAPS, ref.namespace, config_map(ref, file))
        return Publication.RESTORED if published == file.hash else Publication.CREATED
    if not found.owned:
        return Publication.NAME_TAKEN
    wanted = _amended(found.obj, ref, file)
    if wanted == found.obj:
        return Publication.UNCHANGED
    fence.assert_held()
    await api.replace(CONFIG_MAPS, ref.namespace, wanted)
    by_hand = published == file.hash or not found.intact
    return Publication.RESTORED if by_hand else Publication.UPDATED


def config_map(ref: ObjectRef, file: PolicyFile) -> Json:
    """The ConfigMap as it is created."""
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {
            "name": config_map_name(ref),
            "namespace": ref.namespace,
            "labels": {_MANAGED_BY: FIELD_MANAGER},
            "annotations": {POLICY_HASH_ANNOTATION: file.hash},
            "ownerReferences": [
                {
                    "apiVersion": ref.resource.api_version,
                    "kind": ref.resource.kind,
                    "name": ref.name,
                    "uid": ref.uid,
                    "controller": True,
                }
            ],
        },
        "data": {FILE_NAME: file.data.decode()},
    }


def _amended(obj: Json, ref: ObjectRef, file: PolicyFile) -> Json:
    """Ours again, with whatever else people have noted in its metadata."""
    ours, metadata = config_map(ref, file), obj["metadata"]
    kept: Mapping[str, Any] = {
        **metadata,
        "labels": {**(metadata.get("labels") or {}), **ours["metadata"]["labels"]},
        "annotations": {**(metadata.get("annotations") or {}), **ours["metadata"]["annotations"]},
    }
    amended = {**obj, "metadata": kept, "data": ours["data"]}
    amended.pop("binaryData", None)
    return amended


def _hash(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
