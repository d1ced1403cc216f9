"""What a rescue says that does not begin."""

from __future__ import annotations

import pytest

from etcdmaint.cli.rescue_report import refuse
from etcdmaint.defrag.rescue import Findings
from etcdmaint.defrag.run import Ending


@pytest.mark.parametrize(
    ("ending", "refusal", "told", "code"),
    [
        (
            Ending.DEFERRED,
            "member etcd-1: connection refused. nothing was touched",
            "not now: member etcd-1: connection refused; nothing was touched\n",
            3,
        ),
        (
            Ending.HELD,
            "held by a@b",
            "not now: held by a@b; nothing was touched; --break-lock takes it if they are gone for good\n",
            5,
        ),
    ],
)
def test_a_rescue_that_is_refused_says_why_and_once_that_nothing_was_touched(
    capsys: pytest.CaptureFixture[str], ending: Ending, refusal: str, told: str, code: int
) -> None:
    assert refuse(Findings(ending, refusal)) == code
    assert capsys.readouterr().err == f"etcdmaint: {told}"
