"""Whether a member is touched when its turn comes, and why not."""

from __future__ import annotations

from dataclasses import replace

from etcdmaint.defrag.context import RunContext
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.rule import evaluate, lacking_room
from etcdmaint.defrag.run import MemberRow, Outcome, Role
from etcdmaint.errors import NoDiskSpace

RESTARTS_LIMIT = 5
"""From so many restarts on, another operator's self-heal may delete a member that is not ready (D18)."""


def judge_member(ctx: RunContext, observation: Observation, row: MemberRow) -> MemberRow:
    """The row with its sizes, and Skipped with the reason when the member is not to be touched."""
    now = ctx.clock.now()
    member = next(m for m in observation.members if m.id == row.member_id)
    if member.is_learner:
        return replace(
            row,
            role=Role.LEARNER,
            outcome=Outcome.SKIPPED,
            reason="Learner",
            message="etcd does not defragment a learner",
            finished_at=now,
        )
    sizes = ctx.sizes(observation, row.member_id)
    decision = evaluate(ctx.request.rule, sizes)
    row = replace(
        row,
        role=Role.LEADER if observation.leader == row.member_id else Role.FOLLOWER,
        db_size_before=sizes.db_size,
        db_size_in_use_before=sizes.db_size_in_use,
        quota_bytes=sizes.quota,
        message=decision.message,
    )
    if not decision.due:
        return replace(row, outcome=Outcome.SKIPPED, reason=decision.reason, finished_at=now)
    wanted = ctx.desired(row.member_id, row.name)
    restarts = wanted.restarts if wanted else 0
    if restarts >= RESTARTS_LIMIT:
        return replace(
            row,
            outcome=Outcome.SKIPPED,
            reason="RestartCountTooHigh",
            message=f"its container has restarted {restarts} times: should it turn not ready, the "
            "operator of this cluster would delete it",
            finished_at=now,
        )
    volume = ctx.target.volume_size if ctx.target else None
    lacking = lacking_room(sizes, volume) if volume else None
    if lacking is not None:
        return replace(
            row,
            outcome=Outcome.SKIPPED,
            reason=NoDiskSpace.reason,
            message=lacking,
            finished_at=now,
        )
    return row
