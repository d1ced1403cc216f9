"""`etcdmaint rescue`: an etcd that is full, healed by hand; for three in the morning."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import Duration, Percent, Size

if TYPE_CHECKING:
    from etcdmaint.cli.progress import Progress
    from etcdmaint.cli.terminal import TerminalSurroundings
    from etcdmaint.defrag.rescue import Rescue, Rescued
    from etcdmaint.defrag.run import Audience, RunRequest

FULL_ABOVE = Fraction(8, 10)
PATIENCE = 60.0
"""Seconds that the gate may defer a sweep in the middle of a rescue."""
COMPACTION_LIMIT = 1800.0
"""Seconds for each member's compaction: gigabytes take minutes, and a person who has had enough leaves."""


@click.command("rescue")
@with_connection
@click.option(
    "--keep",
    type=Duration(zero=True),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="If history has to go: how long to wait first, so that whoever watches can keep up. 0 is now.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--rule-free-space-above",
    type=Size(),
    metavar="SIZE",
    help="Defragment a member first if it would give back more than this. Default: 200Mi.",
)
@click.option(
    "--rule-quota-usage-above",
    type=Percent(),
    metavar="PERCENT",
    help="… or from this share of its quota on, if it gives back --rule-min-reclaim. Default: 80%.",
)
@click.option(
    "--rule-min-reclaim",
    type=Size(),
    metavar="SIZE",
    help="The least that is worth it. Default: 32Mi.",
)
@click.option(
    "--volume-size",
    type=Size(),
    metavar="SIZE",
    help="Size of the volume that holds each member's data: a member is left alone where the copy that "
    "defragmenting writes would not fit.",
)
@click.option(
    "--break-lock",
    is_flag=True,
    help="Take the cluster from whoever holds it. Make sure that they are gone.",
)
def rescue(
    connection: Connection,
    keep: float,
    yes: bool,
    rule_free_space_above: int | None,
    rule_quota_usage_above: Fraction | None,
    rule_min_reclaim: int | None,
    volume_size: int | None,
    break_lock: bool,
) -> int:
    """Heal an etcd whose NOSPACE alarm is armed, so that it takes writes again.

    Members that have much to give back are defragmented first. If that is not enough, history is
    dropped up to now, after --keep, and every member is defragmented. Then the alarm is disarmed.
    Nothing but old revisions is lost. It shows what it sees and asks before it does anything, and can
    be run again at any point.
    """
    from etcdmaint.cli.rescue_report import refuse, report, show_plan
    from etcdmaint.cli.rule_flags import rule_from
    from etcdmaint.defrag.process import process_holder, shown
    from etcdmaint.defrag.run import Ending, RunRequest

    request = RunRequest(
        name=f"etcdmaint rescue by {shown(process_holder())}",
        uid=str(uuid.uuid4()),
        rule=rule_from(
            free_space_above=rule_free_space_above,
            quota_usage_above=rule_quota_usage_above or FULL_ABOVE,
            min_reclaim=rule_min_reclaim,
        ),
        patience=PATIENCE,
    )
    parts = _Parts(request, run(connection.settled()), volume_size, break_lock)
    findings = run(parts.rescue(_Silent()).look())
    if findings.ending is not Ending.DONE:
        return refuse(findings)
    if not (findings.full or findings.untold):
        output.print_line(
            "NOSPACE is not armed: this etcd takes writes, there is nothing to rescue."
        )
        return ExitCode.DONE
    # Whoever has no room left for a log needs the rescue all the same.
    with contextlib.suppress(OSError) if yes else contextlib.nullcontext():
        show_plan(findings, keep)
    if not yes:
        click.confirm("Go on?", abort=True, err=True)
        if findings.full:
            output.print_note(
                "etcd takes no write now, so nobody will see that this cluster is being worked on: "
                "make sure that nobody else defragments it"
            )
            click.confirm("Is nobody else at it?", abort=True, err=True)
    rescued = asyncio.run(parts.carry_out(keep))
    if rescued is None:
        return ExitCode.INTERRUPTED
    return report(rescued)


@dataclass
class _Parts:
    """What a rescue is made of here."""

    request: RunRequest
    connection: Connection
    volume_size: int | None
    break_lock: bool
    surroundings: TerminalSurroundings = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """What asks to stop belongs to one event loop."""
        from etcdmaint.cli.terminal import TerminalSurroundings
        from etcdmaint.defrag.run import Target

        self.surroundings = TerminalSurroundings(
            Target(
                seeds=self.connection.seeds,
                access=self.connection.access,
                volume_size=self.volume_size,
            )
        )

    def rescue(self, audience: Audience, progress: Progress | None = None) -> Rescue:
        from etcdmaint.cli.terminal import MemoryJournal, ProcessFence
        from etcdmaint.clock import SystemClock
        from etcdmaint.compaction.by_hand import HistoryByHand
        from etcdmaint.defrag.rescue import Rescue
        from etcdmaint.defrag.sweep import Sweep
        from etcdmaint.defrag.timing import Timing

        clock, fence = SystemClock(), ProcessFence()
        timing = Timing(
            dial_timeout=self.connection.dial_timeout, rpc_timeout=self.connection.command_timeout
        )

        def make_sweep(request: RunRequest, break_lock: bool) -> Sweep:
            return Sweep(
                request,
                surroundings=self.surroundings,
                journal=MemoryJournal(progress.state) if progress else MemoryJournal(),
                fence=fence,
                audience=audience,
                clock=clock,
                timing=timing,
                break_lock=break_lock,
            )

        return Rescue(
            self.request,
            make_sweep,
            surroundings=self.surroundings,
            fence=fence,
            history=HistoryByHand(self.connection.command_timeout, COMPACTION_LIMIT),
            witness=_Terminal(progress, self.surroundings),
            clock=clock,
            timing=timing,
            break_lock=self.break_lock,
        )

    async def carry_out(self, keep: float) -> Rescued | None:
        from etcdmaint.cli.interruption import Interruption
        from etcdmaint.cli.progress import open_progress
        from etcdmaint.clock import SystemClock

        self._begin()
        progress = open_progress(SystemClock())
        try:
            async with Interruption(self.surroundings, progress) as interruption:
                return await interruption.guard(self.rescue(progress, progress).carry_out(keep))
        finally:
            progress.close()


class _Silent:
    """The audience of a look."""

    def event(self, *_: object) -> None:
        """Ignore it."""

    def turn(self, *_: object) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True)
class _Terminal:
    """Implements `defrag.rescue.Witness`."""

    progress: Progress | None
    surroundings: TerminalSurroundings

    def say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)

    async def count_down(self, seconds: float, what: str) -> None:
        from etcdmaint.defrag.run import Phase, RunState
        from etcdmaint.quantities import format_duration

        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and not self.surroundings.stopping:
            if self.progress is not None:
                text = f"{what} in {format_duration(round(left))}; Ctrl-C leaves it as it is"
                self.progress.state(RunState(phase=Phase.PENDING, reason="Keep", message=text))
            await self.surroundings.nap(min(1.0, left))
