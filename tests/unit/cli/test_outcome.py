"""How a run's result is told at a terminal."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.outcome import CODES, as_document, exit_code, show, verdict
from etcdmaint.defrag.run import Ending, MemberRow, Outcome, Phase, Role, RunResult, RunState

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
DONE = MemberRow(
    name="etcd-0",
    member_id=1,
    role=Role.FOLLOWER,
    outcome=Outcome.DEFRAGMENTED,
    message="240Mi reclaimable; done in 2.5 s",
    db_size_before=480 << 20,
    db_size_in_use_before=240 << 20,
    db_size_after=240 << 20,
    reclaimed_bytes=240 << 20,
    quota_bytes=2 << 30,
    started_at=NOON,
    finished_at=NOON + timedelta(seconds=2.5),
)
SKIPPED = MemberRow(
    name="etcd-1",
    member_id=2,
    role=Role.LEADER,
    outcome=Outcome.SKIPPED,
    reason="BelowThreshold",
    message="1Mi reclaimable",
    db_size_before=480 << 20,
)


def result(ending: Ending = Ending.DONE, **changes: object) -> RunResult:
    """A result with two members."""
    state = RunState(phase=Phase.COMPLETE, reason="Complete", message="m", rows=(DONE, SKIPPED))
    from dataclasses import replace

    return RunResult(replace(state, **changes), ending)  # type: ignore[arg-type]


def test_every_ending_has_the_documented_exit_code() -> None:
    """Issue 3, section 4; D41: 6 with an alarm left; D64: 5 for somebody else's work."""
    assert {ending: int(code) for ending, code in CODES.items()} == {
        Ending.DONE: 0,
        Ending.FAILED: 1,
        Ending.DEFERRED: 3,
        Ending.UNSAFE: 4,
        Ending.HELD: 5,
        Ending.ALARM_LEFT: 6,
        Ending.STOPPED: 130,
    }
    assert set(CODES) == set(Ending)


def test_the_table_has_each_member_and_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(message="1 of 2 members defragmented, 240Mi reclaimed"), "table")
    head, done, skipped, _, total = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "MEMBER",
        "ROLE",
        "OUTCOME",
        "BEFORE",
        "AFTER",
        "RECLAIMED",
        "TOOK",
        "WHY",
    ]
    assert done.split()[:7] == [
        "etcd-0",
        "follower",
        "Defragmented",
        "480Mi",
        "240Mi",
        "240Mi",
        "2.5s",
    ]
    assert "BelowThreshold: 1Mi reclaimable" in skipped
    assert total == "1 of 2 members defragmented, 240Mi reclaimed"


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED])
def test_a_run_that_did_not_end_well_has_its_sum_too(
    phase: Phase, capsys: pytest.CaptureFixture[str]
) -> None:
    show(result(Ending.STOPPED, phase=phase, message="never mind"), "table")
    total = capsys.readouterr().out.splitlines()[-1]
    assert total == "1 of 2 members defragmented, 240Mi reclaimed"


def test_a_run_that_never_began_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(Ending.DEFERRED, phase=Phase.FAILED, rows=()), "table")
    assert capsys.readouterr().out == ""


def test_json_has_the_words_of_an_etcddefrags_status(capsys: pytest.CaptureFixture[str]) -> None:
    show(result(started_at=NOON), "json")
    document = json.loads(capsys.readouterr().out)
    assert document == as_document(result(started_at=NOON))
    assert document["exitCode"] == 0
    assert document["defragmented"] == 1
    assert document["reclaimedBytes"] == 240 << 20
    assert document["startedAt"] == "2026-05-04T12:00:00+00:00"
    assert document["members"][0] == {
        "name": "etcd-0",
        "memberID": "0000000000000001",
        "role": "follower",
        "outcome": "Defragmented",
        "reason": "",
        "message": "240Mi reclaimable; done in 2.5 s",
        "dbSizeBefore": 480 << 20,
        "dbSizeInUseBefore": 240 << 20,
        "quotaBytes": 2 << 30,
        "dbSizeAfter": 240 << 20,
        "reclaimedBytes": 240 << 20,
        "startedAt": "2026-05-04T12:00:00+00:00",
        "finishedAt": "2026-05-04T12:00:02.500000+00:00",
    }
    assert document["members"][1]["dbSizeAfter"] is None


@pytest.mark.parametrize(
    ("ending", "changes", "words"),
    [
        (Ending.FAILED, {"message": "member etcd-0: RPCTimeout"}, ["RPCTimeout"]),
        (Ending.DEFERRED, {"message": "etcd-1 is away."}, ["etcd-1 is away;", "--wait"]),
        (Ending.UNSAFE, {"message": "etcd 3.5.0 loses data"}, ["3.5.0", "upgrade", "--allow-un"]),
        (Ending.HELD, {"message": "held by ops@host"}, ["ops@host", "--break-lock", "--wait"]),
        (Ending.ALARM_LEFT, {"notes": ("NOSPACE stays armed",)}, ["NOSPACE stays armed"]),
        (Ending.STOPPED, {}, ["stopped as asked"]),
    ],
)
def test_whatever_did_not_simply_work_ends_with_a_sentence(
    ending: Ending, changes: dict[str, object], words: list[str]
) -> None:
    told = verdict(result(ending, **changes))
    for word in words:
        assert word in told
    assert "\n" not in told


def test_what_worked_needs_no_last_sentence() -> None:
    assert verdict(result()) == ""
    assert exit_code(result()) is ExitCode.DONE
