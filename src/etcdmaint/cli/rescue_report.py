"""What `etcdmaint rescue` says before and after: the members, the plan, and what filled the database."""

from __future__ import annotations

from etcdmaint.cli import output
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.outcome import CODES, show
from etcdmaint.defrag.rescue import Findings, Rescued
from etcdmaint.defrag.run import Ending
from etcdmaint.quantities import format_bytes, format_duration


def refuse(findings: Findings) -> int:
    """Say why it does not begin; the exit code."""
    gone = "; --break-lock takes it if they are gone for good"
    advice = gone if findings.ending is Ending.HELD else ""
    # A sweep that was refused says so itself.
    why = findings.refusal.removesuffix("nothing was touched").rstrip(". ")
    output.print_note(f"etcdmaint: not now: {why}; nothing was touched{advice}")
    return CODES[findings.ending]


def show_plan(findings: Findings, keep: float) -> None:
    """Show what was seen and what would be done; `keep` in seconds."""
    if not findings.full:
        output.print_line(
            f"NOSPACE is not armed. But history is cut at revision {findings.compacted}, and "
            "compact_rev_key says less, as after a rescue that was cut short: the other compactors "
            "will be told by it."
        )
        return
    output.print_line(f"NOSPACE is armed for {', '.join(findings.full)}: etcd takes no writes.")
    output.print_line("")
    output.print_table(
        ("MEMBER", "ROLE", "DB SIZE", "IN USE", "QUOTA", "FIRST"),
        [
            (
                row.name,
                str(row.role or ""),
                format_bytes(row.db_size_before or 0),
                format_bytes(row.db_size_in_use_before or 0),
                "none" if row.quota_bytes is None else format_bytes(row.quota_bytes),
                f"defragment: {row.message}" if row.reason == "WouldDefragment" else row.message,
            )
            for row in sorted(findings.rows, key=lambda row: row.name)
        ],
        numbers=frozenset({"DB SIZE", "IN USE", "QUOTA"}),
    )
    output.print_line("")
    if findings.holder:
        output.print_line(f"The lock of {findings.holder} will be broken.")
        output.print_line("")
    kept = findings.head - findings.compacted
    when = f"after {format_duration(keep)}" if keep else "at once"
    history = (
        f"drop history ({kept} revisions, up to the newest) {when}: whoever watches from an older "
        "revision must list again"
        if kept
        else "drop no history, there is none"
    )
    output.print_line("What will be done, one member at a time, each step only if still needed:")
    output.print_line("1. defragment the members above that have enough to give back")
    output.print_line(f"2. {history}")
    output.print_line(
        "3. defragment every member, and disarm NOSPACE once all are below 90 % of their quota"
    )
    output.print_line("4. tell the other compactors by compact_rev_key")


def report(rescued: Rescued) -> int:
    """Say how it went and what to do next; the exit code."""
    # A sweep that found nothing to do is only worth a table when it was the last.
    for result in rescued.sweeps:
        if not result.state.defragmented and result is not rescued.sweeps[-1]:
            continue
        show(result, output.TABLE)
        output.print_line("")
    if rescued.compacted:
        output.print_line(f"History was dropped up to revision {rescued.compacted}.")
    if rescued.ending is not Ending.DONE:
        output.print_note(f"etcdmaint: {rescued.message.rstrip('.')}; {_advice(rescued.ending)}")
        return CODES[rescued.ending]
    output.print_line(f"{rescued.message}.")
    if not rescued.prefixes:
        return ExitCode.DONE
    output.print_line("")
    output.print_line("What fills the database now, and how often it was written:")
    output.print_table(
        ("PREFIX", "KEYS", "BYTES", "WRITES"),
        [
            (prefix.name, str(prefix.keys), format_bytes(prefix.size), str(prefix.writes))
            for prefix in rescued.prefixes
        ],
        numbers=frozenset({"KEYS", "BYTES", "WRITES"}),
    )
    output.print_line("")
    output.print_line(
        "Next: find who writes the most of these. Where history filled it, see that compaction works "
        "(`etcdmaint compact status`); where live data does, delete some or raise --quota-backend-bytes."
    )
    return ExitCode.DONE


def _advice(ending: Ending) -> str:
    if ending is Ending.ALARM_LEFT:
        return (
            "live data fills the quota: delete what is not needed (deletes work under NOSPACE) or raise "
            "--quota-backend-bytes, then run this again"
        )
    return "what was done stands; run this again to go on"
