"""What `etcdmaint compact once` says of a round; tests/etcd/test_compaction_cli.py has real ones."""

from __future__ import annotations

import pytest

from etcdmaint.cli.compact import _tell
from etcdmaint.cli.exits import ExitCode
from etcdmaint.compaction.election import Result, Round, State


@pytest.mark.parametrize(
    ("held", "code", "text"),
    [
        (Round(Result.LOST, State(3, 90), 70), ExitCode.DONE, "compacts to revision 70"),
        (Round(Result.LOST, State(0, 90)), ExitCode.DONE, "changed or deleted the key"),
        (Round(Result.LOST, State(), new_world=True), ExitCode.FAILED, "is younger now"),
        (
            Round(Result.BOOTSTRAP, State(), new_world=True),
            ExitCode.FAILED,
            "nothing was compacted",
        ),
    ],
)
def test_a_round_that_compacts_nothing_says_why(
    held: Round, code: ExitCode, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """C9, C10, C11, C15."""
    assert _tell(held, State(2, 80)) == code
    said = capsys.readouterr()
    assert text in said.out + said.err
