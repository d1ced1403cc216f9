"""Writes what was found into the status of a StorageCompressionConfiguration, and tells what is new.

Compare and swap; nothing is written where the status says it already. An Event is posted when a
condition turns, after it stands in the status: so once, also across restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etcdmaint.api.compression import compression_status
from etcdmaint.api.conditions import condition_is, find_condition
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Fence, Severity
from etcdmaint.kube.client import Conflict, KubeApi, NotFound, read_exactly
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.measurement import Verdict
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.storage_compression_file import SECRETS_SELECTED
from etcdmaint.kube.storage_compression_status import Findings, write_findings
from etcdmaint.kube.storage_compression_subject import Subject, generation_of

_BAD_NEWS = (
    (CompressionCondition.VALID, False),
    (CompressionCondition.PUBLISHED, False),
    (CompressionCondition.AUDITED, False),
    (CompressionCondition.DAMAGED, True),
)


@dataclass(frozen=True, slots=True)
class Teller:
    """Writes statuses and posts Events."""

    api: KubeApi
    events: EventSink
    fence: Fence
    clock: Clock

    async def tell(self, subject: Subject, findings: Findings) -> None:
        """Write it where it is news. Raises KubeError while the Kubernetes API is away."""
        if write_findings(subject.obj, findings, self.clock.now()) is None:
            return
        ref = subject.ref
        try:
            obj = await read_exactly(self.api, ref)
            metadata = obj["metadata"]
            if metadata.get("deletionTimestamp"):
                return
            if generation_of(obj) != subject.generation:
                # What was found is about another spec.
                subject.update(obj)
                subject.changed.set()
                return
            patch = write_findings(obj, findings, self.clock.now())
            before = compression_status(obj).conditions
            if patch is not None:
                self.fence.assert_held()
                obj = await self.api.patch_status(ref, patch, metadata["resourceVersion"])
                self._announce(ref, before, findings)
            subject.update(obj)
        except Conflict:
            # Somebody else was at it: the next look compares with what stands there then.
            self.api.observer.status_conflict()
            subject.changed.set()
        except NotFound:
            return

    def _announce(self, ref: ObjectRef, before: Sequence[Any], findings: Findings) -> None:
        for condition, bad in _BAD_NEWS:
            verdict = findings.verdicts[condition]
            if verdict.status is bad and _is_news(before, condition, verdict):
                self.events.post(ref, Severity.WARNING, verdict.reason, verdict.message)
        valid = findings.verdicts[CompressionCondition.VALID]
        if valid.reason == SECRETS_SELECTED and _is_news(before, CompressionCondition.VALID, valid):
            self.events.post(ref, Severity.WARNING, valid.reason, valid.message)


def _is_news(before: Sequence[Any], condition: CompressionCondition, verdict: Verdict) -> bool:
    """Whether the condition said something else before."""
    old = find_condition(before, condition) or {}
    same = verdict.status is not None and condition_is(before, condition, verdict.status)
    return not (same and old.get("reason") == verdict.reason)
