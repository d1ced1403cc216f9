"""What is decided about a member just before its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etcdmaint.clock import SystemClock
from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.ledger import Ledger
from etcdmaint.defrag.link import Link
from etcdmaint.defrag.outcome import judge_member
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import (
    DesiredMember,
    MemberRow,
    NoInstrumentation,
    Outcome,
    Role,
    RunRequest,
    RunState,
    Target,
)
from etcdmaint.defrag.timing import Timing
from tests.etcd.sweeping import World

from .observations import MIB, member, observation, status, with_status

ROW = MemberRow(name="m2", member_id=2)


def context(target: Target) -> RunContext:
    world = World(target)
    return RunContext(
        request=RunRequest(name="a/run", uid="1", rule=Rule(free_space_above=MIB)),
        surroundings=world,
        fence=world,
        audience=world,
        clock=SystemClock(),
        timing=Timing(),
        instrumentation=NoInstrumentation(),
        ledger=Ledger(RunState(), world, world, NoInstrumentation()),
        link=Link(1.0, None),
        target=target,
    )


def judged(target: Target, seen: object = None) -> MemberRow:
    return judge_member(context(target), seen or observation(), ROW)  # type: ignore[arg-type]


def test_a_due_member_keeps_its_numbers_in_the_row() -> None:
    """D21, D22, D23: its own sizes, from this observation, and the quota that was used."""
    seen = with_status(2, db_size=500 * MIB, db_size_in_use=120 * MIB, db_size_quota=0)
    row = judged(Target(seeds=(), quota_bytes=700 * MIB), seen)
    assert row.outcome is Outcome.PENDING
    assert (row.db_size_before, row.db_size_in_use_before) == (500 * MIB, 120 * MIB)
    assert row.quota_bytes == 700 * MIB
    assert row.role is Role.FOLLOWER


def test_the_members_own_option_goes_before_the_clusters_quota() -> None:
    """D21."""
    seen = with_status(2, db_size_quota=0)
    desired = (DesiredMember(name="m2", quota_bytes=900 * MIB),)
    row = judged(Target(seeds=(), quota_bytes=700 * MIB, desired=desired), seen)
    assert row.quota_bytes == 900 * MIB


@pytest.mark.parametrize(("restarts", "skipped"), [(4, False), (5, True), (6, True)])
def test_a_member_whose_container_restarts_often_is_left_alone(
    restarts: int, skipped: bool
) -> None:
    """D18: the operator of that cluster would delete it while it is not ready."""
    desired = (DesiredMember(name="pod-x", member_id=2, restarts=restarts),)
    row = judged(Target(seeds=(), desired=desired))
    assert (row.reason == "RestartCountTooHigh") is skipped
    assert (row.outcome is Outcome.SKIPPED) is skipped


def test_a_learner_is_never_due() -> None:
    """D30."""
    members = (member(1), member(2, is_learner=True), member(3))
    seen = replace(
        observation(members=members),
        statuses={1: status(1), 2: status(2, is_learner=True), 3: status(3)},
    )
    row = judged(Target(seeds=()), seen)
    assert (row.role, row.reason) == (Role.LEARNER, "Learner")


def test_a_volume_of_unknown_size_stops_nobody() -> None:
    """D24."""
    assert judged(Target(seeds=())).outcome is Outcome.PENDING
    assert judged(Target(seeds=(), volume_size=300 * MIB)).reason == "NoDiskSpace"
