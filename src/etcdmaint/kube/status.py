"""The status of an EtcdDefrag and the record of a run: two forms of one thing, turned into each other.

Pure: objects in, objects out. What the older public CRD prunes is read as if it had never been there,
so a run is resumed from the fields that both have. This module must not know how a status is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from etcdmaint.api.conditions import find_condition
from etcdmaint.api.defrag import EtcdDefragStatus, defrag_status
from etcdmaint.api.defrag import MemberRow as StatusRow
from etcdmaint.api.vocabulary import DefragCondition, Outcome, Phase
from etcdmaint.defrag.run import MemberRow, RunState
from etcdmaint.kube.client import Json
from etcdmaint.kube.verdict import Verdict, with_verdicts
from etcdmaint.quantities import format_bytes


def phase_of(obj: Mapping[str, Any]) -> Phase:
    """The phase of an EtcdDefrag; NEW where it has none yet."""
    return defrag_status(obj).phase or Phase.NEW


def read_state(obj: Mapping[str, Any], member_ids: Mapping[str, int] | None = None) -> RunState:
    """What an earlier process has recorded; never raises.

    `member_ids` gives the ID of a member by name where the status does not: the older CRD has no field
    for it. A name that it lacks gets an ID that no member has, which is what became of that member.
    """
    status = defrag_status(obj)
    phase = status.phase or Phase.NEW
    wanted = DefragCondition(phase.value) if phase.terminal else DefragCondition.PROGRESSING
    condition = find_condition(status.conditions, wanted) or {}
    message, *notes = str(condition.get("message") or "").split("\n")
    return RunState(
        phase=phase,
        reason=str(condition.get("reason") or ""),
        message=message,
        notes=tuple(notes),
        rows=tuple(
            _read_row(row, (member_ids or {}).get(row.name, index))
            for index, row in enumerate(status.members, start=1)
        ),
        started_at=status.started_at,
        completed_at=status.completed_at,
    )


def member_at_stake(obj: Mapping[str, Any]) -> bool:
    """Whether a member may be defragmenting because of this run, which is not over; never raises."""
    state = read_state(obj)
    return not state.phase.terminal and any(row.in_doubt for row in state.rows)


def rows_lack_ids(obj: Mapping[str, Any]) -> bool:
    """Whether a member's row has no ID: written through the older CRD."""
    return any(row.member_id is None for row in defrag_status(obj).members)


def write_state(obj: Mapping[str, Any], state: RunState, now: datetime) -> Json:
    """The status that records this state on top of the object as it is."""
    before = defrag_status(obj)
    return EtcdDefragStatus(
        phase=state.phase or None,
        started_at=state.started_at or before.started_at,
        completed_at=state.completed_at,
        defragmented=state.defragmented if state.rows else None,
        reclaimed_bytes=state.reclaimed_bytes if state.rows else None,
        reclaimed=format_bytes(state.reclaimed_bytes) if state.rows else None,
        members=tuple(_write_row(row) for row in state.rows),
        conditions=tuple(with_verdicts(before.conditions, _verdicts(state), obj, now)),
    ).to_wire()


def _verdicts(state: RunState) -> dict[DefragCondition, Verdict]:
    reason = state.reason or state.phase.value or "Accepted"
    over = state.phase.terminal
    # A sentence of its own line each, so that a successor reads the notes back. The end says them all.
    message = state.message if over else "\n".join((_line(state.message), *map(_line, state.notes)))
    said = {DefragCondition.PROGRESSING: Verdict(state.phase is Phase.RUNNING, reason, message)}
    if over:
        said[DefragCondition(state.phase.value)] = Verdict(True, reason, message)
    return said


def _line(sentence: str) -> str:
    return " ".join(sentence.split())


def _read_row(row: StatusRow, fallback_id: int) -> MemberRow:
    return MemberRow(
        name=row.name,
        member_id=fallback_id if row.member_id is None else row.member_id,
        role=row.role,
        outcome=row.outcome or Outcome.PENDING,
        reason=row.reason or "",
        message=row.message or "",
        db_size_before=row.db_size_before,
        db_size_in_use_before=row.db_size_in_use_before,
        quota_bytes=row.quota_bytes,
        db_size_after=row.db_size_after,
        reclaimed_bytes=row.reclaimed_bytes,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _write_row(row: MemberRow) -> StatusRow:
    return StatusRow(
        name=row.name,
        member_id=row.member_id,
        role=row.role,
        outcome=row.outcome,
        reason=row.reason or None,
        message=row.message or None,
        db_size_before=row.db_size_before,
        db_size_in_use_before=row.db_size_in_use_before,
        quota_bytes=row.quota_bytes,
        db_size_after=row.db_size_after,
        reclaimed_bytes=row.reclaimed_bytes,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )
