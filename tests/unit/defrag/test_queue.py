"""The queue inside one process (D3, D60)."""

from __future__ import annotations

import pytest

from etcdmaint.defrag.queue import RunQueue
from etcdmaint.errors import SlotHeld

CLUSTER = 0xC1


def test_one_run_a_cluster_whatever_name_it_is_reached_by() -> None:
    """D3: by etcd cluster ID."""
    queue = RunQueue()
    first = queue.arrive("a/one", "2026-01-01T00:00:00Z", "EtcdConnection a/x")
    second = queue.arrive("a/two", "2026-01-01T00:00:01Z", "EtcdCluster a/y")
    queue.start(first, CLUSTER)
    with pytest.raises(SlotHeld, match="waits for a/one"):
        queue.start(second, CLUSTER)
    queue.leave(first)
    queue.start(second, CLUSTER)


def test_the_oldest_goes_first_even_if_a_younger_one_asks_first() -> None:
    """D3: ties by namespace, then name."""
    queue = RunQueue()
    older = queue.arrive("b/older", "2026-01-01T00:00:00Z", "ref")
    younger = queue.arrive("a/younger", "2026-01-01T00:00:01Z", "ref")
    tie = queue.arrive("a/tie", "2026-01-01T00:00:00Z", "ref")
    with pytest.raises(SlotHeld, match=r"b/older|a/tie"):
        queue.start(younger, CLUSTER)
    with pytest.raises(SlotHeld, match="a/tie"):
        queue.start(older, CLUSTER)
    queue.start(tie, CLUSTER)


def test_a_run_that_the_gate_defers_does_not_hold_up_the_others() -> None:
    """D3, D9: a paused run waits alone."""
    queue = RunQueue()
    paused = queue.arrive("a/paused", "2026-01-01T00:00:00Z", "ref")
    other = queue.arrive("a/other", "2026-01-01T00:00:01Z", "ref")
    queue.stand_back(paused)
    queue.start(other, CLUSTER)
    with pytest.raises(SlotHeld, match="a/other"):
        queue.start(paused, CLUSTER)


def test_different_clusters_go_in_parallel_up_to_the_limit() -> None:
    """D3: default 8."""
    queue = RunQueue(limit=2)
    tickets = [queue.arrive(f"a/{i}", "2026-01-01T00:00:00Z", f"ref{i}") for i in range(3)]
    queue.start(tickets[0], 1)
    queue.start(tickets[1], 2)
    with pytest.raises(SlotHeld, match="limit"):
        queue.start(tickets[2], 3)
    queue.leave(tickets[0])
    queue.start(tickets[2], 3)
    assert queue.running == 2


def test_a_run_whose_slot_is_taken_by_others_gives_its_turn_back() -> None:
    queue = RunQueue(limit=1)
    waiting = queue.arrive("a/one", "2026-01-01T00:00:00Z", "ref1")
    other = queue.arrive("a/two", "2026-01-01T00:00:00Z", "ref2")
    queue.start(waiting, 1)
    queue.yield_turn(waiting)
    queue.start(other, 2)
    assert queue.running == 1
