"""The rule of a run from flags: the same table and the same refusals as EtcdDefrag's, naming flags."""

from __future__ import annotations

from fractions import Fraction

from etcdmaint.defrag.rule import DEFAULT_FREE_SPACE_ABOVE, DEFAULT_MIN_RECLAIM, Rule
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import format_bytes


def rule_from(
    *,
    all_members: bool = False,
    free_space_above: int | None = None,
    quota_usage_above: Fraction | None = None,
    min_reclaim: int | None = None,
) -> Rule:
    """Put the rule together (D20); bytes, and a fraction of the quota.

    Raises InvalidInput where flags contradict each other.
    """
    if all_members:
        for flag, value in (
            ("--rule-free-space-above", free_space_above),
            ("--rule-quota-usage-above", quota_usage_above),
            ("--rule-min-reclaim", min_reclaim),
        ):
            if value is not None:
                raise InvalidInput(
                    "--all", f"defragments every member, so {flag} has no place by it"
                )
        return Rule(all=True)
    floor = DEFAULT_FREE_SPACE_ABOVE if free_space_above is None else free_space_above
    if min_reclaim is None:
        min_reclaim = min(DEFAULT_MIN_RECLAIM, floor)
    elif quota_usage_above is None:
        raise InvalidInput(
            "--rule-min-reclaim", "means something only with --rule-quota-usage-above"
        )
    elif min_reclaim > floor:
        default = " (the default)" if free_space_above is None else ""
        raise InvalidInput(
            "--rule-min-reclaim",
            f"{format_bytes(min_reclaim)} is more than --rule-free-space-above "
            f"{format_bytes(floor)}{default}; it must not be",
        )
    return Rule(
        free_space_above=floor, quota_usage_above=quota_usage_above, min_reclaim=min_reclaim
    )
