"""`etcdmaint defrag`: the operator's own sweep, for a person at a terminal and without Kubernetes."""

from __future__ import annotations

import asyncio
import uuid
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.parameters import Duration, Percent, Size, Version

if TYPE_CHECKING:
    from etcdmaint.defrag.run import RunRequest, RunResult


@click.command("defrag")
@with_connection
@click.option(
    "--rule-free-space-above",
    type=Size(),
    metavar="SIZE",
    show_default="200Mi",
    help="Defragment a member that would give back more than this.",
)
@click.option(
    "--rule-quota-usage-above",
    type=Percent(),
    metavar="PERCENT",
    help="From this share of its quota on, give back as little as --rule-min-reclaim too.",
)
@click.option(
    "--rule-min-reclaim",
    type=Size(),
    metavar="SIZE",
    show_default="32Mi, or --rule-free-space-above if that is less",
    help="The least that is worth it under --rule-quota-usage-above.",
)
@click.option(
    "--all", "all_members", is_flag=True, help="Defragment every member, worth it or not."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done; touches nothing.")
@click.option(
    "--move-leader",
    type=click.Choice(["always", "auto", "never"], case_sensitive=False),
    default="always",
    show_default=True,
    help="Whether leadership is moved off the leader before its turn: always, auto (if "
    "its turn will take over 2s) or never. Without it etcd leases may be lost, with it some writes "
    "in flight may fail.",
)
@click.option(
    "--volume-size",
    type=Size(),
    metavar="SIZE",
    help="Size of the volume that holds each member's data: a member is left alone where the copy that "
    "defragmenting writes would not fit.",
)
@click.option(
    "--wait",
    type=Duration(zero=True),
    default="0s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the cluster to be healthy and free, before the run and before each "
    "member.",
)
@click.option(
    "--allow-unsafe-version",
    type=Version(),
    metavar="VERSION",
    help="Defragment this very release of etcd although it is known to lose data by it.",
)
@click.option(
    "--break-lock",
    is_flag=True,
    help="Take the cluster from whoever holds it. Make sure that they are gone.",
)
@click.option(
    "-o",
    "--output",
    "style",
    type=click.Choice([output.TABLE, output.JSON]),
    default=output.TABLE,
    show_default=True,
    help="How to write the result.",
)
def defrag(
    connection: Connection,
    rule_free_space_above: int | None,
    rule_quota_usage_above: Fraction | None,
    rule_min_reclaim: int | None,
    all_members: bool,
    dry_run: bool,
    move_leader: str,
    volume_size: int | None,
    wait: float,
    allow_unsafe_version: str | None,
    break_lock: bool,
    style: str,
) -> int:
    """Defragment the members that are worth it: one at a time, followers before the leader.

    Nothing is touched unless every member is there, healthy and caught up; this is judged again
    before each member. Ctrl-C (or SIGTERM) finishes the member in flight and stops; a second one
    leaves at once, while etcd goes on with that member.
    """
    from etcdmaint.cli.outcome import exit_code, show, verdict
    from etcdmaint.cli.rule_flags import rule_from
    from etcdmaint.defrag.process import process_holder, shown
    from etcdmaint.defrag.run import LeaderTransfer, RunRequest

    request = RunRequest(
        name=f"etcdmaint defrag by {shown(process_holder())}",
        uid=str(uuid.uuid4()),
        rule=rule_from(
            all_members=all_members,
            free_space_above=rule_free_space_above,
            quota_usage_above=rule_quota_usage_above,
            min_reclaim=rule_min_reclaim,
        ),
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
    from etcdmaint.cli.interruption import Interruption
    from etcdmaint.cli.progress import open_progress
    from etcdmaint.cli.terminal import MemoryJournal, ProcessFence, TerminalSurroundings
    from etcdmaint.clock import SystemClock
    from etcdmaint.defrag.run import Target
    from etcdmaint.defrag.sweep import Sweep
    from etcdmaint.defrag.timing import Timing

    clock, connection = SystemClock(), await connection.settled()
    surroundings = TerminalSurroundings(
        Target(seeds=connection.seeds, access=connection.access, volume_size=volume_size)
    )
    progress = open_progress(clock)
    sweep = Sweep(
        request,
        surroundings=surroundings,
        journal=MemoryJournal(progress.state),
        fence=ProcessFence(),
        audience=progress,
        clock=clock,
        timing=Timing(dial_timeout=connection.dial_timeout, rpc_timeout=connection.command_timeout),
        break_lock=break_lock,
    )
    try:
        async with Interruption(surroundings, progress) as interruption:
            return await interruption.guard(sweep.run())
    finally:
        progress.close()
