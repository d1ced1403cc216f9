"""What Prometheus' own linter says of a scrape."""

from __future__ import annotations

import subprocess

import pytest

from tests.controlplane import build


def complaints(scrape: str) -> str:
    """Everything that `promtool check metrics` says; skips the test where there is no promtool."""
    promtool = build.find("promtool")
    if promtool is None:
        pytest.skip(
            "no promtool: it is neither on the PATH (Debian's package prometheus has it) nor built "
            "(python -m tests.controlplane.build promtool)"
        )
    done = subprocess.run(
        [str(promtool), "check", "metrics"],
        input=scrape,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    return said if done.returncode == 0 else f"exit code {done.returncode}: {said}"
