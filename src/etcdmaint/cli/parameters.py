"""How flags are read: sizes, shares and durations, by the parsers that read custom resources."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import parse_bytes, parse_duration, parse_percent, quoted

T = TypeVar("T")

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([-+.][0-9A-Za-z.+-]+)?")

if TYPE_CHECKING:
    # Generic only in the newest releases of click.
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class Duration(ParamType):
    """A Go duration such as 5s or 1h30m, in seconds; `zero` says whether 0s is one."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        seconds = _parsed(parse_duration, value, param, ctx)
        if seconds < 0 or (seconds == 0 and not self._zero):
            _fail(f"must be {'at least' if self._zero else 'more than'} 0s", param, ctx)
        return seconds


class Size(ParamType):
    """A Kubernetes quantity such as 200Mi, in bytes, more than nothing."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        size = _parsed(parse_bytes, value, param, ctx)
        if size <= 0:
            _fail("must be more than 0", param, ctx)
        return size


class Percent(ParamType):
    """A whole percentage from 1% to 99%."""

    name = "percent"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        """A fraction of one."""
        if isinstance(value, Fraction):
            return value
        return _parsed(parse_percent, value, param, ctx)


class Switch(ParamType):
    """`true` or `false`; `connection.with_switches` lets it be given alone, as Go's can be."""

    name = "bool"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Whether it is on."""
        if value == "":
            _fail("is empty: leave it out, or say true or false", param, ctx)
        return bool(click.BOOL.convert(value, param, ctx))


class CommaList(click.types.StringParamType):
    """Text of which a variable holds several, separated by commas; click would split it at blanks."""

    envvar_list_splitter = ","


class Text(ParamType):
    """Any text but an empty one: that is a shell variable that was never set, and not a choice."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it was given."""
        if value == "":
            _fail("is empty: leave it out, or give a value", param, ctx)
        return str(value)


class KubernetesName(ParamType):
    """What an object in Kubernetes may be called, or with `label` what a namespace may."""

    name = "name"

    def __init__(self, *, label: bool = False) -> None:
        self._form = _LABEL if label else re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
        self._longest = 63 if label else 253

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it was given."""
        text = str(value)
        if len(text) > self._longest or not self._form.fullmatch(text):
            _fail(f"{quoted(text)} is not a name that Kubernetes knows", param, ctx)
        return text


class Version(ParamType):
    """A release of etcd, as it tells it itself: 3.5.4."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The version as it was given."""
        text = str(value)
        if len(text) > 64 or not _VERSION.fullmatch(text):
            _fail(f"{quoted(text)} is not a version such as 3.5.4", param, ctx)
        return text


def _parsed(
    parse: Callable[[str, str], T],
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> T:
    try:
        return parse(str(value), "")
    except InvalidInput as error:
        _fail(error.fault, param, ctx)


def _fail(fault: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
    raise click.BadParameter(fault, ctx=ctx, param=param)
