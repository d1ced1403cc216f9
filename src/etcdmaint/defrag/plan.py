"""Whose turn is next, and where leadership goes before the leader's turn.

Pure: takes what was just observed, gives a member ID. The order is made anew before every step, since
leaders move and sizes change while a sweep goes on (D30).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from etcdmaint.defrag.health import Observation

ASSUMED_BYTES_PER_SECOND = 100_000_000
"""etcd's own rule of thumb, used until a member of this run has shown the real rate."""

AUTO_TRANSFER_SECONDS = 2.0


def next_member(waiting: Collection[int], observation: Observation) -> int | None:
    """The member that comes next: followers before the leader, most reclaimable first (D30)."""

    def rank(member_id: int) -> tuple[bool, int, int]:
        status = observation.status(member_id)
        reclaimable = status.db_size - status.db_size_in_use if status else 0
        return (member_id == observation.leader, -reclaimable, member_id)

    return min(waiting, key=rank, default=None)


def transferee(observation: Observation, defragmented: Collection[int]) -> int | None:
    """The voter that leadership moves to: defragmented already if there is one, then the least behind.

    The observation has passed the gate, so that every voter in it is healthy and caught up (D31).
    """

    def rank(member_id: int) -> tuple[bool, int, int]:
        status = observation.status(member_id)
        applied = status.raft_applied_index if status else 0
        return (member_id not in defragmented, -applied, member_id)

    others = [m.id for m in observation.voters if m.id != observation.leader]
    return min(others, key=rank, default=None)


def expected_seconds(db_size_in_use: int, seen: Sequence[tuple[int, float]]) -> float:
    """How long a turn will take: bytes in use over the rate of this run's earlier turns (D31)."""
    done = sum(size for size, _ in seen)
    took = sum(seconds for _, seconds in seen)
    rate = done / took if done and took else ASSUMED_BYTES_PER_SECOND
    return db_size_in_use / rate


def gone(rows: Iterable[int], observation: Observation) -> tuple[int, ...]:
    """Members that the run counts on and that the cluster has no more (D39)."""
    present = {member.id for member in observation.members}
    return tuple(member_id for member_id in rows if member_id not in present)
