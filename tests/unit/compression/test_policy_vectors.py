"""Every vector of the configuration file: verdicts, lookups, and what becomes a frame."""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.compression.policy import Policy, Problem, Stage, problems
from etcdmaint.errors import InvalidInput

from .vectors import parameters


def load(case: dict[str, Any]) -> Policy:
    return Policy.load(
        case["config"].encode(),
        stage=Stage(case["stage"]),
        min_compatibility_version=case["min_compatibility_version"],
    )


def faults(case: dict[str, Any]) -> tuple[Problem, ...]:
    return problems(
        case["config"].encode(),
        stage=Stage(case["stage"]),
        min_compatibility_version=case["min_compatibility_version"],
    )


@pytest.mark.parametrize("case", parameters("policy", verdict="valid"))
def test_a_good_file_gives_every_resource_its_rule(case: dict[str, Any]) -> None:
    """R102 to R108, R111 to R113, R116 to R123, R126, R176, A3, A4, A11, A16, A17."""
    policy = load(case)

    assert faults(case) == ()
    assert bool(policy.warnings) is case["warns_about_secrets"]
    for row in case["lookups"]:
        rule = policy.rule_for(row["group"], row["resource"])
        assert rule.entry == row["entry"], row
        assert rule.algorithm == row["algorithm"], row
        assert rule.min_size == row["min_size"], row
        assert rule.rewrite == row["rewrite"], row


@pytest.mark.parametrize("case", parameters("policy", verdict="invalid"))
def test_a_bad_file_is_refused_with_the_path_of_the_fault(case: dict[str, Any]) -> None:
    """R11, R83, R102 to R110, R116, R125, R182, A20."""
    found = faults(case)

    assert found
    if case["field"] is not None:
        assert any(problem.field.startswith(case["field"]) for problem in found), found
    with pytest.raises(InvalidInput) as refusal:
        load(case)
    assert all(problem.fault in str(refusal.value) for problem in found)


@pytest.mark.parametrize("case", parameters("policy", verdict="either"))
def test_where_the_documents_leave_it_open_a_refusal_names_the_field(case: dict[str, Any]) -> None:
    """R83, R110, R112, A11, A20: the open ones are decided, and the decision is told."""
    accepted = {
        "a resource of the internal allocators",
        "a resource of the removed group extensions",
    }
    found = faults(case)

    assert (found == ()) is (case["name"] in accepted)
    assert all(problem.field.startswith(case["field"]) for problem in found)


@pytest.mark.parametrize("case", parameters("policy", kind="decision"))
def test_first_byte_length_and_policy_decide_what_is_a_frame_and_what_is_stale(
    case: dict[str, Any],
) -> None:
    """R33 to R36, R40, R41, R44, R45, R47, R53, R55, R59, R177, R178, A3, A17."""
    policy = load(case)

    assert case["decisions"]
    for row in case["decisions"]:
        rule = policy.rule_for(row["group"], row["resource"])
        plaintext = (b"\x00" if row["leading_zero"] else b"k") * row["length"]
        assert rule.frames(plaintext) is row["framed"], row
        assert rule.stale(True, plaintext) is row["stale_if_framed"], row
        if "stale_if_bare" in row:
            assert rule.stale(False, plaintext) is row["stale_if_bare"], row
