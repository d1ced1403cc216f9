"""The page about the command line says what the commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_reference_page_is_the_generated_one() -> None:
    script = ROOT / "scripts" / "generate_cli_reference.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
