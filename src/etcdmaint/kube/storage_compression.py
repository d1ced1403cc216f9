"""Keeps every StorageCompressionConfiguration's promise: looks at each in turn, and writes what is due.

A look reads the object, finds out whose etcd it is about, puts the file where it belongs and says what
was found; nothing is written where nothing has changed. Audits run beside the looks, one at a time. No
finalizer is ever put on an object, so its end is only heard of. What is said and what may be written is
decided in the pure modules beside this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from etcdmaint.api.compression import AuditStatus, StorageCompressionStatus, compression_status
from etcdmaint.api.conditions import find_condition
from etcdmaint.api.defrag import ClusterRef
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.clock import Clock
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.walk import Timing
from etcdmaint.defrag.run import Fence, Severity, Target
from etcdmaint.errors import EtcdError, EtcdmaintError
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.kube.client import Conflict, Forbidden, Json, KubeApi, KubeError, NotFound, Rejected
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.measurement import Verdict
from etcdmaint.kube.resources import COMPRESSIONS, ObjectRef
from etcdmaint.kube.storage_compression_audit import count_stored
from etcdmaint.kube.storage_compression_file import PolicyFile, Reading, read_configuration
from etcdmaint.kube.storage_compression_gate import NOT_THIS_CLUSTER, ServerVersion, read_version
from etcdmaint.kube.storage_compression_identity import Standing, look_at
from etcdmaint.kube.storage_compression_publishing import (
    Publication,
    config_map_name,
    find,
    publish,
)
from etcdmaint.kube.storage_compression_status import Findings, write_findings
from etcdmaint.kube.storage_compression_verdicts import Situation, refusal, verdicts

log = logging.getLogger(__name__)

_NO_REF = Standing(doubt="spec.clusterRef is left out")
# What becomes of an object is told once: when a condition turns to this.
_ANNOUNCED = (
    (CompressionCondition.VALID, False),
    (CompressionCondition.PUBLISHED, False),
    (CompressionCondition.AUDITED, False),
    (CompressionCondition.DAMAGED, True),
)


class Instrumentation(Protocol):
    """Who counts what becomes of objects."""

    def published(self, result: str) -> None:
        """A ConfigMap was written, or could not be: `created`, `updated`, `restored`, `failed`."""

    def audited(self, result: str, seconds: float) -> None:
        """An audit is over: `consistent`, `inconsistent`, `failed`."""


class Uncounted:
    """Counts nothing."""

    def published(self, result: str) -> None:
        """Ignore it."""

    def audited(self, result: str, seconds: float) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionPace:
    """Seconds. `walk` is the audit's own."""

    interval: float = 30.0
    retry: float = 10.0
    identity: float = 300.0
    audit_retry: float = 300.0
    rpc_timeout: float = 5.0
    walk: Timing | None = None


