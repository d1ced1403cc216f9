"""One StorageCompressionConfiguration, and what is kept of it between two looks.

Only memory: whoever looks, audits and tells shares it. What has to outlive the process is in the status.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from etcdmaint.api.compression import AuditStatus
from etcdmaint.api.defrag import ClusterRef
from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdmaintError
from etcdmaint.kube.client import Json
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.storage_compression_file import Reading
from etcdmaint.kube.storage_compression_identity import Standing


def generation_of(obj: Json) -> int:
    """Which spec of the object it is; 0 where that is not told."""
    return int(obj["metadata"].get("generation") or 0)


@dataclass(frozen=True, slots=True)
class CountingWish:
    """What an audit is for, and at how many bytes a second; one that is for anything else is ended."""

    cluster_ref: ClusterRef
    cluster_id: int
    bytes_per_second: int


@dataclass(slots=True, eq=False)
class Subject:
    """One object, and what is kept of it between two looks.

    `stood` is set once it was tried to find out which etcd it is about, `looked` after each look.
    `doubtful`: a list and a watch disagree on whether it exists. `underway` is the audit that runs, which
    can be ended by it, `counting` what it is for.
    """

    ref: ObjectRef
    obj: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stood: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    reading: Reading | None = None
    generation: int = -1
    cluster_ref: ClusterRef | None = None
    target: Target | None = None
    standing: Standing = field(default_factory=Standing)
    stood_at: float = -math.inf
    audit: AuditStatus | None = None
    failure: EtcdmaintError | None = None
    failed_at: float = -math.inf
    doubtful: bool = False
    underway: asyncio.Timeout | None = None
    counting: CountingWish | None = None

    def update(self, obj: Json) -> None:
        """The object as somebody has read it: an answer or a list may be older than what is known."""
        if generation_of(obj) >= generation_of(self.obj):
            self.obj = obj

    @property
    def counting_wish(self) -> CountingWish | None:
        """What is to be audited, None for nothing."""
        config, cluster_id = self.reading.config if self.reading else None, self.standing.cluster_id
        if config is None or self.deleting or cluster_id is None or not config.spec.audit.interval:
            return None
        ref, audit = config.spec.cluster_ref, config.spec.audit
        return None if ref is None else CountingWish(ref, cluster_id, audit.bytes_per_second)

    @property
    def deleting(self) -> bool:
        """Whether somebody has asked for it to be deleted."""
        return bool(self.obj["metadata"].get("deletionTimestamp"))

    @property
    def age(self) -> tuple[str, str]:
        """Sorts the older first."""
        return str(self.obj["metadata"].get("creationTimestamp") or ""), self.ref.uid
