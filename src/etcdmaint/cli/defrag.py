"""`etcdmaint defrag`: the operator's own sweep, for a person at a terminal and without Kubernetes."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.flags import break_lock, output_flag, volume_size
from etcdmaint.cli.parameters import VERSION, WAIT
from etcdmaint.cli.rule_flags import rule_from, with_rule_flags
from etcdmaint.clock import SystemClock

if TYPE_CHECKING:
    from etcdmaint.defrag.run import RunRequest, RunResult


@click.command("defrag")
@with_connection
@with_rule_flags
@click.option(
    "--all", "all_members", is_flag=True, help="Defragment every member, worth it or not."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done; touches nothing.")
@click.option(
    "--move-leader",
    type=click.Choice(["always", "auto", "never"], case_sensitive=False),
    default="always",
    help="Whether leadership is moved off the leader before its turn: always, auto (if "
    "its turn will take over 2s) or never. Without it etcd leases may be lost, with it some writes "
    "in flight may fail.",
)
@volume_size
@click.option(
    "--wait",
    type=WAIT,
    default="0s",
    help="How long to wait for the cluster to be healthy and free, before the run and before each "
    "member.",
)
@click.option(
    "--allow-unsafe-version",
    type=VERSION,
    help="Defragment this very release of etcd although it is known to lose data by it.",
)
@break_lock
@output_flag(output.TABLE, output.JSON)
def defrag(
    connection: Connection,
    all_members: bool,
    dry_run: bool,
    move_leader: str,
    volume_size: int | None,
    wait: float,
    allow_unsafe_version: str | None,
    break_lock: bool,
    style: str,
    **rule: Any,
) -> int:
    """Defragment the members that are worth it: one at a time, followers before the leader.

    Nothing is touched unless every member is there, healthy and caught up; this is judged again
    before each member. Ctrl-C (or SIGTERM) finishes the member in flight and stops; a second one
    leaves at once, while etcd goes on with that member.
    """
    from etcdmaint.cli.outcome import exit_code, show, verdict
    from etcdmaint.defrag.process import process_holder, shown
    from etcdmaint.defrag.run import LeaderTransfer, RunRequest

    request = RunRequest(
        name=f"etcdmaint defrag by {shown(process_holder())}",
        uid=str(uuid.uuid4()),
        rule=rule_from(all_members=all_members, **rule),
        leader_transfer=LeaderTransfer(move_leader.capitalize()),
        dry_run=dry_run,
        allow_unsafe_version=allow_unsafe_version or "",
        patience=wait,
    )
    result = asyncio.run(_sweep(request, connection, volume_size, break_lock=break_lock))
    if result is None:
        return ExitCode.INTERRUPTED
    show(result, style)
    if text := verdict(result):
        output.print_note(f"etcdmaint: {text}")
    return exit_code(result)


async def _sweep(
    request: RunRequest, connection: Connection, volume_size: int | None, *, break_lock: bool
) -> RunResult | None:
    """Run it with the terminal's adapters; None when it was left in the middle."""
    from etcdmaint.cli.interruption import finish
    from etcdmaint.cli.progress import open_progress
    from etcdmaint.cli.terminal import Parts

    parts = Parts(await connection.settled(), volume_size, open_progress(SystemClock()))
    sweep = parts.sweep(request, break_lock)
    return await finish(sweep.run(), parts.surroundings, parts.progress)