@dataclass(slots=True, eq=False)
class _Known:
    """One object, and what is kept of it between two looks."""

    ref: ObjectRef
    obj: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    stood: asyncio.Event = field(default_factory=asyncio.Event)
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

    @property
    def deleting(self) -> bool:
        return bool(self.obj["metadata"].get("deletionTimestamp"))

    @property
    def age(self) -> tuple[str, str]:
        """Sorts the older first."""
        return str(self.obj["metadata"].get("creationTimestamp") or ""), self.ref.uid


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
        instrumentation: Instrumentation | None = None,
        observer: RpcObserver | None = None,
        pace: CompressionPace | None = None,
        at_once: int = 8,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._events = events
        self._fence = fence
        self._clock = clock
        self._instrumentation = instrumentation or Uncounted()
        self._observer = observer
        self._pace = pace or CompressionPace()
        self._turnstile = asyncio.Semaphore(at_once)
        # One at a time, so that memory does not grow with the number of objects.
        self._auditing = asyncio.Semaphore(1)
        self._known: dict[str, _Known] = {}
        self._listed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    def seen(self, obj: Json) -> None:
        """The object exists, as it is."""
        metadata = obj["metadata"]
        uid = metadata["uid"]
        known = self._known.get(uid)
        if known is not None:
            known.obj = obj
            if metadata.get("generation") != known.generation:
                known.changed.set()
            return
        ref = ObjectRef(COMPRESSIONS, metadata["namespace"], metadata["name"], uid)
        known = self._known[uid] = _Known(ref, obj)
        status = compression_status(obj)
        known.audit = status.last_audit
        if status.observed_generation == metadata.get("generation"):
            known.standing = Standing(status.cluster_id)
        self._start(known)

    def gone(self, uid: str) -> None:
        """The object is deleted."""
        known = self._known.pop(uid, None)
        if known is None:
            return
        for task in known.tasks:
            task.cancel()
        # Another one for the same etcd may publish now.
        for other in self._known.values():
            other.changed.set()

    def replace(self, objects: Iterable[Json]) -> None:
        """These are all that exist."""
        listed = {obj["metadata"]["uid"]: obj for obj in objects}
        for uid in set(self._known) - set(listed):
            self.gone(uid)
        for obj in listed.values():
            self.seen(obj)
        self._listed.set()

    def connection_changed(self, namespace: str, name: str) -> None:
        """An EtcdConnection of that name came, went or changed."""
        for known in self._known.values():
            ref = known.cluster_ref
            if known.ref.namespace == namespace and ref is not None and ref.name == name:
                known.changed.set()

    def statuses(self) -> list[tuple[ObjectRef, StorageCompressionStatus]]:
        """Every object and its status."""
        return [(known.ref, compression_status(known.obj)) for known in self._known.values()]

    async def run(self) -> None:
        """For ever: what goes wrong with one object stays with it."""
        await self._listed.wait()
        async with asyncio.TaskGroup() as group:
            self._group = group
            for known in self._known.values():
                self._start(known)
            await asyncio.Event().wait()

    def _start(self, known: _Known) -> None:
        if self._group is not None:
            known.tasks = [
                self._group.create_task(self._watch(known), name=f"compression {known.ref}"),
                self._group.create_task(self._audits(known), name=f"audits {known.ref}"),
            ]

    async def _watch(self, known: _Known) -> None:
        while True:
            known.changed.clear()
            pause = await self._look(known)
            known.looked.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await known.changed.wait()

    async def _look(self, known: _Known) -> float:
        """Find out, write what is due, say what was found; the seconds until the next look."""
        if known.deleting:
            return self._pace.interval
        try:
            async with self._turnstile:
                reading = self._read(known)
                try:
                    await self._stand(known, reading)
                finally:
                    known.stood.set()
            await self._wait_for_elders(known)
            async with self._turnstile:
                return await self._settle(known, reading)
        except KubeError as error:
            log.debug("not now", extra={"object": str(known.ref), "error": str(error)})
        except EtcdmaintError as error:
            log.warning("not looked after", extra={"object": str(known.ref), "error": str(error)})
        except Exception:
            # The outermost shell of one object: the others go on, and so does this one.
            log.exception("a fault with compression", extra={"object": str(known.ref)})
        return self._pace.retry

    def _read(self, known: _Known) -> Reading:
        """The object read, anew only when its spec has changed."""
        generation = int(known.obj["metadata"].get("generation") or 0)
        if known.reading is None or known.generation != generation:
            known.reading, known.generation = read_configuration(known.obj), generation
        return known.reading

    async def _stand(self, known: _Known, reading: Reading) -> None:
        """Find out which etcd this is about. Raises KubeError when the Kubernetes API is away."""
        ref = reading.config.spec.cluster_ref if reading.config is not None else None
        if ref != known.cluster_ref:
            if known.cluster_ref is not None:
                known.standing = Standing()
            known.cluster_ref, known.target = ref, None
        if ref is None:
            known.standing = _NO_REF
            return
        now = self._clock.monotonic()
        try:
            target = await self._clusters.find(known.ref.namespace, ref)
            fresh = now - known.stood_at < self._pace.identity and known.standing.fault is None
            if target == known.target and fresh:
                return
            if target != known.target:
                known.target = None
            async with await ClusterClient.connect(
                target.seeds,
                target.access,
                timeout=self._pace.rpc_timeout,
                observer=self._observer,
            ) as cluster:
                keyspace = Keyspace(target.kubernetes_prefix.encode())
                timeout = self._pace.rpc_timeout
                known.standing = await look_at(cluster, self._api, keyspace, timeout=timeout)
            known.target, known.stood_at = target, now
        except (Forbidden, Rejected) as error:
            known.standing = replace(known.standing, fault=error)
        except KubeError:
            raise
        except EtcdmaintError as error:
            known.standing = replace(known.standing, fault=error)

    async def _wait_for_elders(self, known: _Known) -> None:
        """Until every older object has once tried to find out which etcd it is about."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4 * self._pace.rpc_timeout):
                for other in tuple(self._known.values()):
                    if other.age < known.age and not other.deleting:
                        await other.stood.wait()

    def _elder(self, known: _Known) -> str:
        """The oldest other object for the same etcd that is older than this one, "" for none."""
        mine = known.standing.cluster_id
        if mine is None:
            return ""
        elders = [
            other
            for other in self._known.values()
            if other.standing.cluster_id == mine and other.age < known.age and not other.deleting
        ]
        return str(min(elders, key=lambda other: other.age).ref) if elders else ""

    async def _settle(self, known: _Known, reading: Reading) -> float:
        server, doubt = await self._server(known)
        status = compression_status(known.obj)
        audit = known.audit
        if audit is not None and audit.cluster_id != known.standing.cluster_id:
            audit = None
        situation = Situation(
            reading=reading,
            standing=known.standing,
            server=server,
            doubt=doubt,
            elder=self._elder(known),
            published=status.hash or "",
            audit=audit,
            failure=known.failure,
        )
        published, hash_ = await self._publish(known, situation)
        findings = Findings(
            verdicts=verdicts(situation, published),
            cluster_id=known.standing.cluster_id,
            config_map=config_map_name(known.ref) if hash_ else None,
            hash=hash_,
            api_server=situation.api_server,
            last_audit=audit,
        )
        await self._write(known, findings)
        settled = published.status is not None and known.standing.fault is None
        return self._pace.interval if settled else self._pace.retry

    async def _server(self, known: _Known) -> tuple[ServerVersion | None, Verdict]:
        """The version that counts; else why there is none. Raises KubeError."""
        standing = known.standing
        if not standing.own:
            if standing.fault is not None:
                return None, Verdict(None, standing.fault.reason, str(standing.fault))
            return None, Verdict(None, NOT_THIS_CLUSTER, standing.doubt)
        try:
            found = read_version(await self._api.server_version())
        except (Forbidden, Rejected) as error:
            return None, Verdict(None, error.reason, str(error))
        return found, Verdict(None, "VersionUnknown", "the API server tells no version")

    async def _publish(self, known: _Known, situation: Situation) -> tuple[Verdict, str | None]:
        """Write the file where it may be; what to say, and the hash of what was written last."""
        ref, file = known.ref, situation.reading.file
        name = config_map_name(ref)
        refused = refusal(situation)
        try:
            found = await find(self._api, ref)
            if refused is not None or file is None:
                assert refused is not None
                if not found.owned:
                    return refused, None
                message = f"{refused.message}. ConfigMap {name} keeps the file that it has"
                return replace(refused, message=message), situation.published or found.hash
            result = await publish(self._api, self._fence, ref, file, found, situation.published)
        except (Forbidden, Rejected) as error:
            self._instrumentation.published("failed")
            return Verdict(False, error.reason, str(error)), situation.published or None
        if result is Publication.NAME_TAKEN:
            message = (
                f"there is a ConfigMap {name} that is not owned by this object; it is not touched"
            )
            return Verdict(False, "NameTaken", message), None
        self._tell(ref, result, file)
        message = f"ConfigMap {name} has the file"
        if situation.server is not None and (file.reader or file.fields):
            message += (
                f"; the API server that answered is {situation.server}, and behind a load balancer "
                "other replicas may differ"
            )
        return Verdict(True, "Published", message), file.hash

    def _tell(self, ref: ObjectRef, result: Publication, file: PolicyFile) -> None:
        if result is Publication.UNCHANGED:
            return
        self._instrumentation.published(result.value)
        name = config_map_name(ref)
        if result is Publication.RESTORED:
            message = f"ConfigMap {name} was changed or deleted by somebody else: it is as it was"
            self._events.post(ref, Severity.WARNING, "ConfigMapRestored", message)
        else:
            self._events.post(
                ref, Severity.NORMAL, "Published", f"ConfigMap {name} has {file.hash}"
            )

    async def _write(self, known: _Known, findings: Findings) -> None:
        """Write the status where it says something else; compare and swap."""
        if write_findings(known.obj, findings, self._clock.now()) is None:
            return
        ref = known.ref
        try:
            obj = await self._api.get(ref.resource, ref.namespace, ref.name)
            metadata = obj["metadata"]
            if metadata["uid"] != ref.uid or metadata.get("deletionTimestamp"):
                return
            if int(metadata.get("generation") or 0) != known.generation:
                known.changed.set()
                return
            patch = write_findings(obj, findings, self._clock.now())
            if patch is None:
                known.obj = obj
                return
            self._fence.assert_held()
            before = compression_status(obj).conditions
            known.obj = await self._api.patch_status(ref, patch, metadata["resourceVersion"])
            self._announce(ref, before, findings)
        except Conflict:
            # Somebody else was at it: the next look compares with what stands there then.
            self._api.observer.status_conflict()
            known.changed.set()
        except NotFound:
            return

    def _announce(
        self, ref: ObjectRef, before: tuple[dict[str, Any], ...], findings: Findings
    ) -> None:
        for condition, status in _ANNOUNCED:
            verdict = findings.verdicts[condition]
            if verdict.status is status and _is_new(before, condition, verdict):
                self._events.post(ref, Severity.WARNING, verdict.reason, verdict.message)
        valid = findings.verdicts[CompressionCondition.VALID]
        if valid.reason == "SecretsSelected" and _is_new(before, CompressionCondition.VALID, valid):
            self._events.post(ref, Severity.WARNING, valid.reason, valid.message)

    async def _audits(self, known: _Known) -> None:
        while True:
            known.looked.clear()
            wait = self._audit_due(known)
            if wait <= 0:
                async with self._auditing:
                    await self._audit(known)
                known.changed.set()
                wait = math.inf
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else wait):
                    await known.looked.wait()

    def _audit_due(self, known: _Known) -> float:
        """Seconds until the next audit; infinite where something has to change before."""
        config = known.reading.config if known.reading is not None else None
        standing = known.standing
        if config is None or not config.spec.audit.interval or known.deleting:
            return math.inf
        if known.target is None or standing.cluster_id is None or standing.fault is not None:
            return math.inf
        if known.failure is not None:
            return known.failed_at + self._pace.audit_retry - self._clock.monotonic()
        last = known.audit
        if last is None or last.completed_at is None or last.cluster_id != standing.cluster_id:
            return 0.0
        passed = (self._clock.now() - last.completed_at).total_seconds()
        return config.spec.audit.interval - passed

    async def _audit(self, known: _Known) -> None:
        config = known.reading.config if known.reading is not None else None
        target = known.target
        if config is None or target is None:
            return
        begun = self._clock.monotonic()
        result = "failed"
        try:
            known.audit = await count_stored(
                target,
                bytes_per_second=config.spec.audit.bytes_per_second,
                clock=self._clock,
                timeout=2 * self._pace.rpc_timeout,
                observer=self._observer,
                timing=self._pace.walk,
            )
            known.failure = None
            result = "consistent" if known.audit.consistent else "inconsistent"
        except EtcdmaintError as error:
            known.failure, known.failed_at = error, self._clock.monotonic()
        except Exception:
            # The outermost shell of one audit: the next one may do better.
            log.exception("a fault while auditing", extra={"object": str(known.ref)})
            known.failure = EtcdError("the audit failed by a fault of this program")
            known.failed_at = self._clock.monotonic()
        seconds = self._clock.monotonic() - begun
        self._instrumentation.audited(result, seconds)
        log.info(
            "an audit is over",
            extra={
                "object": str(known.ref),
                "result": result,
                "seconds": round(seconds, 1),
                "values": known.audit.values if known.audit is not None else None,
            },
        )


def _is_new(
    before: tuple[dict[str, Any], ...], condition: CompressionCondition, verdict: Verdict
) -> bool:
    """Whether the condition did not say this before."""
    old = find_condition(before, condition) or {}
    wanted = {True: "True", False: "False", None: "Unknown"}[verdict.status]
    return (old.get("status"), old.get("reason")) != (wanted, verdict.reason)
