"""What an object asks of compaction, and what is told of it there.

An EtcdConnection asks by its spec and is told by its status; somebody else's EtcdCluster asks by our
annotation, and nothing is ever written to it. Pure. The status lives in an etcd that is to stay small: a
condition is written when it turns, the figures with it or every ten minutes; exact ones are on /metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from etcdmaint.api.conditions import find_condition
from etcdmaint.api.connection import (
    CompactionStatus,
    EtcdConnectionStatus,
    connection_status,
    parse_connection,
)
from etcdmaint.api.fields import parse_compaction_interval
from etcdmaint.api.metadata import part_of
from etcdmaint.api.names import COMPACTION_INTERVAL_ANNOTATION, PAUSED_ANNOTATION
from etcdmaint.api.vocabulary import ConnectionCondition
from etcdmaint.compaction.knowledge import View
from etcdmaint.errors import EtcdmaintError, PermissionDenied, SpaceExceeded
from etcdmaint.kube.client import Json
from etcdmaint.kube.resources import ETCD_CONNECTIONS, Resource
from etcdmaint.kube.verdict import Verdict, with_verdicts
from etcdmaint.quantities import format_duration

STALLED: Final = "CompactionStalled"

_FIELD = f"metadata.annotations[{COMPACTION_INTERVAL_ANNOTATION}]"


def asks(resource: Resource, obj: Json) -> bool:
    """Whether the object says anything about compaction, be it sensible or not."""
    return _raw(resource, obj) is not None


def read_interval(resource: Resource, obj: Json) -> float:
    """Seconds between two compactions, 0 for none. Raises InvalidInput with the field."""
    if resource is ETCD_CONNECTIONS:
        compaction = parse_connection(obj).spec.compaction
        return compaction.interval if compaction else 0.0
    raw = _raw(resource, obj)
    return 0.0 if raw is None else parse_compaction_interval(raw, _FIELD)


def wish(resource: Resource, obj: Json) -> tuple[object, ...]:
    """What of the object makes a difference here: equal wishes need no second look."""
    metadata = obj["metadata"]
    return (
        _raw(resource, obj),
        part_of(metadata, "annotations").get(PAUSED_ANNOTATION),
        metadata.get("deletionTimestamp"),
        metadata.get("generation") if resource is ETCD_CONNECTIONS else None,
    )


@dataclass(frozen=True, slots=True)
class Account:
    """The condition Compacting to be, and the figures; no figures when there is no compactor."""

    verdict: Verdict
    figures: CompactionStatus | None = None


PAUSED: Final = Account(
    Verdict(False, "Paused", "an annotation stops compaction; other contenders go on")
)
"""The stop button is pressed."""


def account_of(view: View, user: str) -> Account:
    """What a compactor's view amounts to; `user` is etcd's, "" for none."""
    figures = CompactionStatus(
        revision=view.revision or None,
        clock=view.clock or None,
        last_won_at=view.last_won_at,
        last_seen_at=view.last_seen_at,
    )
    return Account(_judge(view, user), figures)


def unheld(error: EtcdmaintError, interval: float, *, stalled: bool) -> Account:
    """There is no compactor, since the cluster could not be reached."""
    if stalled:
        why = f"{_nothing_for(interval)}: {error.reason}: {error}"
        return Account(Verdict(False, STALLED, why))
    return Account(Verdict(False, error.reason, str(error)))


def is_stalled(obj: Mapping[str, Any]) -> bool:
    """Whether the object says already that compaction has stalled."""
    found = _compacting(connection_status(obj))
    return found.get("status") == "False" and found.get("reason") == STALLED


def says_something(obj: Mapping[str, Any]) -> bool:
    """Whether the status tells of compaction at all."""
    status = connection_status(obj)
    return bool(_compacting(status)) or status.compaction is not None


def write_account(
    obj: Mapping[str, Any], account: Account | None, now: datetime, *, stale: bool
) -> Json | None:
    """The part of the status to merge in, None when what stands there is good enough.

    `account` None: nobody asks for compaction any more, and nothing is told of it. `stale`: the figures
    were written long ago.
    """
    before = connection_status(obj)
    if account is None:
        if not says_something(obj):
            return None
        kept = [c for c in before.conditions if c.get("type") != ConnectionCondition.COMPACTING]
        return {"conditions": kept, "compaction": None}
    verdicts = {ConnectionCondition.COMPACTING: account.verdict}
    conditions = with_verdicts(before.conditions, verdicts, obj, now)
    said = EtcdConnectionStatus(compaction=account.figures, conditions=tuple(conditions))
    old, new = _compacting(before), _compacting(said)
    turned = any(old.get(key) != new.get(key) for key in ("status", "reason", "observedGeneration"))
    moved = old != new or account.figures != before.compaction
    if not (turned or (stale and moved)):
        return None
    return {"conditions": conditions, "compaction": said.to_wire().get("compaction")}


def _compacting(status: EtcdConnectionStatus) -> Mapping[str, Any]:
    return find_condition(status.conditions, ConnectionCondition.COMPACTING) or {}


def _raw(resource: Resource, obj: Json) -> str | None:
    if resource is ETCD_CONNECTIONS:
        found = part_of(obj, "spec").get("compaction")
    else:
        found = part_of(obj, "metadata", "annotations").get(COMPACTION_INTERVAL_ANNOTATION)
    return None if found is None else str(found)


def _judge(view: View, user: str) -> Verdict:
    if view.stalled:
        why = _nothing_for(view.interval)
        if view.error is not None:
            why = f"{why}: {view.error.reason}: {_explained(view.error, user)}"
        return Verdict(False, STALLED, why)
    if isinstance(view.error, PermissionDenied):
        return Verdict(False, PermissionDenied.reason, _explained(view.error, user))
    if view.nospace:
        return Verdict(
            True,
            SpaceExceeded.reason,
            "the NOSPACE alarm is armed, so etcd refuses the election: compacts without it, to the "
            "revision of one interval ago",
        )
    if view.advanced_at is None:
        return Verdict(None, "Starting", "the first compaction is two intervals away at most")
    every = f"takes part every {format_duration(view.interval)}"
    if view.won_last is None:
        return Verdict(True, "Compacting", f"{every}; nobody has written the key yet")
    reason = "WonLast" if view.won_last else "OtherWonLast"
    who = "this operator" if view.won_last else "another contender"
    return Verdict(True, reason, f"{every}; {who} won last")


def _explained(error: EtcdmaintError, user: str) -> str:
    if not isinstance(error, PermissionDenied):
        return str(error)
    who = f"the etcd user {user}" if user else "this client"
    return (
        f"{who} may not do it, it needs the role root, or else read and write on the key "
        f"compact_rev_key and the right to compact: {error}"
    )


def _nothing_for(interval: float) -> str:
    return f"nothing was compacted for more than two intervals of {format_duration(interval)}"
