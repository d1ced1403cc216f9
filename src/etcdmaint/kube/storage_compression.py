"""Looks after every StorageCompressionConfiguration for as long as it exists.

A look at each object every half minute, and when it changes; audits beside the looks. No finalizer is
ever put on an object, so its end is only heard of. What a look does is `storage_compression_look`'s, when
to audit `storage_compression_auditing`'s, what is said of it `storage_compression_telling`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from etcdmaint.api.compression import StorageCompressionStatus, compression_status
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.clock import Clock
from etcdmaint.defrag.run import Fence
from etcdmaint.errors import EtcdmaintError
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.kube.client import Conflict, Json, KubeApi, Unavailable
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.resources import COMPRESSIONS, ObjectRef
from etcdmaint.kube.storage_compression_auditing import Auditor
from etcdmaint.kube.storage_compression_identity import Standing
from etcdmaint.kube.storage_compression_look import (
    CompressionPace,
    Instrumentation,
    Looks,
)
from etcdmaint.kube.storage_compression_subject import Subject, generation_of
from etcdmaint.kube.storage_compression_telling import Teller

log = logging.getLogger(__name__)


class CompressionMonitor:
    """Knows all objects, and looks after each in tasks of its own while `run` runs.

    It begins when `replace` has once said which there are: of two for one etcd the older publishes, and
    that must not depend on which is heard of first.
    """

    def __init__(
        self,
        api: KubeApi,
        clusters: Clusters,
        events: EventSink,
        fence: Fence,
        clock: Clock,
        *,
        instrumentation: Instrumentation,
        observer: RpcObserver | None = None,
        pace: CompressionPace | None = None,
        at_once: int = 8,
    ) -> None:
        self._pace = pace or CompressionPace()
        self._looks = Looks(
            api,
            clusters,
            events,
            fence,
            clock,
            instrumentation=instrumentation,
            observer=observer,
            pace=self._pace,
        )
        self._auditor = Auditor(
            clock, instrumentation=instrumentation, observer=observer, pace=self._pace
        )
        self._teller = Teller(api, events, fence, clock)
        self._turnstile = asyncio.Semaphore(at_once)
        self._subjects: dict[str, Subject] = {}
        self._listed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    def seen(self, obj: Json) -> None:
        """The object exists, as it is."""
        metadata = obj["metadata"]
        uid = metadata["uid"]
        subject = self._subjects.get(uid)
        if subject is not None:
            subject.update(obj)
            if generation_of(subject.obj) != subject.generation:
                subject.changed.set()
            return
        ref = ObjectRef(COMPRESSIONS, metadata["namespace"], metadata["name"], uid)
        subject = self._subjects[uid] = Subject(ref, obj)
        status = compression_status(obj)
        subject.audit = status.last_audit
        if status.observed_generation == metadata.get("generation"):
            subject.standing = Standing(status.cluster_id)
        self._start(subject)

    def gone(self, uid: str) -> None:
        """The object is deleted."""
        subject = self._subjects.pop(uid, None)
        if subject is None:
            return
        for task in subject.tasks:
            task.cancel()
        # Another one for the same etcd may publish now.
        for other in self._subjects.values():
            other.changed.set()

    def replace(self, objects: Iterable[Json]) -> None:
        """These are all that existed a moment ago: where the watch says otherwise, the API is asked."""
        listed = {obj["metadata"]["uid"]: obj for obj in objects}
        watched = set(self._subjects)
        for obj in listed.values():
            self.seen(obj)
        for uid in watched ^ set(listed) if self._listed.is_set() else watched - set(listed):
            subject = self._subjects[uid]
            subject.doubtful = True
            subject.changed.set()
        self._listed.set()

    def connection_changed(self, namespace: str, name: str) -> None:
        """An EtcdConnection of that name came, went or changed."""
        for subject in self._subjects.values():
            ref = subject.cluster_ref
            if subject.ref.namespace == namespace and ref is not None and ref.name == name:
                subject.changed.set()

    def statuses(self) -> list[tuple[ObjectRef, StorageCompressionStatus]]:
        """Every object and its status."""
        return [(each.ref, compression_status(each.obj)) for each in self._subjects.values()]

    async def run(self) -> None:
        """For ever: what goes wrong with one object stays with it."""
        await self._listed.wait()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for subject in self._subjects.values():
                    self._start(subject)
                await asyncio.Event().wait()
        finally:
            self._group = None

    def _start(self, subject: Subject) -> None:
        if self._group is not None:
            subject.tasks = [
                self._group.create_task(self._watch(subject), name=f"compression {subject.ref}"),
                self._group.create_task(self._auditor.keep(subject), name=f"audits {subject.ref}"),
            ]

    async def _watch(self, subject: Subject) -> None:
        while True:
            subject.changed.clear()
            pause = await self._look(subject)
            subject.looked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await subject.changed.wait()

    async def _look(self, subject: Subject) -> float:
        """Find out, write what is due, say what was found; the seconds until the next look."""
        try:
            async with self._turnstile:
                if subject.doubtful and not await self._looks.exists(subject):
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
                await self._teller.tell(subject, findings)
        except (Conflict, Unavailable) as error:
            log.debug("not now", extra={"object": str(subject.ref), "error": str(error)})
            return self._pace.retry
        except EtcdmaintError as error:
            log.warning("not looked after", extra={"object": str(subject.ref), "error": str(error)})
            return self._pace.retry
        except Exception:
            # The outermost shell of one object: the others go on, and so does this one.
            log.exception("a fault with compression", extra={"object": str(subject.ref)})
            return self._pace.retry
        unsettled = (
            findings.verdicts[CompressionCondition.PUBLISHED].status is None
            or subject.standing.fault
        )
        return self._pace.retry if unsettled else self._pace.interval

    async def _wait_for_elders(self, subject: Subject) -> None:
        """Until it was tried for every older object to find out which etcd it is about."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4 * self._pace.rpc_timeout):
                for other in tuple(self._subjects.values()):
                    if other.age < subject.age and not other.deleting:
                        await other.stood.wait()

    def _elder(self, subject: Subject) -> str:
        """The oldest object for the same etcd that is older than this one, "" for none."""
        cluster_id = subject.standing.cluster_id
        elders = [
            other
            for other in self._subjects.values()
            if cluster_id is not None
            and other.standing.cluster_id == cluster_id
            and other.age < subject.age
            and not other.deleting
        ]
        return str(min(elders, key=lambda other: other.age).ref) if elders else ""
