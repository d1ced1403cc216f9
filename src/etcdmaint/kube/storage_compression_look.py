"""One look at one StorageCompressionConfiguration: whose etcd it is about, and the file in its place.

Everything is read afresh but for the proof of identity, which is kept for some minutes. What may be
written and what is said is decided elsewhere (`storage_compression_verdicts`); when to look, and at
which objects, as well (`storage_compression`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from etcdmaint.api.compression import AuditStatus, StorageCompressionStatus, compression_status
from etcdmaint.api.defrag import ClusterRef
from etcdmaint.api.metadata import generation_of
from etcdmaint.defrag.run import Severity
from etcdmaint.errors import EtcdmaintError
from etcdmaint.kube.client import Forbidden, NotFound, Rejected, Unavailable
from etcdmaint.kube.resources import ObjectRef
from etcdmaint.kube.storage_compression_file import PolicyFile, Reading, read_configuration
from etcdmaint.kube.storage_compression_gate import NOT_THIS_CLUSTER, ServerVersion, read_version
from etcdmaint.kube.storage_compression_identity import Standing, look_at
from etcdmaint.kube.storage_compression_publishing import (
    Publication,
    config_map_name,
    find,
    publish,
)
from etcdmaint.kube.storage_compression_subject import CompressionParts, Subject
from etcdmaint.kube.storage_compression_verdicts import Findings, Situation, refusal, verdicts
from etcdmaint.kube.verdict import Verdict

_NO_REF = Standing(doubt="spec.clusterRef is left out")
_CHANGED = "what clusterRef names has changed, and has not been looked at since"


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at subjects. Every method raises KubeError while the Kubernetes API is away."""

    parts: CompressionParts

    async def stand(self, subject: Subject) -> Reading:
        """Read the object, and find out which etcd it is about."""
        obj, reading = subject.obj, subject.reading
        generation = generation_of(obj)
        if reading is None or subject.generation != generation:
            # A megabyte of policy takes seconds.
            reading = subject.reading = await asyncio.to_thread(read_configuration, obj)
            subject.generation = generation
        ref = reading.config.spec.cluster_ref if reading.config is not None else None
        if ref != subject.cluster_ref:
            if subject.cluster_ref is not None:
                subject.standing = Standing()
            subject.cluster_ref, subject.target, subject.failure = ref, None, None
        if ref is None:
            subject.standing = _NO_REF
            return reading
        try:
            await self._find_out(subject, ref)
        except Unavailable:
            raise
        except EtcdmaintError as error:
            # It is about this object and its cluster, and is told.
            subject.standing = replace(subject.standing, fault=error)
        return reading

    async def _find_out(self, subject: Subject, ref: ClusterRef) -> None:
        now = self.parts.clock.monotonic()
        target = await self.parts.clusters.find(subject.ref.namespace, ref)
        fresh = now - subject.stood_at < self.parts.pace.identity and subject.standing.fault is None
        if target == subject.target and fresh:
            return
        if subject.target is not None and target != subject.target:
            # It may be another etcd now: what was proven of the former one is not for it.
            subject.standing = replace(subject.standing, doubt=_CHANGED)
            subject.target = subject.failure = None
        before = subject.standing.cluster_id
        subject.standing = await look_at(self.parts, target, timeout=self.parts.pace.rpc_timeout)
        if subject.standing.cluster_id != before:
            subject.failure = None
        subject.target, subject.stood_at = target, now

    async def settle(self, subject: Subject, reading: Reading, elder: str) -> Findings:
        """Put the file in its place where it may be; `elder` names the older object for that etcd."""
        server, doubt = await self._server(subject.standing)
        situation = Situation(
            reading=reading,
            standing=subject.standing,
            server=server,
            doubt=doubt,
            elder=elder,
            published=compression_status(subject.obj).hash or "",
            audit=_audit_of(subject),
            failure=subject.failure,
        )
        published, hash_ = await self._publish(subject.ref, situation)
        status = StorageCompressionStatus(
            cluster_id=subject.standing.cluster_id,
            config_map=config_map_name(subject.ref) if hash_ else None,
            hash=hash_,
            api_server=situation.api_server,
            last_audit=situation.audit,
        )
        return Findings(verdicts(situation, published), status)

    async def _server(self, standing: Standing) -> tuple[ServerVersion | None, Verdict]:
        """The version that counts; beside it why there is none."""
        if not standing.own:
            if standing.fault is not None:
                return None, Verdict(None, standing.fault.reason, str(standing.fault))
            return None, Verdict(None, NOT_THIS_CLUSTER, standing.doubt)
        try:
            found = read_version(await self.parts.api.server_version())
        except (Forbidden, NotFound, Rejected) as error:
            return None, Verdict(None, error.reason, str(error))
        return found, Verdict(None, "VersionUnknown", "the API server does not tell its version")

    async def _publish(self, ref: ObjectRef, situation: Situation) -> tuple[Verdict, str | None]:
        """What to say, and the hash of the file that was written last."""
        file, name = situation.reading.file, config_map_name(ref)
        refused = refusal(situation)
        try:
            found = await find(self.parts.api, ref)
            if refused is not None or file is None:
                assert refused is not None
                if not found.owned:
                    return refused, None
                message = f"{refused.message}. ConfigMap {name} keeps the file that it has"
                return replace(refused, message=message), situation.published or found.hash
            result = await publish(
                self.parts.api, self.parts.fence, ref, file, found, situation.published
            )
        except (Forbidden, Rejected) as error:
            self.parts.instrumentation.published("failed")
            return Verdict(False, error.reason, str(error)), situation.published or None
        if result is Publication.NAME_TAKEN:
            message = (
                f"there is a ConfigMap {name} that this object does not own: it is not touched"
            )
            return Verdict(False, "NameTaken", message), None
        if result is not Publication.UNCHANGED:
            self.parts.instrumentation.published(result.value)
            self._announce(ref, result, file)
        message = f"ConfigMap {name} has the file"
        if situation.server is not None and (file.reader or file.fields):
            message += (
                f"; the API server that answered is {situation.server}, and behind a load balancer "
                "other replicas may differ"
            )
        return Verdict(True, "Published", message), file.hash

    def _announce(self, ref: ObjectRef, result: Publication, file: PolicyFile) -> None:
        name = config_map_name(ref)
        if result is Publication.RESTORED:
            message = f"ConfigMap {name} was changed or deleted by somebody else; it is as it was"
            self.parts.events.post(ref, Severity.WARNING, "ConfigMapRestored", message)
        else:
            message = f"ConfigMap {name} has {file.hash}"
            self.parts.events.post(ref, Severity.NORMAL, "Published", message)


def _audit_of(subject: Subject) -> AuditStatus | None:
    """The last audit, as long as it may be of the etcd that the object is about."""
    audit, cluster_id = subject.audit, subject.standing.cluster_id
    if audit is None or subject.cluster_ref is None:
        return None
    return audit if cluster_id is None or audit.cluster_id == cluster_id else None
