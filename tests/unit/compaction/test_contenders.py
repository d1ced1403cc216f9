"""Many contenders for one interval: exactly one compacts, whatever happens to the others.

The store is one in memory (kv.py), the time only counted (simulation.py). What is claimed: two elections
are never won in one interval, nothing younger than one interval is compacted, the key's version never
goes back by our doing (each asserted at the moment at which it would happen), and once faults end the
next intervals are compacted again, one by one.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .simulation import EPSILON, INTERVAL, World

TEN = 10
CONTENDERS = st.integers(min_value=0, max_value=TEN - 1)


def world_of(count: int, *, seed: int = 1, latency: float = 0.0) -> World:
    world = World(random=random.Random(seed))
    for _ in range(count):
        contender = world.add(phase=world.random.uniform(0, INTERVAL))
        contender.latency = latency
    return world


@pytest.mark.parametrize("seed", range(5))
def test_ten_contenders_over_a_hundred_intervals_compact_once_in_each(seed: int) -> None:
    """C4, C7: with delays of up to 4 s, whoever wins."""
    world = world_of(TEN, seed=seed, latency=2.0)
    for _ in range(101):
        world.write(7)
        world.pass_time(INTERVAL)
    # Waiting begins when a round is over, so an interval is as much longer as a round takes.
    assert 98 <= len(world.compactions) <= 100
    assert len(world.swaps) == len(world.compactions) + 1
    gaps = [b - a for (a, _), (b, _) in zip(world.swaps, world.swaps[1:], strict=False)]
    assert INTERVAL - EPSILON < min(gaps) <= max(gaps) < INTERVAL + 10
    world.close()


def test_nothing_happens_before_one_whole_interval_is_over() -> None:
    """C4: no first round at once, and no jitter."""
    world = world_of(1)
    world.pass_time(INTERVAL * 0.999)
    assert world.swaps == []
    world.close()


@pytest.mark.parametrize("seed", range(8))
def test_when_the_winner_dies_the_gap_is_longer_than_one_interval_and_shorter_than_two(
    seed: int,
) -> None:
    """C7: the next in line has learned the version within the interval, and waits a whole one."""
    world = world_of(3, seed=seed)
    world.pass_time(INTERVAL * 5)
    when, version = world.swaps[-1]
    winner = next(
        c for c in world.contenders if c.state.version == version and c.held[-1][1].swapped
    )
    winner.alive = False
    world.pass_time(INTERVAL * 2)
    after = [at for at, _ in world.swaps if at > when]
    assert INTERVAL < after[0] - when < 2 * INTERVAL
    world.close()


class Election(RuleBasedStateMachine):
    """Ten contenders, and everything that may happen to them."""

    @initialize(seed=st.integers(min_value=0, max_value=10_000), latency=st.floats(0, 2.4))
    def begin(self, seed: int, latency: float) -> None:
        self.world = world_of(TEN, seed=seed, latency=latency)

    @rule(share=st.floats(min_value=0.01, max_value=1.5))
    def time_passes(self, share: float) -> None:
        self.world.pass_time(share * INTERVAL)

    @rule(times=st.integers(min_value=1, max_value=1000))
    def others_write(self, times: int) -> None:
        self.world.write(times)

    @rule(which=CONTENDERS)
    def cut_off(self, which: int) -> None:
        self.world.contenders[which].partitioned = True

    @rule(which=CONTENDERS)
    def joined_again(self, which: int) -> None:
        self.world.contenders[which].partitioned = False

    @rule(which=CONTENDERS, count=st.integers(min_value=1, max_value=3))
    def answers_get_lost(self, which: int, count: int) -> None:
        self.world.contenders[which].lost_replies = count

    @rule(which=CONTENDERS)
    def restarted(self, which: int) -> None:
        latency = self.world.contenders[which].latency
        self.world.restart(self.world.contenders[which]).latency = latency

    @precondition(lambda self: not self.world.store.nospace)
    @rule()
    def out_of_space(self) -> None:
        self.world.store.nospace = True

    @precondition(lambda self: self.world.store.nospace)
    @rule()
    def space_again(self) -> None:
        self.world.store.nospace = False

    @rule(value=st.sampled_from([b"abc", b"", b"999999999999", b"1"]))
    def rewritten_by_hand(self, value: bytes) -> None:
        self.world.store.put(value)
        self.world.write(0)
        # One more version, which no contender has seen: the election goes on behind it.

    @rule()
    def deleted_by_hand(self) -> None:
        self.world.store.delete()
        self.world.write(0)
        self.world.tampered = True

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.store.nospace = False
        for contender in world.contenders:
            contender.partitioned, contender.lost_replies = False, 0
        # Whoever was in the middle of something finishes it, and all learn the version.
        world.pass_time(2.1 * INTERVAL)
        done, tampered = len(world.compactions), world.tampered
        world.tampered = False
        world.swaps.clear()
        for _ in range(6):
            world.write(3)
            world.pass_time(INTERVAL)
        done = len(world.compactions) - done
        assert done >= 5, f"no progress after the faults (tampered: {tampered})"
        assert done <= 7
        world.close()


Election.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestElection = Election.TestCase
TestElection.__doc__ = "C7, C8, C11, C12, C13, C17: the invariants hold whatever happens."
