"""The result of a run at the terminal: table or JSON, a last sentence, an exit code."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from etcdmaint.cli import output
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.progress import took_of
from etcdmaint.defrag.run import Ending, MemberRow, Outcome, Phase, RunResult, RunState
from etcdmaint.etcd.types import format_id
from etcdmaint.quantities import format_bytes

CODES = {
    Ending.DONE: ExitCode.DONE,
    Ending.FAILED: ExitCode.FAILED,
    Ending.DEFERRED: ExitCode.DEFERRED,
    Ending.UNSAFE: ExitCode.UNSAFE,
    Ending.HELD: ExitCode.HELD,
    Ending.ALARM_LEFT: ExitCode.ALARM_LEFT,
    Ending.STOPPED: ExitCode.INTERRUPTED,
}

ADVICE = {
    Ending.DEFERRED: "--wait DURATION waits for the cluster",
    Ending.UNSAFE: "upgrade etcd first; --allow-unsafe-version VERSION overrides this",
    Ending.HELD: "wait for them with --wait DURATION; --break-lock takes it if they are gone for good",
    Ending.STOPPED: "members not done yet are as they were",
}

COLUMNS = ("MEMBER", "ROLE", "OUTCOME", "BEFORE", "AFTER", "RECLAIMED", "TOOK", "WHY")
NUMBERS = frozenset({"BEFORE", "AFTER", "RECLAIMED", "TOOK"})


def exit_code(result: RunResult) -> ExitCode:
    """What the process gives back."""
    return CODES[result.ending]


def verdict(result: RunResult) -> str:
    """The last sentence: why it did not simply work. Empty when it did."""
    if result.ending is Ending.DONE:
        return ""
    state = result.state
    text = state.message or state.reason or result.ending.value
    if result.ending is Ending.STOPPED:
        text = "stopped as asked"
    elif result.ending is Ending.ALARM_LEFT:
        text = "; ".join(state.notes) or text
    advice = ADVICE.get(result.ending)
    return f"{text.rstrip('.')}; {advice}" if advice else text


def show(result: RunResult, style: str) -> None:
    """Write the result to standard output."""
    if style == output.JSON:
        output.print_document(as_document(result), style)
        return
    state = result.state
    if state.rows:
        output.print_table(COLUMNS, [_cells(row) for row in _sorted(state)], numbers=NUMBERS)
        output.print_line("")
    if state.phase is Phase.COMPLETE:
        output.print_line(state.message)
    elif state.rows:
        output.print_line(
            f"{state.defragmented} of {len(state.rows)} members defragmented, "
            f"{format_bytes(state.reclaimed_bytes)} reclaimed"
        )


def as_document(result: RunResult) -> dict[str, Any]:
    """For -o json: the words of an EtcdDefrag's status, sizes in bytes, null for the unknown."""
    state = result.state
    return {
        "ending": result.ending.value,
        "exitCode": int(exit_code(result)),
        "phase": state.phase.value or None,
        "reason": state.reason,
        "message": state.message,
        "defragmented": state.defragmented,
        "reclaimedBytes": state.reclaimed_bytes,
        "startedAt": _time(state.started_at),
        "completedAt": _time(state.completed_at),
        "notes": list(state.notes),
        "members": [
            {
                "name": row.name,
                "memberID": format_id(row.member_id),
                "role": row.role,
                "outcome": row.outcome.value,
                "reason": row.reason,
                "message": row.message,
                "dbSizeBefore": row.db_size_before,
                "dbSizeInUseBefore": row.db_size_in_use_before,
                "quotaBytes": row.quota_bytes,
                "dbSizeAfter": row.db_size_after,
                "reclaimedBytes": row.reclaimed_bytes,
                "startedAt": _time(row.started_at),
                "finishedAt": _time(row.finished_at),
            }
            for row in _sorted(state)
        ],
    }


def _sorted(state: RunState) -> list[MemberRow]:
    return sorted(state.rows, key=lambda row: row.name)


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _cells(row: MemberRow) -> list[str]:
    return [
        row.name,
        str(row.role or ""),
        row.outcome.value,
        _size(row.db_size_before),
        _size(row.db_size_after),
        _size(row.reclaimed_bytes),
        "" if row.outcome is Outcome.SKIPPED else took_of(row),
        f"{row.reason}: {row.message}" if row.reason and row.message else row.message or row.reason,
    ]


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)
