"""The rule of a run from flags: the same table and the same refusals as EtcdDefrag's, naming flags."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etcdmaint.cli.parameters import PERCENT, SIZE
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.defrag.rule import Rule

Command = TypeVar("Command", bound=Callable[..., Any])


def with_rule_flags(command: Command, *, quota_usage: str | None = None) -> Command:
    """Give a click command the flags that `rule_from` takes; `quota_usage` is its default there."""
    for flag in (
        click.option(
            "--rule-min-reclaim",
            "min_reclaim",
            type=SIZE,
            show_default="32Mi, or --rule-free-space-above if that is less",
            help="The least that is worth it under --rule-quota-usage-above.",
        ),
        click.option(
            "--rule-quota-usage-above",
            "quota_usage_above",
            type=PERCENT,
            show_default=quota_usage,
            help="From this share of its quota on, give back as little as --rule-min-reclaim too.",
        ),
        click.option(
            "--rule-free-space-above",
            "free_space_above",
            type=SIZE,
            show_default="200Mi",
            help="Defragment a member that would give back more than this.",
        ),
    ):
        command = flag(command)
    return command


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
    from etcdmaint.defrag.rule import DEFAULT_FREE_SPACE_ABOVE, DEFAULT_MIN_RECLAIM, Rule

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
