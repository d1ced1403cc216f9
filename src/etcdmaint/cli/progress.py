"""How a running sweep looks: one line that lives on a terminal, plain lines anywhere else.

Everything goes to standard error, so that standard output has the result alone. This module is told
what happens and must not know why.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from etcdmaint.cli import output
from etcdmaint.cli.exits import one_line
from etcdmaint.clock import Clock
from etcdmaint.defrag.run import MemberRow, MemberTurn, Outcome, RunState, Severity
from etcdmaint.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

TOLD_OTHERWISE = frozenset({"MemberDefragmented", "MemberFailed", "Complete", "DefragFailed"})
"""Reasons of events that are not worth a line of their own."""

_NOT_WAITING = frozenset(
    {"Accepted", "Running", "Defragmenting", "MemberDefragmented", "MemberFailed", "Stopped"}
)
_LOOKING = "looking at the cluster"


class Progress:
    """The sweep's Audience, in plain lines: one for each thing that happens, and a sign of life now and
    then in a long turn.

    `interval` is in seconds between ticks, `current` the member in flight.
    """

    interval = 10.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = 0.0
        self.current: MemberTurn | None = None

    def event(self, severity: Severity, reason: str, message: str) -> None:
        """Say it, but for what a turn or the result says anyway."""
        if reason not in TOLD_OTHERWISE:
            self.say(f"warning: {message}" if severity is Severity.WARNING else message)

    def turn(self, turn: MemberTurn) -> None:
        """Say what begins, or how it went."""
        if turn.row.outcome is Outcome.PENDING:
            self._began = self._clock.monotonic()
            self.current = turn
            self.say(f"{beginning(turn)}; {what_next(turn)}")
        else:
            self.current = None
            self.say(ended(turn))

    def state(self, state: RunState) -> None:
        """Nothing: every change that matters is an event too."""

    def say(self, text: str) -> None:
        """One line on standard error; a terminal that has gone away must not stop the run."""
        output.print_note(text)

    def tick(self) -> None:
        """A sign of life; called again and again while the run goes on."""
        if self.current is not None:
            elapsed = self._clock.monotonic() - self._began
            self.say(f"{self.current.row.name}: {elapsed_text(self.current, elapsed)}")

    def close(self) -> None:
        """Nothing to tidy up."""


class Silence(Progress):
    """Says nothing."""

    def say(self, text: str) -> None:
        """Ignore it."""


class LiveProgress(Progress):
    """The same lines, and below them one that shows what goes on right now."""

    interval = 0.125

    def __init__(self, clock: Clock, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(clock)
        self._waiting = _LOOKING
        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        # Refreshed by our own ticks: a second thread would outlive a hasty exit.
        self._live: Live = Live(
            self._line(), console=self._console, auto_refresh=False, transient=True
        )
        self._live.start()

    def state(self, state: RunState) -> None:
        """Show what the run waits for."""
        waits = state.message and not state.phase.terminal and state.reason not in _NOT_WAITING
        self._waiting = f"waiting: {state.message}" if waits else _LOOKING

    def say(self, text: str) -> None:
        """One line above the living one."""
        with contextlib.suppress(OSError):
            self._console.print(one_line(text), soft_wrap=True)

    def tick(self) -> None:
        """Draw the line anew."""
        with contextlib.suppress(OSError):
            self._live.update(self._line(), refresh=True)

    def close(self) -> None:
        """Give the terminal back as it was."""
        with contextlib.suppress(OSError):
            self._live.stop()

    def _line(self) -> Any:
        from rich.text import Text

        if self.current is None:
            return Text(
                one_line(f"… {self._waiting}"), style="dim", overflow="ellipsis", no_wrap=True
            )
        elapsed = self._clock.monotonic() - self._began
        share = min(0.99, elapsed / max(self.current.expected_seconds, 0.1))
        bar = "█" * round(20 * share) + "░" * (20 - round(20 * share))
        row = self.current.row
        text = (
            f"{bar} {row.name} ({self.current.position} of {self.current.total}): "
            f"{elapsed_text(self.current, elapsed)}; {what_next(self.current)}"
        )
        return Text(one_line(text), style="bold", overflow="ellipsis", no_wrap=True)


def open_progress(clock: Clock) -> Progress:
    """What fits to where standard error goes: a line can only live where the cursor can be moved."""
    vivid = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return LiveProgress(clock) if vivid else Progress(clock)


def beginning(turn: MemberTurn) -> str:
    """Which member, its size, and how long it may take."""
    row = turn.row
    size = "" if row.db_size_before is None else f", {format_bytes(row.db_size_before)}"
    used = (
        ""
        if row.db_size_in_use_before is None
        else f" with {format_bytes(row.db_size_in_use_before)} in use"
    )
    return (
        f"{row.name} ({turn.position} of {turn.total}, {row.role or 'member'}{size}{used}): "
        f"defragmenting, about {rough(turn.expected_seconds)}"
    )


def elapsed_text(turn: MemberTurn, elapsed: float) -> str:
    """Elapsed against expected, and the limit once it takes longer."""
    text = f"{rough(elapsed)} of about {rough(turn.expected_seconds)}"
    if elapsed > 2 * turn.expected_seconds and elapsed > 1:
        text += f", given up on after {rough(turn.timeout_seconds)}"
    return text


def what_next(turn: MemberTurn) -> str:
    """What happens when this turn is over."""
    left = turn.total - turn.position
    if left == 0:
        return "then the alarms are looked at and the run is over"
    members = "one member is" if left == 1 else f"{left} members are"
    return f"then the cluster settles, and {members} left"


def ended(turn: MemberTurn) -> str:
    """How a member's turn went."""
    row = turn.row
    if row.outcome is not Outcome.DEFRAGMENTED:
        return f"{row.name}: {row.outcome}, {row.reason}: {row.message}".rstrip(": ")
    took = f" in {took_of(row)}" if took_of(row) else ""
    if row.db_size_before is None or row.db_size_after is None:
        return f"{row.name}: defragmented{took}; its size is not known yet"
    return (
        f"{row.name}: {format_bytes(row.db_size_before)} → {format_bytes(row.db_size_after)}, "
        f"{format_bytes(row.reclaimed_bytes or 0)} reclaimed{took}"
    )


def took_of(row: MemberRow) -> str:
    """How long a member's turn took; empty where it had none."""
    if not row.started_at or not row.finished_at:
        return ""
    return rough((row.finished_at - row.started_at).total_seconds())


def rough(seconds: float) -> str:
    """A duration for people, to two digits or to the second."""
    if seconds >= 10:
        return format_duration(round(seconds))
    return format_duration(round(seconds, 1 if seconds >= 1 else 2))
