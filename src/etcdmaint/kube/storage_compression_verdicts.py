"""What is to be said of a StorageCompressionConfiguration, and whether its file may be written.

Pure: everything that was found out comes in, verdicts come out. Where something could not be found out,
the verdict says so and nothing is written; what was written before stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from etcdmaint.api.compression import (
    ApiServerStatus,
    AuditStatus,
    StorageCompressionStatus,
    compression_status,
)
from etcdmaint.api.conditions import condition_is, find_condition
from etcdmaint.api.fields import format_time
from etcdmaint.api.metadata import generation_of
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.errors import EtcdmaintError
from etcdmaint.kube.client import Json
from etcdmaint.kube.storage_compression_counts import damage
from etcdmaint.kube.storage_compression_file import SECRETS_SELECTED, Reading
from etcdmaint.kube.storage_compression_gate import ServerVersion, dotted, may_publish, supported
from etcdmaint.kube.storage_compression_identity import Standing
from etcdmaint.kube.verdict import Verdict, merge_patch, with_verdicts

NOT_IN_FORCE: Final = Verdict(
    None,
    "NotInForce",
    "no API server is known to have loaded this file, so nothing has to converge",
)

_BAD_NEWS = (
    (CompressionCondition.VALID, False),
    (CompressionCondition.PUBLISHED, False),
    (CompressionCondition.AUDITED, False),
    (CompressionCondition.DAMAGED, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that was found out about one object.

    `server` is what the API server says of itself, None where it is not proven to be the one in front of
    that etcd, or did not tell; `doubt` is why. `elder` names the older object for the same etcd, ""
    for none. `published` is the hash that we wrote last, `failure` what stopped the last audit.
    """

    reading: Reading
    standing: Standing
    server: ServerVersion | None
    doubt: Verdict
    elder: str
    published: str
    audit: AuditStatus | None
    failure: EtcdmaintError | None

    @property
    def api_server(self) -> ApiServerStatus | None:
        """The version for the status."""
        server = self.server
        if server is None:
            return None
        return ApiServerStatus(
            version=server.name,
            emulation=dotted(server.emulation) if server.emulation else None,
            min_compatibility=dotted(server.oldest) if server.oldest else None,
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that there is to say: the verdicts become the conditions of the status."""

    verdicts: Mapping[CompressionCondition, Verdict]
    status: StorageCompressionStatus


def write_findings(obj: Mapping[str, Any], findings: Findings, now: datetime) -> Json | None:
    """The merge patch of the status that says this, None where nothing would change."""
    before = compression_status(obj).conditions
    changes = {
        "observed_generation": generation_of(obj),
        "conditions": tuple(with_verdicts(before, findings.verdicts, obj, now)),
    }
    status = findings.status.model_copy(update=changes)
    return merge_patch(obj.get("status"), status.to_wire()) or None


def refusal(situation: Situation) -> Verdict | None:
    """Why the file is not written, None where it is: R116 to R119, R127."""
    file, standing = situation.reading.file, situation.standing
    if file is None:
        return Verdict(False, "InvalidSpec", "the policy is not valid")
    if situation.elder:
        return Verdict(
            False,
            "Conflict",
            f"{situation.elder} is for the same etcd cluster and older: all API servers in front of one "
            "etcd need one file",
        )
    fault = standing.fault
    if fault is None:
        return may_publish(file, situation.server, situation.doubt)
    if standing.cluster_id is None:
        return Verdict(None, fault.reason, f"it is not known which etcd this is for: {fault}")
    if situation.published == file.hash:
        # It was right to write it, and nothing is known that has changed.
        return None
    # What was proven before says nothing of what clusterRef leads to now.
    return may_publish(file, None, Verdict(None, fault.reason, str(fault)))


def verdicts(situation: Situation, published: Verdict) -> Mapping[CompressionCondition, Verdict]:
    """The conditions."""
    return {
        CompressionCondition.VALID: situation.reading.valid,
        CompressionCondition.PUBLISHED: published,
        CompressionCondition.SUPPORTED: supported(situation.server, situation.doubt),
        CompressionCondition.AUDITED: _audited(situation),
        CompressionCondition.CONVERGED: NOT_IN_FORCE,
        CompressionCondition.DAMAGED: damage(situation.audit),
    }


def news(before: Sequence[Any], said: Mapping[CompressionCondition, Verdict]) -> list[Verdict]:
    """What is worth a warning and does not stand in the conditions yet."""
    return [
        verdict
        for condition, verdict in said.items()
        if ((condition, verdict.status) in _BAD_NEWS or verdict.reason == SECRETS_SELECTED)
        and not _is_said(before, condition, verdict)
    ]


def _audited(situation: Situation) -> Verdict:
    config, audit, standing = situation.reading.config, situation.audit, situation.standing
    if config is None or config.spec.cluster_ref is None:
        return Verdict(None, "NoClusterRef", "spec.clusterRef is left out: nothing is counted")
    kept = ""
    if audit is not None and audit.completed_at is not None:
        kept = f"; the count of {format_time(audit.completed_at)} is kept"
    off = not config.spec.audit.interval
    failure = standing.fault or (None if off else situation.failure)
    if failure is not None:
        return Verdict(False, failure.reason, f"{failure}{kept}")
    if off:
        return Verdict(None, "AuditOff", f"spec.audit.interval is 0{kept}")
    if audit is None:
        return Verdict(None, "AuditPending", "nothing has been counted yet")
    unproven = f". Whose etcd it is, is not proven: {standing.doubt}" if standing.doubt else ""
    values = audit.values or 0
    if audit.consistent:
        message = f"{values} values at revision {audit.last_revision}{unproven}"
        return Verdict(True, "Consistent", message)
    message = (
        f"{values} values, read at revisions {audit.first_revision} to {audit.last_revision}, since "
        f"older ones were compacted away meanwhile: the counts are not exact{unproven}"
    )
    return Verdict(True, "SeveralRevisions", message)


def _is_said(before: Sequence[Any], condition: CompressionCondition, verdict: Verdict) -> bool:
    old = find_condition(before, condition) or {}
    same = verdict.status is not None and condition_is(before, condition, verdict.status)
    return same and old.get("reason") == verdict.reason
