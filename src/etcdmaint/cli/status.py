"""`etcdmaint status`: every member at a glance, quickly, also when one of them hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.flags import output_flag
from etcdmaint.cli.interruption import run
from etcdmaint.errors import AuthenticationRequired, EtcdError, PermissionDenied
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.cli.report import ClusterReport, MemberReport
    from etcdmaint.defrag.lock import SlotValue
    from etcdmaint.etcd.cluster import ClusterClient

UNKNOWN = "?"

REFUSALS = (PermissionDenied, AuthenticationRequired)
"""What etcd says only once it has read."""

METRICS_SECONDS = 2.0
"""A member's /metrics answer in milliseconds, if at all: a host that is gone is not waited for longer."""

COLUMNS = (
    "MEMBER",
    "ID",
    "ENDPOINT",
    "VERSION",
    "ROLE",
    "DB SIZE",
    "IN USE",
    "RECLAIMABLE",
    "QUOTA",
    "TERM",
    "LAG",
    "ALARMS",
    "DEFRAG",
)
NUMBERS = frozenset({"DB SIZE", "IN USE", "RECLAIMABLE", "TERM", "LAG"})


@click.command("status")
@with_connection
@output_flag(output.TABLE, output.JSON, output.YAML)
def status(connection: Connection, style: str) -> int:
    """Show every member, and who holds the cluster.

    Of each member: sizes, what a defragmentation would give back, quota and who says so, role,
    raft term and lag, alarms, and whether it is being defragmented right now.

    Exits 1 when a member gave no figures; the others are shown all the same.
    """
    report = run(survey(connection))
    if style == output.TABLE:
        show(report)
    else:
        from etcdmaint.cli.report import as_document

        output.print_document(as_document(report), style)
    for member in report.members:
        if member.trouble:
            output.print_note(f"etcdmaint: {member.trouble}")
    return ExitCode.DONE if report.complete else ExitCode.FAILED


async def survey(connection: Connection) -> ClusterReport:
    """Ask all members at once; each question takes at most --command-timeout."""
    from etcdmaint.cli.report import build_report
    from etcdmaint.defrag.health import Observation

    cluster = await connection.open()
    timeout = connection.command_timeout
    try:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(cluster.statuses(timeout))
            scrapes = {
                member.id: group.create_task(
                    cluster.metrics(member.id, timeout=min(timeout, METRICS_SECONDS))
                )
                for member in cluster.members
            }
            read = group.create_task(_read_slot(cluster, timeout))
        slot, slot_error = read.result()
        return build_report(
            cluster_id=cluster.cluster_id,
            observation=Observation(
                members=cluster.members,
                statuses=asked.result(),
                metrics={member_id: scrape.result() for member_id, scrape in scrapes.items()},
            ),
            endpoints={member.id: _endpoint(cluster, member.id) for member in cluster.members},
            slot=slot,
            slot_error=slot_error,
            # A refusal for lack of rights is an answer too (H2).
            read_error=None if isinstance(slot_error, REFUSALS) else slot_error,
        )
    finally:
        await cluster.close()


async def _read_slot(
    cluster: ClusterClient, timeout: float
) -> tuple[SlotValue | None, EtcdError | None]:
    """The slot, from whichever member answers first: one that hangs must not hide it."""
    from etcdmaint.defrag.lock import read_slot

    async def read(member_id: int) -> SlotValue | EtcdError | None:
        try:
            held = await read_slot(cluster.client(member_id), timeout=timeout)
        except EtcdError as error:
            return error
        return held.value if held else None

    failure: EtcdError | None = None
    async with asyncio.TaskGroup() as group:
        voters = [member.id for member in cluster.members if not member.is_learner]
        tasks = [group.create_task(read(voter)) for voter in voters]
        for earliest in asyncio.as_completed(tasks):
            found = await earliest
            if isinstance(found, EtcdError):
                failure = found
            if not isinstance(found, EtcdError) or isinstance(found, REFUSALS):
                for task in tasks:
                    task.cancel()
                return (None, found) if isinstance(found, EtcdError) else (found, None)
    return None, failure


def _endpoint(cluster: ClusterClient, member_id: int) -> str:
    try:
        return cluster.endpoint(member_id).url
    except EtcdError:
        return ""


def show(report: ClusterReport) -> None:
    """Write the report for people."""
    output.print_table(COLUMNS, [_row(member) for member in report.members], numbers=NUMBERS)
    output.print_line("")
    for kind in report.cluster_alarms:
        output.print_line(f"Alarm {kind} is armed for the cluster.")
    output.print_line(_slot_line(report))
    if report.read_error is not None:
        output.print_line(f"No linearizable read is answered: {report.read_error}")


def _row(member: MemberReport) -> list[str]:
    from etcdmaint.etcd.types import format_id

    status, free = member.status, member.reclaimable
    alarms = ",".join(member.alarms) or ("-" if status else UNKNOWN)
    return [
        member.name,
        format_id(member.member_id),
        member.endpoint or UNKNOWN,
        status.version if status else UNKNOWN,
        member.role or UNKNOWN,
        format_bytes(status.db_size) if status else UNKNOWN,
        format_bytes(status.db_size_in_use) if status else UNKNOWN,
        UNKNOWN if free is None else f"{format_bytes(free)} ({member.reclaimable_percent:.0f}%)",
        _quota(member),
        str(status.raft_term) if status else UNKNOWN,
        UNKNOWN if member.lag is None else str(member.lag),
        alarms,
        {True: "running", False: "-", None: UNKNOWN}[member.defragmenting],
    ]


def _quota(member: MemberReport) -> str:

    if member.quota is None:
        return UNKNOWN
    size = "none" if member.quota.size is None else format_bytes(member.quota.size)
    return f"{size} ({member.quota.source})"


def _slot_line(report: ClusterReport) -> str:
    from datetime import UTC, datetime

    from etcdmaint.defrag.lock import age
    from etcdmaint.defrag.process import shown

    if report.slot_error is not None:
        return f"Whether somebody holds this cluster is not known: {report.slot_error}"
    slot = report.slot
    if slot is None:
        return "Nobody holds this cluster."
    run = f" for {slot.run}" if slot.run else ""
    busy = f", at {report.name(slot.member)}" if slot.member is not None else ""
    return f"Held by {shown(slot.holder)}{run}{age(slot.since, datetime.now(UTC))}{busy}."
