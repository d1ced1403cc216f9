"""Is this member worth defragmenting, and is there room for it?

Pure arithmetic over sizes in bytes. The table is that of the EtcdDefrag page; where it says "exceeds"
the comparison is strict. This module must not know where the sizes come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from etcdmaint.quantities import format_bytes

MIB = 1 << 20
DEFAULT_FREE_SPACE_ABOVE = 200 * MIB
DEFAULT_MIN_RECLAIM = 32 * MIB
DEFAULT_QUOTA_BYTES = 2 << 30
"""What etcd uses when nobody sets --quota-backend-bytes."""

MEMBER_TIMEOUT_FLOOR = 60.0
MEMBER_TIMEOUT_CAP = 30 * 60.0


@dataclass(frozen=True, slots=True)
class Rule:
    """When a member is due (D20). Bytes, and a fraction of the quota."""

    all: bool = False
    free_space_above: int = DEFAULT_FREE_SPACE_ABOVE
    quota_usage_above: Fraction | None = None
    min_reclaim: int = DEFAULT_MIN_RECLAIM


@dataclass(frozen=True, slots=True)
class MemberSizes:
    """One member's own numbers, sampled just before the decision (D23). `quota` None: no quota."""

    db_size: int
    db_size_in_use: int
    quota: int | None

    @property
    def reclaimable(self) -> int:
        """Bytes that a defragmentation can give back at most."""
        return max(0, self.db_size - self.db_size_in_use)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the member is due, and why, in one sentence with the numbers."""

    due: bool
    reason: str
    message: str


def evaluate(rule: Rule, sizes: MemberSizes) -> Decision:
    """Apply the rule to one member (D20, D22)."""
    free = sizes.reclaimable
    free_text = f"{format_bytes(free)} reclaimable"
    if rule.all:
        return Decision(True, "All", f"{free_text}; rule.all")
    if free > rule.free_space_above:
        return Decision(
            True,
            "FreeSpaceAbove",
            f"{free_text}, more than freeSpaceAbove {format_bytes(rule.free_space_above)}",
        )
    if rule.quota_usage_above is None:
        return Decision(
            False,
            "BelowThreshold",
            f"{free_text}, not more than freeSpaceAbove {format_bytes(rule.free_space_above)}",
        )
    if sizes.quota is None:
        return Decision(False, "BelowThreshold", f"{free_text}; the member has no quota")
    usage = f"{format_bytes(sizes.db_size)} of {format_bytes(sizes.quota)} quota"
    threshold = f"{float(rule.quota_usage_above):.0%}"
    if sizes.db_size <= rule.quota_usage_above * sizes.quota:
        return Decision(False, "BelowThreshold", f"{free_text}; {usage} is not over {threshold}")
    if free < rule.min_reclaim:
        return Decision(
            False,
            "BelowThreshold",
            f"{free_text}, less than minReclaim {format_bytes(rule.min_reclaim)}; {usage}",
        )
    return Decision(True, "QuotaUsageAbove", f"{free_text}; {usage} is over {threshold}")


def still_due(rule: Rule, sizes: MemberSizes) -> bool:
    """The rule again after an interruption (D36): `all` counts as over 10 % of the file reclaimable."""
    if rule.all:
        return sizes.reclaimable * 10 > sizes.db_size
    return evaluate(rule, sizes).due


def effective_quota(status: int, *fallbacks: int | None) -> int | None:
    """The quota of a member in bytes, None for none (D21).

    `status` is StatusResponse.dbSizeQuota: positive is the quota, negative none at all, 0 unknown. The
    fallbacks are asked in their order (the member's metrics, the EtcdMember's option, the cluster's, the
    connection's); the last resort is etcd's own default.
    """
    for value in (status, *fallbacks):
        if value:
            return value if value > 0 else None
    return DEFAULT_QUOTA_BYTES


def lacking_room(sizes: MemberSizes, volume_size: int) -> str | None:
    """Why the volume has too little room for the copy that Defragment writes, or None (D24)."""
    reserve = min(512 * MIB, volume_size // 10)
    needed = sizes.db_size + sizes.db_size_in_use * 11 // 10 + reserve
    if needed <= volume_size:
        return None
    return (
        f"the file ({format_bytes(sizes.db_size)}), its copy ({format_bytes(sizes.db_size_in_use)} in "
        f"use and a tenth) and a reserve of {format_bytes(reserve)} need {format_bytes(needed)}, the "
        f"volume has {format_bytes(volume_size)}"
    )


def member_timeout(db_size_in_use: int) -> float:
    """Seconds that one Defragment may take: 30 s and 10 MB/s, 60 s to 30 min (D33)."""
    return min(MEMBER_TIMEOUT_CAP, max(MEMBER_TIMEOUT_FLOOR, 30.0 + db_size_in_use / 10_000_000))
