"""Runs `defrag.sweep` against real servers, with the simplest adapters that there can be.

Nothing of etcd is imitated here: only the world around the sweep (where its record is kept, who is told,
whether it is asked to stop) is, since a test wants to hold it in its hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from etcdmaint.clock import SystemClock
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import (
    LeaderTransfer,
    MemberRow,
    MemberTurn,
    RunRequest,
    RunResult,
    RunState,
    Severity,
    Target,
)
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import LeadershipLost
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.etcd import EtcdCluster

MIB = 1 << 20
SMALL = Rule(free_space_above=4 * MIB, min_reclaim=4 * MIB)
"""What is worth it for the little databases of tests."""

QUICK = Timing(
    gate_interval=0.2,
    queue_interval=0.1,
    idle_interval=0.1,
    note_after=0.3,
    rpc_timeout=2.0,
    metrics_timeout=1.0,
    slotless_pause=0.2,
    answer_limit=10.0,
)


def target(cluster: EtcdCluster, **changes: Any) -> Target:
    """The cluster, reached through its first member."""
    seeds = tuple(Endpoint.parse(url) for url in cluster.client_urls[:1])
    return replace(Target(seeds=seeds, access=Access()), **changes)


@dataclass
class World:
    """The world around one sweep."""

    where: Target
    states: list[RunState] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    turns: list[MemberTurn] = field(default_factory=list)
    stopping: bool = False
    held: bool = True
    active: set[str] = field(default_factory=set)
    holder: str = "test-namespace/test-lease uid-1"
    epoch: str = "1-first"
    on_turn: Callable[[MemberTurn], None] | None = None
    on_record: Callable[[RunState], None] | None = None
    on_look: Callable[[], None] | None = None

    async def look(self) -> Target:
        if self.on_look is not None:
            self.on_look()
        return self.where

    async def is_active(self, run: str, uid: str) -> bool:
        return uid in self.active

    async def nap(self, seconds: float) -> None:
        for _ in range(max(1, int(seconds / 0.05))):
            if self.stopping:
                return
            await asyncio.sleep(min(seconds, 0.05))

    async def record(self, state: RunState) -> None:
        self.assert_held()
        if self.on_record is not None:
            self.on_record(state)
        self.states.append(state)

    def assert_held(self) -> None:
        if not self.held:
            raise LeadershipLost("the test took the lease away")

    def event(self, severity: Severity, reason: str, message: str) -> None:
        self.events.append((reason, message))

    def turn(self, turn: MemberTurn) -> None:
        self.turns.append(turn)
        if self.on_turn is not None:
            self.on_turn(turn)

    @property
    def reasons(self) -> list[str]:
        """The events' reasons, in their order."""
        return [reason for reason, _ in self.events]


def request(**changes: Any) -> RunRequest:
    """A run that asks for what is worth it in a test."""
    asked = RunRequest(
        name="team-a/etcd-now",
        uid="uid-of-the-run",
        rule=SMALL,
        leader_transfer=LeaderTransfer.ALWAYS,
    )
    return replace(asked, **changes)


def sweep(world: World, asked: RunRequest | None = None, **parts: Any) -> Sweep:
    """A sweep in this world."""
    return Sweep(
        asked or request(),
        surroundings=world,
        journal=world,
        fence=world,
        audience=world,
        clock=SystemClock(),
        **{"timing": QUICK, **parts},
    )


async def run(world: World, asked: RunRequest | None = None, **parts: Any) -> RunResult:
    """Run one from its beginning to its end."""
    return await sweep(world, asked, **parts).run()


def row(result: RunResult, name: str) -> MemberRow:
    """A member's row by its name."""
    return next(row for row in result.state.rows if row.name == name)


def counts(cluster: EtcdCluster) -> list[float]:
    """How many defragmentations each member's etcd has completed, by its own count."""
    return [member.defrag_count() for member in cluster.members]
