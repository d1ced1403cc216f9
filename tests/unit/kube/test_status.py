"""The record of a run as a status, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.api.conditions import find_condition
from etcdmaint.defrag.run import IN_FLIGHT, MemberRow, Outcome, Phase, Role, RunState
from etcdmaint.kube.status import read_state, rows_lack_ids, write_state
from etcdmaint.kube.verdict import merge_patch

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
LATER = datetime(2026, 3, 4, 5, 9, 7, tzinfo=UTC)

sizes = st.none() | st.integers(0, 2**50)
words = st.text("abcDEF: .,%", min_size=1, max_size=20).map(str.strip).filter(bool)
times = st.none() | st.integers(0, 2**31).map(lambda s: datetime.fromtimestamp(s, UTC))
rows = st.builds(
    MemberRow,
    name=words,
    member_id=st.integers(1, 2**64 - 1),
    role=st.none() | st.sampled_from(Role),
    outcome=st.sampled_from(Outcome),
    reason=st.sampled_from(["", IN_FLIGHT, "BelowThreshold"]),
    message=st.just("") | words,
    db_size_before=sizes,
    db_size_in_use_before=sizes,
    quota_bytes=sizes,
    db_size_after=sizes,
    reclaimed_bytes=st.none() | st.integers(-(2**40), 2**40),
    started_at=times,
    finished_at=times,
)


def obj(status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "now", "generation": 1}, "status": status or {}}


@given(
    st.builds(
        RunState,
        phase=st.sampled_from([Phase.PENDING, Phase.RUNNING]),
        reason=st.sampled_from(["Queued", "Paused", "Running"]),
        message=words.map(lambda text: " ".join(text.split())),
        rows=st.lists(rows, unique_by=lambda row: row.name, max_size=4).map(tuple),
        notes=st.lists(words.map(lambda t: " ".join(t.split())), max_size=3).map(tuple),
        started_at=times,
    )
)
def test_what_is_written_of_an_unfinished_run_is_read_back_as_it_was(state: RunState) -> None:
    """D2: a successor starts from exactly what its predecessor knew."""
    assert read_state(obj(write_state(obj(), state, NOW))) == state


def test_writing_the_same_again_changes_nothing() -> None:
    """Nothing is written that says what stands there already, whenever it is."""
    state = RunState(phase=Phase.RUNNING, reason="Running", message="m", started_at=NOW)
    before = write_state(obj(), state, NOW)
    assert merge_patch(before, write_state(obj(before), state, LATER)) == {}


def test_a_finished_run_has_the_condition_that_kubectl_waits_for() -> None:
    """D1: Complete or Failed, as Job has them, and Progressing is over."""
    row = MemberRow(
        name="a", member_id=1, outcome=Outcome.DEFRAGMENTED, reclaimed_bytes=1_300_000_000
    )
    state = RunState(
        phase=Phase.COMPLETE, reason="Complete", message="done", rows=(row,), completed_at=NOW
    )
    status = write_state(obj(), state, NOW)
    assert status["phase"] == "Complete"
    assert status["defragmented"] == 1
    assert status["reclaimed"] == "1.2Gi"
    assert status["completedAt"] == "2026-03-04T05:06:07Z"
    complete = find_condition(status["conditions"], "Complete")
    progressing = find_condition(status["conditions"], "Progressing")
    assert complete is not None
    assert complete["status"] == "True"
    assert progressing is not None
    assert progressing["status"] == "False"
    assert find_condition(status["conditions"], "Failed") is None
    again = read_state(obj(status))
    assert (again.phase, again.reason, again.message) == (Phase.COMPLETE, "Complete", "done")


def test_a_transition_time_moves_only_when_the_status_flips() -> None:
    waiting = RunState(phase=Phase.PENDING, reason="Queued", message="waits for a")
    first = write_state(obj(), waiting, NOW)
    second = write_state(obj(first), RunState(phase=Phase.PENDING, reason="Paused"), LATER)
    running = write_state(obj(second), RunState(phase=Phase.RUNNING, reason="Running"), LATER)
    moved = [s["conditions"][0]["lastTransitionTime"] for s in (first, second, running)]
    assert moved == ["2026-03-04T05:06:07Z"] * 2 + ["2026-03-04T05:09:07Z"]


def test_a_member_that_grew_is_recorded_as_it_is_and_an_unknown_size_stays_away() -> None:
    """D35."""
    grown = MemberRow(name="a", member_id=1, outcome=Outcome.DEFRAGMENTED, reclaimed_bytes=-5)
    unknown = MemberRow(
        name="b", member_id=2, outcome=Outcome.DEFRAGMENTED, reason="AfterSizeUnavailable"
    )
    status = write_state(
        obj(), RunState(phase=Phase.RUNNING, reason="Running", rows=(grown, unknown)), NOW
    )
    assert status["members"][0]["reclaimedBytes"] == -5
    assert "dbSizeAfter" not in status["members"][1]
    assert status["members"][0]["memberID"] == "0000000000000001"


def test_rows_of_the_older_crd_get_their_ids_by_name_and_strangers_one_that_nobody_has() -> None:
    status = {
        "phase": "Running",
        "members": [
            {"name": "a", "outcome": "Defragmented"},
            {"name": "b", "outcome": "Pending", "reason": "InFlight"},
        ],
    }
    assert rows_lack_ids(obj(status))
    state = read_state(obj(status), {"a": 77})
    assert [row.member_id for row in state.rows] == [77, 2]
    assert state.rows[1].in_flight


def test_a_status_that_somebody_has_scribbled_on_is_read_without_an_error() -> None:
    """D52: it is anybody's who has the subresource."""
    scribbled: list[Any] = [
        {},
        {"phase": 7},
        {"phase": "Dreaming", "members": "x", "conditions": [1, {"type": 2}]},
        {"members": [{"name": "a", "outcome": "?", "memberID": "zz", "dbSizeBefore": "big"}]},
    ]
    for status in scribbled:
        assert read_state(obj(status)).phase is Phase.NEW
    assert read_state({}).phase is Phase.NEW


def test_what_is_no_more_is_taken_away_by_the_patch() -> None:
    assert merge_patch({"a": 1, "b": 2}, {"b": 3}) == {"a": None, "b": 3}
    assert merge_patch(None, {"b": 3}) == {"b": 3}
