"""The page about the command line says what the commands say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_reference_page_is_the_generated_one() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_cli_reference.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run `make docs`"


def test_the_page_has_every_flag_and_every_exit_code() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    for word in (
        "--endpoints",
        "ETCDCTL_PASSWORD",
        "--rule-free-space-above",
        "--break-lock",
        "--max-concurrent-runs",
        "| 130 | interrupted, also by SIGTERM |",
    ):
        assert word in page
