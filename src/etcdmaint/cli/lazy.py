"""A group of commands whose modules are imported only when they are called.

`etcdmaint --help` must answer at once, and `etcdmaint status` must not pay for the operator's
frameworks. So the group knows one line about each command, and where it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is, and the line about it in the list."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for.

    etcdctl takes its connection flags before the command as well as after it. So does this group:
    `leading` are the flags that it moves behind the command, and that only the command explains.
    """

    def __init__(
        self,
        *arguments: Any,
        lazy: Mapping[str, Lazy],
        leading: tuple[click.Option, ...] = (),
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        # An installation may lack what is of no use in it.
        self.lazy = {name: each for name, each in lazy.items() if find_spec(each.module)}
        self._leading = leading

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which people meet them."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        found = self.lazy.get(cmd_name)
        if found is None:
            return None
        command = getattr(importlib.import_module(found.module), found.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.summary) for name, found in self.lazy.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move connection flags that stand before the command behind it."""
        if self._leading and args and args[0].startswith("-"):
            head, rest = self._split(ctx, args)
            if own := [word for word in head if word in ("-h", "--help", "--version")]:
                args = own
            elif rest:
                args = [rest[0], *head, *rest[1:]]
        return super().parse_args(ctx, args)

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Everything before the first word that is no flag and no flag's value, and the rest."""
        parser = self.make_parser(ctx)
        for option in self._leading:
            option.add_to_parser(parser, ctx)
        _, rest, _ = parser.parse_args(list(args))
        return args[: len(args) - len(rest)], rest
