"""What a person sees while a sweep goes on."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from etcdmaint.cli.output import print_line, print_note, print_table
from etcdmaint.cli.progress import LiveProgress, Progress, open_progress
from etcdmaint.clock import SystemClock
from etcdmaint.defrag.run import (
    IN_FLIGHT,
    MemberRow,
    MemberTurn,
    Outcome,
    Phase,
    Role,
    RunState,
    Severity,
)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


class Watch:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


ROW = MemberRow(
    name="etcd-1",
    member_id=2,
    role=Role.FOLLOWER,
    reason=IN_FLIGHT,
    db_size_before=480 << 20,
    db_size_in_use_before=240 << 20,
    started_at=NOON,
)
TURN = MemberTurn(
    row=ROW,
    position=2,
    total=3,
    expected_seconds=2.5,
    timeout_seconds=60.0,
    endpoint="http://b:2379",
)
DONE = replace(
    TURN,
    row=replace(
        ROW,
        outcome=Outcome.DEFRAGMENTED,
        db_size_after=240 << 20,
        reclaimed_bytes=240 << 20,
        finished_at=NOON + timedelta(seconds=2.4),
    ),
)


def test_plain_lines_tell_size_expectation_and_what_comes_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issue 3, section 4: which member, its size, elapsed against expected, what happens next."""
    watch = Watch()
    progress = Progress(watch)
    progress.turn(TURN)
    assert progress.current == TURN
    watch.seconds += 10
    progress.tick()
    progress.turn(DONE)
    assert progress.current is None
    progress.tick()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        (
            "etcd-1 (2 of 3, follower, 480Mi with 240Mi in use): defragmenting, about 2.5s; "
            "then the cluster settles, and one member is left"
        ),
        "etcd-1: 10s of about 2.5s, given up on after 1m",
        "etcd-1: 480Mi → 240Mi, 240Mi reclaimed in 2.4s",
    ]


def test_the_last_turn_is_followed_by_the_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(Watch()).turn(replace(TURN, position=3))
    assert "then the alarms are looked at and the run is over" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            replace(ROW, outcome=Outcome.FAILED, reason="RPCTimeout", message="no answer"),
            "etcd-1: Failed, RPCTimeout: no answer",
        ),
        (
            replace(DONE.row, db_size_after=None, reclaimed_bytes=None),
            "etcd-1: defragmented in 2.4s; its size is not known yet",
        ),
        (
            replace(DONE.row, db_size_after=481 << 20, reclaimed_bytes=-(1 << 20)),
            "etcd-1: 480Mi → 481Mi, -1Mi reclaimed in 2.4s",
        ),
    ],
    ids=["failed", "size unknown", "grown"],
)
def test_a_turn_that_went_otherwise_says_how(
    row: MemberRow, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Progress(Watch()).turn(replace(TURN, row=row))
    assert capsys.readouterr().err == line + "\n"


def test_events_are_told_once_and_warnings_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Watch())
    progress.event(Severity.NORMAL, "LeadershipTransferred", "leadership moved")
    progress.event(Severity.WARNING, "DefragDeferred", "etcd-2 is away")
    progress.event(Severity.NORMAL, "MemberDefragmented", "its turn says so already")
    progress.event(Severity.NORMAL, "Complete", "the result says so")
    assert capsys.readouterr().err.splitlines() == ["leadership moved", "warning: etcd-2 is away"]


def test_plain_progress_is_used_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    progress = open_progress(SystemClock())
    assert type(progress) is Progress
    progress.state(RunState(reason="Queued", message="waits"))
    progress.close()
    assert capsys.readouterr().err == ""


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm")])
def test_a_terminal_gets_plain_text_where_it_asks_for_it(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(*variable)
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    print_table(("A",), [("b",)])
    assert ("\x1b" in screen.getvalue()) == (variable[1] == "xterm")
    monkeypatch.setattr("sys.stderr", Screen())
    progress = open_progress(SystemClock())
    progress.close()
    assert isinstance(progress, LiveProgress) == (variable[1] != "dumb")


def test_a_terminal_that_has_gone_away_does_not_stop_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stderr", Gone())
    Progress(Watch()).turn(TURN)


def live(watch: Watch) -> tuple[LiveProgress, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, highlight=False, markup=False)
    return LiveProgress(watch, console), screen


def test_a_terminal_shows_elapsed_against_expected_and_what_comes_next() -> None:
    watch = Watch()
    progress, screen = live(watch)
    progress.turn(TURN)
    watch.seconds += 1.25
    progress.tick()
    shown = screen.getvalue()
    progress.close()
    assert "██████████░░░░░░░░░░ etcd-1 (2 of 3): 1.2s of about 2.5s" in shown
    assert "then the cluster settles" in shown


def test_a_terminal_shows_what_the_run_waits_for() -> None:
    progress, screen = live(Watch())
    progress.state(RunState(phase=Phase.RUNNING, reason="RaftLag", message="etcd-2 is behind"))
    progress.tick()
    progress.close()
    assert "waiting: etcd-2 is behind" in screen.getvalue()


def test_the_terminal_is_given_back_with_its_cursor() -> None:
    progress, screen = live(Watch())
    progress.close()
    assert screen.getvalue().rfind("\x1b[?25h") > screen.getvalue().rfind("\x1b[?25l")


def test_what_comes_from_etcd_cannot_steer_the_terminal() -> None:
    progress, screen = live(Watch())
    progress.event(Severity.NORMAL, "Running", "evil \x1b[2J [red]name[/red]")
    progress.close()
    assert "\x1b[2J" not in screen.getvalue()
    assert "[red]name[/red]" in screen.getvalue()


def test_each_line_of_a_result_reaches_a_pipe_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compact watch | grep …` has minutes between two of them."""
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe))
    print_line("round 3")
    assert pipe.getvalue() == b"round 3\n"


def test_a_note_that_nobody_can_hear_does_not_end_a_command() -> None:
    """Its exit code is that of what it did, also where standard error is a log on a full disk."""
    with open("/dev/full", "w") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", full)
        print_note("waits")
        with contextlib.suppress(OSError):
            full.flush()
        patch.undo()
        with contextlib.suppress(OSError):
            full.close()
