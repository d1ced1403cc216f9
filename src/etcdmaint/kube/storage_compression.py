"""Looks after every StorageCompressionConfiguration for as long as it exists.

A look at each object every half minute, and when it changes; audits beside the looks. No finalizer is
ever put on an object, so its end is only heard of. What a look does is `storage_compression_look`'s, when
to audit `storage_compression_auditing`'s, what is said `storage_compression_verdicts`'.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from etcdmaint.api.compression import StorageCompressionStatus, compression_status
from etcdmaint.api.metadata import generation_of
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.defrag.run import Severity
from etcdmaint.kube.client import Json, NotFound, read_exactly
from etcdmaint.kube.following import Following
from etcdmaint.kube.resources import ObjectRef, Resource
from etcdmaint.kube.storage_compression_auditing import Auditor
from etcdmaint.kube.storage_compression_identity import Standing
from etcdmaint.kube.storage_compression_look import Looks
from etcdmaint.kube.storage_compression_subject import CompressionParts, Subject
from etcdmaint.kube.storage_compression_verdicts import Findings, news, write_findings

_AT_ONCE = 8


class CompressionMonitor(Following[Subject]):
    """Knows all objects, and looks after each while `run` runs.

    It begins when `replace` has once said which there are: of two for one etcd the older publishes, and
    that must not depend on which is heard of first.
    """

    def __init__(self, parts: CompressionParts) -> None:
        super().__init__(parts, parts.pace.retry)
        self._pace = parts.pace
        self._looks = Looks(parts)
        self._auditor = Auditor(parts)
        self._turnstile = asyncio.Semaphore(_AT_ONCE)
        self._listed = asyncio.Event()

    def gone(self, uid: str) -> Subject | None:
        """The object is deleted: another one for the same etcd may publish now."""
        if (subject := super().gone(uid)) is not None:
            for other in self:
                other.changed.set()
        return subject

    def replace(self, resource: Resource, objects: Iterable[Json]) -> None:
        """These are all that existed a moment ago."""
        super().replace(resource, objects)
        self._listed.set()

    def connection_changed(self, namespace: str, name: str) -> None:
        """An EtcdConnection of that name came, went or changed."""
        for subject in self:
            ref = subject.cluster_ref
            if subject.ref.namespace == namespace and ref is not None and ref.name == name:
                subject.changed.set()

    def statuses(self) -> list[tuple[ObjectRef, StorageCompressionStatus]]:
        """Every object and its status."""
        return [(each.ref, compression_status(each.obj)) for each in self]

    async def run(self) -> None:
        """For ever, once it is known what there is."""
        await self._listed.wait()
        await super().run()

    def _begin(self, ref: ObjectRef, obj: Json) -> Subject:
        status = compression_status(obj)
        subject = Subject(ref, obj, audit=status.last_audit)
        if status.observed_generation == generation_of(obj):
            subject.standing = Standing(status.cluster_id)
        return subject

    async def _tend(self, subject: Subject) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._auditor.keep(subject), name=f"audits {subject.ref}")
            while True:
                subject.changed.clear()
                pause = await self._contained(subject, self._look(subject))
                subject.looked.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await subject.changed.wait()

    async def _look(self, subject: Subject) -> float:
        """Find out, write what is due, say what was found; the seconds until the next look."""
        async with self._turnstile:
            if not await self._is_there(subject):
                self.gone(subject.ref.uid)
                return self._pace.interval
            if subject.deleting:
                self._auditor.end_unwanted(subject)
                return self._pace.interval
            reading = await self._looks.stand(subject)
        subject.stood.set()
        self._auditor.end_unwanted(subject)
        await self._wait_for_elders(subject)
        async with self._turnstile:
            findings = await self._looks.settle(subject, reading, self._elder(subject))
            told = await self._tell(subject, findings)
        unknown = findings.verdicts[CompressionCondition.PUBLISHED].status is None
        unsettled = unknown or subject.standing.fault or not told
        return self._pace.retry if unsettled else self._pace.interval

    async def _is_there(self, subject: Subject) -> bool:
        """Look at the object as it is, or never again, also where a watch is late to tell.

        A file that is out of date must not come back, and none is to be written for what is gone.
        """
        try:
            subject.obj = await read_exactly(self._parts.api, subject.ref)
        except NotFound:
            return False
        return True

    async def _tell(self, subject: Subject, findings: Findings) -> bool:
        """Whether the status says it. An Event is posted after it says what is new: so once."""
        before: Sequence[Any] = ()

        def patch(obj: Json) -> Json | None:
            nonlocal before
            before = compression_status(obj).conditions
            return write_findings(obj, findings, self._parts.clock.now())

        if patch(subject.obj) is None:
            return True
        told = await self._revise(subject, subject.generation, patch)
        if told:
            for verdict in news(before, findings.verdicts):
                self._parts.events.post(
                    subject.ref, Severity.WARNING, verdict.reason, verdict.message
                )
        return told

    async def _wait_for_elders(self, subject: Subject) -> None:
        """Until it was tried for every older object to find out which etcd it is about."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4 * self._pace.rpc_timeout):
                for other in self:
                    if other.age < subject.age and not other.deleting:
                        await other.stood.wait()

    def _elder(self, subject: Subject) -> str:
        """The oldest object for the same etcd that is older than this one, "" for none."""
        cluster_id = subject.standing.cluster_id
        if cluster_id is None:
            return ""
        same = [o for o in self if o.standing.cluster_id == cluster_id and not o.deleting]
        oldest = min([*same, subject], key=lambda other: other.age)
        return "" if oldest is subject else str(oldest.ref)
