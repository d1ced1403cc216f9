"""The command line as a fixture."""

from __future__ import annotations

import pytest

from .commandline import CommandLine


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs `etcdmaint` in this process."""
    return CommandLine(capsys, monkeypatch)
