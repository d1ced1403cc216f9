"""A sweep that is left, lied to or overtaken at any of its awaits, by a pretended etcd (`pretended`).

What must never happen is checked there, at the moment at which it would: two members at once, a second
RPC while the first may run, an RPC without the Lease, the slot or the intent, an outcome that changes, a
write after the end, a slot that is lost while its holder lives. ETCDMAINT_EXAMPLES=2000 looks further.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.defrag.run import Ending, Outcome, Phase, RunResult
from etcdmaint.errors import LeadershipLost

from .pretended import LEASE_FREE_AFTER, Fault, Process, Rival, World, now, timeless

COMES_BACK_AFTER = 1.0
_MORE = os.environ.get("ETCDMAINT_EXAMPLES", "")


def play(world: World) -> RunResult | None:
    """Carry one run on, process after process, until it is over and every etcd is idle."""
    random.seed(1)
    return timeless(_play(world))


async def _play(world: World) -> RunResult | None:
    left: list[asyncio.Task[RunResult]] = []
    result: RunResult | None = None
    for number in range(8):
        process = Process(world, f"{number}-epoch")
        task = asyncio.create_task(process.sweep(age=now()).run(world.state))
        gone = asyncio.create_task(process.gone.wait())
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        left.append(task)
        if not process.gone.is_set():
            result = await task
            if result.state.phase.terminal:
                break
            assert result.ending is Ending.STOPPED
            world.stopping = False
        await asyncio.sleep(LEASE_FREE_AFTER if process.alive else COMES_BACK_AFTER)
    for each in await asyncio.gather(*left, *world.working, return_exceptions=True):
        if isinstance(each, Exception) and not isinstance(each, LeadershipLost):
            raise each
    return result


def check(world: World) -> None:
    """What must be true when all is over."""
    told = "\n".join(world.trail)
    assert world.state.phase.terminal, told
    for row in world.state.rows:
        member = world.members[row.member_id]
        if row.outcome is Outcome.DEFRAGMENTED:
            assert member.db_size == member.in_use, f"{row.name} never was\n{told}"
        # Again only where the first one came to nothing.
        assert member.asked <= 1 + member.broken_off, f"{row.name} was asked twice\n{told}"
        assert row.outcome is not Outcome.PENDING, told


def test_without_faults_every_member_is_done_and_nothing_is_left() -> None:
    world = World([3.0, 3.0, 3.0])
    result = play(world)
    assert result is not None
    assert result.ending is Ending.DONE
    assert {row.outcome for row in world.state.rows} == {Outcome.DEFRAGMENTED}
    check(world)
    assert not any(until for _, until in world.leases.values())


LETHAL = (Fault.DIES_BEFORE, Fault.DIES_AFTER, Fault.STANDS_STILL_FOR_LONG, Fault.ASKED_TO_STOP)


@pytest.mark.parametrize("fault", LETHAL)
@pytest.mark.parametrize("tells", [True, False])
def test_left_at_any_await_the_run_is_completed_by_the_next_process(
    fault: Fault, tells: bool
) -> None:
    """D2, D7, D36, D37, D62: `kill -9`, SIGSTOP and SIGTERM at every point; nobody is done twice."""
    takes = [3.0, 40.0]
    whole = World(takes, tells=tells)
    play(whole)
    # Each point by one of the faults; by every one of them where more examples are asked for.
    stride = 1 if _MORE else 3
    for at in range(LETHAL.index(fault) % stride, whole.awaits, stride if tells else 3 * stride):
        world = World(takes, faults={at: fault}, tells=tells)
        play(world)
        check(world)
        assert world.state.phase is Phase.COMPLETE, "\n".join(world.trail)
        assert world.state.defragmented == 2, "\n".join(world.trail)


@settings(max_examples=int(_MORE or "50"), deadline=None)
@given(
    takes=st.lists(st.sampled_from([0.5, 30.0, 90.0, 400.0]), min_size=1, max_size=4),
    faults=st.dictionaries(st.integers(0, 220), st.sampled_from(Fault), max_size=4),
    tells=st.booleans(),
    nospace=st.booleans(),
)
def test_whatever_goes_wrong_nothing_happens_that_must_not(
    takes: list[float], faults: dict[int, Fault], tells: bool, nospace: bool
) -> None:
    """D1, D2, D12, D32, D33, D36, D37, D61, D64."""
    world = World(takes, faults=faults, tells=tells, nospace=nospace)
    play(world)
    check(world)


OF_ETCD = (Fault.REQUEST_LOST, Fault.ANSWER_LOST, Fault.LEADER_CHANGES, Fault.STANDS_STILL_A_WHILE)


@settings(max_examples=int(_MORE or "50"), deadline=None)
@given(
    takes=st.lists(st.sampled_from([0.5, 30.0, 90.0]), min_size=2, max_size=3),
    faults=st.dictionaries(st.integers(0, 300), st.sampled_from(OF_ETCD), max_size=4),
    late=st.sampled_from([0.0, 0.01, 0.3, 5.0]),
)
def test_two_that_know_nothing_of_each_other_never_touch_two_members(
    takes: list[float], faults: dict[int, Fault], late: float
) -> None:
    """D3, D60, D61: answers of the slot's transactions may be lost, of both."""
    world = World(takes, faults=faults)
    one, two = Process(world, "one"), Rival(world, "two", holder="ann@far")

    async def both() -> list[RunResult]:
        first = asyncio.create_task(one.sweep().run())
        await asyncio.sleep(late)
        second = asyncio.create_task(two.sweep(name="ann", uid="other").run())
        return [await first, await second]

    results = timeless(both())
    assert all(result.state.phase.terminal for result in results)
    assert all(member.asked <= 1 for member in world.members.values())
