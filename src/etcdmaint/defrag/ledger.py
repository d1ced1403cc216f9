"""The record of one run, and the one way to change it.

What must survive a crash is written at once; what only explains is written along with the next thing
that must (a run costs at most two writes a member).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from etcdmaint.defrag.run import (
    Audience,
    Instrumentation,
    Journal,
    MemberRow,
    Outcome,
    Phase,
    RunState,
    Severity,
)


@dataclass(slots=True)
class Ledger:
    """Holds the state of the run; every change goes through here."""

    state: RunState
    journal: Journal
    audience: Audience
    instrumentation: Instrumentation
    durable: RunState = field(default_factory=RunState)
    """The state as it was read, or written last."""
    untold: list[Callable[[], None]] = field(default_factory=list)
    """What is to be said as soon as the state is durable."""

    def amend(self, **changes: Any) -> None:
        """Change the record in memory: it is written with the next `write`."""
        if self.state.phase.terminal:
            raise AssertionError("a terminal phase is absorbing")
        self.state = replace(self.state, **changes)

    async def write(self, tell: Callable[[], None] = lambda: None, **changes: Any) -> None:
        """Change the record, return when it is durable, and `tell` of it then, however late that is."""
        self.amend(**changes)
        self.untold.append(tell)
        await self.persist()

    async def persist(self) -> None:
        """Return when the record as it is is durable."""
        await self.journal.record(self.state)
        self.durable = self.state
        untold, self.untold = self.untold, []
        for tell in untold:
            tell()

    def take_back(self, reason: str, message: str) -> None:
        """Let what is not durable be as if it had never been; the next write says why."""
        self.untold.clear()
        self.state = replace(self.durable, reason=reason, message=message)

    def amend_row(self, row: MemberRow) -> None:
        """Replace the row of the same member, and count it once it has its outcome."""
        before = self.row(row.member_id)
        self.amend(
            rows=tuple(row if old.member_id == row.member_id else old for old in self.state.rows)
        )
        if row.outcome is not Outcome.PENDING and before.outcome is Outcome.PENDING:
            self.instrumentation.member_finished(
                row.outcome, row.reason, max(0, row.reclaimed_bytes or 0)
            )

    def row(self, member_id: int) -> MemberRow:
        """The member's row."""
        return next(row for row in self.state.rows if row.member_id == member_id)

    def with_outcome(self, outcome: Outcome) -> tuple[MemberRow, ...]:
        """The rows that have this outcome."""
        return tuple(row for row in self.state.rows if row.outcome is outcome)

    def note(self, sentence: str) -> None:
        """Keep a sentence with the result."""
        if sentence and sentence not in self.state.notes:
            self.amend(notes=(*self.state.notes, sentence))

    async def wait(self, reason: str, message: str, *, stale: bool = False) -> bool:
        """Say why the run does not go on, an event for each change of reason (D19).

        Written when the reason is new, and where what was written before is `stale`: the same reason
        may be about another member by now. Whether it was.
        """
        if self.state.reason != reason:
            self.instrumentation.deferred(reason)
            told = f"{reason}: {message}"
            await self.write(
                lambda: self.audience.event(Severity.WARNING, "DefragDeferred", told),
                reason=reason,
                message=message,
            )
            return True
        self.amend(message=message)
        if not stale or message == self.durable.message:
            return False
        await self.write()
        return True

    @property
    def begun(self) -> bool:
        """Whether the run has passed the gate once."""
        return self.state.phase is Phase.RUNNING
