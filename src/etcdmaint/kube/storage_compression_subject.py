"""One StorageCompressionConfiguration, what is kept of it between two looks, and who is asked and told.

Only memory: whoever looks and audits shares it. What has to outlive the process is in the status.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Protocol

from etcdmaint.api.compression import AuditStatus
from etcdmaint.api.defrag import ClusterRef
from etcdmaint.compression.walk import Timing
from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdmaintError
from etcdmaint.kube.following import Followed
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.storage_compression_file import Reading
from etcdmaint.kube.storage_compression_identity import Standing


class Instrumentation(Protocol):
    """Who counts what becomes of objects."""

    def published(self, result: str) -> None:
        """A ConfigMap was written, or could not be: `created`, `updated`, `restored`, `failed`."""

    def audited(self, result: str, seconds: float) -> None:
        """An audit is over: `consistent`, `inconsistent`, `failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPace:
    """Seconds; `identity` is how long a proof is kept, `walk` the audits' own timing."""

    interval: float = 30.0
    retry: float = 10.0
    identity: float = 300.0
    audit_retry: float = 300.0
    rpc_timeout: float = 5.0
    walk: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionParts(Parts):
    """What all objects of one process share."""

    instrumentation: Instrumentation
    pace: CompressionPace = field(default_factory=CompressionPace)


@dataclass(frozen=True, slots=True)
class CountingWish:
    """What an audit is for, and at how many bytes a second; one that is for anything else is ended."""

    cluster_ref: ClusterRef
    cluster_id: int
    bytes_per_second: int


@dataclass(slots=True, eq=False)
class Subject(Followed):
    """One object, and what is kept of it between two looks.

    `stood` is set once it was tried to find out which etcd it is about, `looked` after each look.
    `underway` is the audit that runs, which can be ended by it, `counting` what it is for.
    """

    stood: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    reading: Reading | None = None
    cluster_ref: ClusterRef | None = None
    target: Target | None = None
    standing: Standing = field(default_factory=Standing)
    stood_at: float = -math.inf
    audit: AuditStatus | None = None
    failure: EtcdmaintError | None = None
    failed_at: float = -math.inf
    underway: asyncio.Timeout | None = None
    counting: CountingWish | None = None

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
