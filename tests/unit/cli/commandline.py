"""Runs the command line in this process, as a shell would see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click
import pytest

from etcdmaint.cli import main


@dataclass(frozen=True, slots=True)
class Said:
    """What a command line wrote, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def everything(self) -> str:
        return self.out + self.err


class CommandLine:
    """Calls `etcdmaint`; the environment has no ETCDCTL_ variable but those that are given."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Said:
        with self._monkeypatch.context() as patch:
            for name in CONNECTION_VARIABLES:
                patch.delenv(name, raising=False)
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            code = main.run(arguments)
        captured = self._capsys.readouterr()
        return Said(code, captured.out, captured.err)


CONNECTION_VARIABLES = tuple(
    variable
    for flag in main.CONNECTION_FLAGS
    for variable in ([flag.envvar] if isinstance(flag.envvar, str) else [])
)


def one_sentence(said: Said) -> str:
    """The one line on standard error; fails on a traceback or on anything more."""
    assert "Traceback" not in said.everything
    # click ends the line that a Ctrl-C was typed on.
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    return lines[0]


def echo(text: str) -> click.Command:
    """A command that says something."""
    return click.Command("echo", callback=lambda: print(text))
