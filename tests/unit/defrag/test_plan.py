"""The order of a sweep, and where leadership goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.defrag.plan import expected_seconds, gone, next_member, transferee

from .observations import MIB, member, observation, status, with_status


def test_followers_come_before_the_leader_and_the_fullest_first() -> None:
    """D30."""
    seen = observation(
        statuses={
            1: status(1, db_size=900 * MIB),
            2: status(2, db_size=300 * MIB),
            3: status(3, db_size=400 * MIB),
        }
    )
    waiting = {1, 2, 3}
    order = []
    while waiting:
        chosen = next_member(waiting, seen)
        assert chosen is not None
        order.append(chosen)
        waiting.discard(chosen)
    assert order == [3, 2, 1]


def test_a_leader_that_has_moved_is_last_whoever_it_is_now() -> None:
    """D30: the order is made anew before every step."""
    moved = observation(statuses={i: status(i, leader=2) for i in (1, 2, 3)})
    assert next_member({1, 2}, moved) == 1


@given(waiting=st.sets(st.sampled_from([1, 2, 3])))
def test_the_leader_is_never_chosen_while_a_follower_waits(waiting: set[int]) -> None:
    """D30."""
    chosen = next_member(waiting, observation())
    assert (chosen is None) == (not waiting)
    if waiting - {1}:
        assert chosen != 1


def test_leadership_prefers_a_member_that_is_done_already() -> None:
    """D31."""
    seen = with_status(2, raft_applied_index=990)
    assert transferee(seen, defragmented={2}) == 2
    assert transferee(seen, defragmented=set()) == 3


def test_leadership_never_goes_to_a_learner_or_to_the_leader_itself() -> None:
    """D31."""
    members = (member(1), member(2, is_learner=True))
    seen = observation(members=members, statuses={i: status(i) for i in (1, 2)})
    assert transferee(seen, defragmented={2}) is None


def test_a_turn_is_predicted_from_the_turns_before_it() -> None:
    """D31: 100 MB/s before any."""
    assert expected_seconds(500_000_000, []) == 5
    assert expected_seconds(500_000_000, [(100_000_000, 4.0), (100_000_000, 4.0)]) == 20


def test_a_member_that_is_not_listed_any_more_is_gone() -> None:
    """D39."""
    seen = replace(observation(), members=(member(1), member(2), member(7)))
    assert gone({1, 2, 3}, seen) == (3,)
