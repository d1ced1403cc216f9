from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.api.conditions import (
    MAX_MESSAGE,
    condition_is,
    find_condition,
    set_condition,
)

NOON = datetime(2026, 11, 29, 12, 0, 0, 999999, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def healthy(
    before: Any = (), status: bool | None = True, reason: str = "Fine", at: datetime = NOON
) -> list[dict[str, Any]]:
    return set_condition(before, "Healthy", status, reason, "all is well", 3, at)


def test_a_new_condition_is_complete() -> None:
    assert healthy() == [
        {
            "type": "Healthy",
            "status": "True",
            "reason": "Fine",
            "message": "all is well",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-29T12:00:00Z",
        }
    ]


def test_the_same_again_gives_an_equal_list_so_that_nothing_is_written() -> None:
    assert healthy(healthy(), at=LATER) == healthy()


@pytest.mark.parametrize("status", [True, False, None])
def test_the_transition_time_stays_while_the_status_stays(status: bool | None) -> None:
    (entry,) = healthy(healthy(status=status), status, "Other", LATER)
    assert entry["lastTransitionTime"] == "2026-11-29T12:00:00Z"
    assert entry["reason"] == "Other"


@pytest.mark.parametrize("status", [False, None])
def test_the_transition_time_moves_when_the_status_flips(status: Any) -> None:
    (entry,) = healthy(healthy(), status, "Other", LATER)
    assert entry["lastTransitionTime"] == "2026-11-29T13:00:00Z"


def test_other_conditions_stay_as_they_are_and_where_they_are() -> None:
    other = {"type": "Reachable", "status": "False", "lastTransitionTime": "x", "extra": 1}
    assert healthy([other])[0] == other
    both = set_condition(healthy([other]), "Reachable", True, "Yes", "", 1, NOON)
    assert [entry["type"] for entry in both] == ["Reachable", "Healthy"]


def test_what_is_no_condition_and_what_is_there_twice_is_left_out() -> None:
    rubbish: list[Any] = [None, 5, "x", [], {}, {"type": 5}, {"type": "A"}, {"type": "A", "b": 1}]
    assert [entry["type"] for entry in healthy(rubbish)] == ["A", "Healthy"]


@pytest.mark.parametrize("since", [None, 5, "", "yesterday", "2026-02-31T00:00:00Z"])
def test_an_unreadable_transition_time_becomes_now(since: Any) -> None:
    before = [{"type": "Healthy", "status": "True", "lastTransitionTime": since}]
    assert healthy(before) == healthy()


def test_a_transition_time_in_another_zone_is_written_in_utc() -> None:
    east = datetime(2026, 11, 29, 14, 0, 0, tzinfo=timezone(timedelta(hours=2)))
    assert healthy(at=east) == healthy()


def test_a_long_message_is_cut() -> None:
    (entry,) = set_condition((), "Healthy", False, "Bad", "x" * 50_000, 1, NOON)
    assert len(entry["message"]) == MAX_MESSAGE


@pytest.mark.parametrize("reason", ["", "has space", "5Fives", "Trailing:", "Ümlaut", "A\n"])
def test_a_reason_that_the_api_server_would_refuse_is_a_mistake_of_the_caller(reason: str) -> None:
    with pytest.raises(ValueError, match="reason"):
        healthy(reason=reason)


def test_the_input_is_never_changed() -> None:
    before = healthy()
    copy = [dict(entry) for entry in before]
    healthy(before, False, at=LATER)
    assert before == copy


@settings(max_examples=50)
@given(st.lists(st.none() | st.dictionaries(st.sampled_from(["type", "status"]), st.text())))
def test_any_list_gives_one_entry_a_type(before: list[Any]) -> None:
    types = [entry["type"] for entry in healthy(before)]
    assert len(types) == len(set(types))
    assert "Healthy" in types


def test_a_condition_is_found_and_asked() -> None:
    conditions = [None, *healthy()]
    assert find_condition(conditions, "Healthy") == healthy()[0]
    assert find_condition(conditions, "Reachable") is None
    assert condition_is(conditions, "Healthy", True)
    assert not condition_is(conditions, "Healthy", False)
    assert not condition_is(healthy(status=None), "Healthy", True)
    assert not condition_is(healthy(status=None), "Healthy", False)
    assert not condition_is(conditions, "Reachable", True)
