"""The rule from flags: the table of the EtcdDefrag page, and its contradictions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from etcdmaint.cli.rule_flags import rule_from
from etcdmaint.defrag.rule import MIB, Rule
from etcdmaint.errors import InvalidInput


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ({}, Rule(free_space_above=200 * MIB, min_reclaim=32 * MIB)),
        ({"all_members": True}, Rule(all=True)),
        ({"free_space_above": 16 * MIB}, Rule(free_space_above=16 * MIB, min_reclaim=16 * MIB)),
        (
            {"quota_usage_above": Fraction(4, 5)},
            Rule(quota_usage_above=Fraction(4, 5), min_reclaim=32 * MIB),
        ),
        (
            {"quota_usage_above": Fraction(4, 5), "min_reclaim": 200 * MIB},
            Rule(quota_usage_above=Fraction(4, 5), min_reclaim=200 * MIB),
        ),
    ],
    ids=str,
)
def test_flags_that_are_left_out_have_the_pages_defaults(flags: dict[str, Any], rule: Rule) -> None:
    """D20: an omitted minReclaim is min(32Mi, freeSpaceAbove)."""
    assert rule_from(**flags) == rule


@pytest.mark.parametrize(
    ("flags", "field", "words"),
    [
        (
            {"all_members": True, "free_space_above": MIB},
            "--all",
            "--rule-free-space-above",
        ),
        (
            {"all_members": True, "quota_usage_above": Fraction(1, 2)},
            "--all",
            "--rule-quota-usage-above",
        ),
        ({"all_members": True, "min_reclaim": MIB}, "--all", "--rule-min-reclaim"),
        ({"min_reclaim": MIB}, "--rule-min-reclaim", "--rule-quota-usage-above"),
        (
            {"quota_usage_above": Fraction(1, 2), "min_reclaim": 201 * MIB},
            "--rule-min-reclaim",
            "201Mi is more than --rule-free-space-above 200Mi (the default)",
        ),
        (
            {
                "quota_usage_above": Fraction(1, 2),
                "free_space_above": MIB,
                "min_reclaim": MIB + 1,
            },
            "--rule-min-reclaim",
            "more than --rule-free-space-above 1Mi;",
        ),
    ],
    ids=str,
)
def test_a_contradiction_names_both_flags(flags: dict[str, Any], field: str, words: str) -> None:
    """D20."""
    with pytest.raises(InvalidInput) as caught:
        rule_from(**flags)
    assert caught.value.field == field
    assert words in caught.value.fault
