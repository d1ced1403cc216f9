"""`etcdmaint rescue`: an etcd that is full, healed by hand; for three in the morning."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.flags import break_lock, volume_size
from etcdmaint.cli.interruption import finish, run
from etcdmaint.cli.parameters import WAIT
from etcdmaint.cli.rule_flags import rule_from, with_rule_flags
from etcdmaint.clock import SystemClock
from etcdmaint.quantities import format_duration

if TYPE_CHECKING:
    from etcdmaint.cli.progress import Progress
    from etcdmaint.cli.terminal import Parts
    from etcdmaint.defrag.rescue import Rescued
    from etcdmaint.defrag.run import RunRequest

FULL_ABOVE = Fraction(8, 10)
PATIENCE = 60.0
"""Seconds that the gate may defer a sweep in the middle of a rescue."""
COMPACTION_LIMIT = 1800.0
"""Seconds for each member's compaction: gigabytes take minutes, and a person who has had enough leaves."""


@click.command("rescue")
@with_connection
@click.option(
    "--keep",
    type=WAIT,
    default="5m",
    help="If history has to go: how long to wait first, so that whoever watches can keep up. 0 is now.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@partial(with_rule_flags, quota_usage="80%")
@volume_size
@break_lock
def rescue(
    connection: Connection,
    keep: float,
    yes: bool,
    volume_size: int | None,
    break_lock: bool,
    quota_usage_above: Fraction | None,
    **rule: Any,
) -> int:
    """Heal an etcd whose NOSPACE alarm is armed, so that it takes writes again.

    Members that have much to give back are defragmented first. If that is not enough, history is
    dropped up to now, after --keep, and every member is defragmented. Then the alarm is disarmed.
    Nothing but old revisions is lost. It shows what it sees and asks before it does anything, and can
    be run again at any point.
    """
    from etcdmaint.defrag.process import process_holder, shown
    from etcdmaint.defrag.run import RunRequest

    request = RunRequest(
        name=f"etcdmaint rescue by {shown(process_holder())}",
        uid=str(uuid.uuid4()),
        rule=rule_from(quota_usage_above=quota_usage_above or FULL_ABOVE, **rule),
        patience=PATIENCE,
    )
    with asyncio.Runner() as runner:
        return _heal(runner, request, connection, volume_size, break_lock, keep, ask=not yes)


def _heal(
    runner: asyncio.Runner,
    request: RunRequest,
    connection: Connection,
    volume_size: int | None,
    break_lock: bool,
    keep: float,
    *,
    ask: bool,
) -> int:
    """Look, show, ask, and do it; the exit code."""
    from etcdmaint.cli.progress import Silence, open_progress
    from etcdmaint.cli.rescue_report import refuse, report, show_plan
    from etcdmaint.defrag.run import Ending

    settled = run(connection.settled(), runner)
    begin = partial(_Rescue, request, settled, volume_size, break_lock)
    findings = run(begin(Silence(SystemClock())).rescue.look(), runner)
    if findings.ending is not Ending.DONE:
        return refuse(findings)
    if not (findings.full or findings.untold):
        output.print_line(
            "NOSPACE is not armed: this etcd takes writes, there is nothing to rescue."
        )
        return ExitCode.DONE
    # Whoever has no room left for a log needs the rescue all the same.
    with contextlib.suppress(OSError) if not ask else contextlib.nullcontext():
        show_plan(findings, keep)
    if ask:
        click.confirm("Go on?", abort=True, err=True)
        if findings.full:
            output.print_note(
                "etcd takes no write now, so nobody will see that this cluster is being worked on: "
                "make sure that nobody else defragments it"
            )
            click.confirm("Is nobody else at it?", abort=True, err=True)
    rescued = runner.run(begin(open_progress(SystemClock())).carry_out(keep))
    return ExitCode.INTERRUPTED if rescued is None else report(rescued)


class _Rescue:
    """A rescue with what it is made of here, for one event loop."""

    def __init__(
        self,
        request: RunRequest,
        connection: Connection,
        volume_size: int | None,
        break_lock: bool,
        progress: Progress,
    ) -> None:
        from etcdmaint.cli.terminal import Parts
        from etcdmaint.compaction.by_hand import HistoryByHand
        from etcdmaint.defrag.rescue import Rescue

        parts = Parts(connection, volume_size, progress)
        self._parts = parts
        self.rescue = Rescue(
            request,
            parts.sweep,
            surroundings=parts.surroundings,
            fence=parts.fence,
            history=HistoryByHand(connection.command_timeout, COMPACTION_LIMIT),
            witness=_Terminal(parts),
            clock=parts.clock,
            timing=parts.timing,
            break_lock=break_lock,
        )

    async def carry_out(self, keep: float) -> Rescued | None:
        """Do it; None when it was left in the middle."""
        work = self.rescue.carry_out(keep)
        return await finish(work, self._parts.surroundings, self._parts.progress)


@dataclass(frozen=True, slots=True)
class _Terminal:
    """Implements `defrag.rescue.Witness`."""

    parts: Parts

    def say(self, text: str) -> None:
        self.parts.progress.say(text)

    async def count_down(self, seconds: float, what: str) -> None:
        from etcdmaint.defrag.run import Phase, RunState

        loop, surroundings = asyncio.get_running_loop(), self.parts.surroundings
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and not surroundings.stopping:
            text = f"{what} in {format_duration(round(left))}; Ctrl-C leaves it as it is"
            state = RunState(phase=Phase.PENDING, reason="Keep", message=text)
            self.parts.progress.state(state)
            await surroundings.nap(min(1.0, left))
