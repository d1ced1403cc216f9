"""Every duration that a run keeps to, in one place, so that tests can shrink them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from etcdmaint.defrag.rule import member_timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds, but for the counts of samples."""

    deadline_floor: float = 3600.0
    waiting_budget: float = 900.0
    settle_limit: float = 300.0
    settle_samples: int = 3
    quick_interval: float = 0.1
    gate_interval: float = 15.0
    queue_interval: float = 1.0
    note_after: float = 2.0
    """How long a running sweep may wait before it says so: shorter waits are not worth a write."""
    tell_again: float = 60.0
    """How long what was written of a wait may be out of date, as long as its reason is the same."""
    gate_keeps: float = 5.0
    """How long after the gate a member may still be asked by what was seen there."""
    dial_timeout: float = 5.0
    rpc_timeout: float = 5.0
    metrics_timeout: float = 2.0
    transfer_timeout: float = 5.0
    answer_limit: float = 30.0
    idle_samples: int = 3
    idle_interval: float = 1.0
    missing_grace: float = 30.0
    commit_interval: float = 0.45
    """After three writes, until every member says what it has in use: an idle etcd never updates it. Longer
    where writing takes long."""
    slotless_pause: float = 3.0
    slot_margin: float = 60.0
    member_timeout: Callable[[int], float] = member_timeout

    def sweep_seconds(self, sizes_in_use: Iterable[int]) -> float:
        """The longest that a sweep of members with these bytes in use may take."""
        return sum(self.member_timeout(size) + self.settle_limit for size in sizes_in_use)

    def deadline(self, sizes_in_use: Iterable[int]) -> float:
        """Seconds from creation to the end of a run, waiting included (D4)."""
        return max(self.deadline_floor, self.waiting_budget + self.sweep_seconds(sizes_in_use))

    def pace(self, waited: float, *, ceiling: float | None = None) -> float:
        """How long to sleep before the next look, after having waited so long: quick first (D14)."""
        return min(ceiling or self.gate_interval, max(self.quick_interval, waited / 10))
