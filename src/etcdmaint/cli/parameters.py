"""How flags are read: sizes, shares and durations, by the parsers that read custom resources."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import parse_bytes, parse_duration, parse_percent, quoted

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([-+.][0-9A-Za-z.+-]+)?")

if TYPE_CHECKING:
    from etcdmaint.compression.resources import Keyspace

    # Generic only in the newest releases of click.
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType


class Parsed(ParamType):
    """What a function makes of a text, or refuses with InvalidInput; help calls it by `name`."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a default that is no text is one already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except InvalidInput as error:
            self.fail(error.fault, param, ctx)


class CommaList(click.types.StringParamType):
    """Text of which a variable holds several, separated by commas; click would split it at blanks."""

    envvar_list_splitter = ","


def _duration(text: str) -> float:
    seconds = parse_duration(text, "")
    if seconds <= 0:
        raise InvalidInput("", "must be more than 0s")
    return seconds


def _wait(text: str) -> float:
    seconds = parse_duration(text, "")
    if seconds < 0:
        raise InvalidInput("", "must be at least 0s")
    return seconds


def _size(text: str) -> int:
    size = parse_bytes(text, "")
    if size <= 0:
        raise InvalidInput("", "must be more than 0")
    return size


def _rate(text: str) -> int | None:
    return None if text == "0" else _size(text)


def _switch(text: str) -> bool:
    if not text:
        raise InvalidInput("", "is empty: leave it out, or say true or false")
    return bool(click.BOOL.convert(text, None, None))


def _text(text: str) -> str:
    if not text:
        raise InvalidInput("", "is empty: leave it out, or give a value")
    return text


def _form(form: re.Pattern[str], longest: int, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > longest or not form.fullmatch(text):
            raise InvalidInput("", f"{quoted(text)} is not a {what}")
        return text

    return read


def _keyspace(text: str) -> Keyspace:
    from etcdmaint.compression.resources import Keyspace

    return Keyspace(_octets(text))


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        # Not quoted: it may be a Secret's.
        raise InvalidInput("", "must be pairs of hex digits") from None


DURATION = Parsed("duration", _duration)
"""A Go duration such as 5s or 1h30m, in seconds, more than nothing."""
WAIT = Parsed("duration", _wait)
"""The same, or nothing."""
SIZE = Parsed("size", _size)
"""A Kubernetes quantity such as 200Mi, in bytes, more than nothing."""
RATE = Parsed("size", _rate)
"""Bytes a second, such as 20Mi; 0 is no limit, which is None."""
PERCENT = Parsed("percent", lambda text: parse_percent(text, ""))
"""A whole percentage from 1% to 99%, as a fraction of one."""
SWITCH = Parsed("bool", _switch)
"""`true` or `false`; `connection.with_switches` lets it be given alone, as Go's can be."""
TEXT = Parsed("text", _text)
"""Any text but an empty one: that is a shell variable that was never set, and not a choice."""
NAME = Parsed("name", _form(_NAME, 253, "name that Kubernetes knows"))
"""What an object in Kubernetes may be called."""
LABEL = Parsed("name", _form(_LABEL, 63, "name that Kubernetes knows"))
"""What a namespace may be called."""
VERSION = Parsed("version", _form(_VERSION, 64, "version such as 3.5.4"))
"""A release of etcd, as it tells it itself."""
KEY = Parsed("key", _octets)
"""A key of etcd, or what keys begin with: bytes, as the command line had them."""
HEX = Parsed("hex", _hex)
"""Bytes, as hex digits."""
KEYSPACE = Parsed("prefix", _keyspace)
"""A Keyspace, by the prefix of its keys."""
FILE = click.Path(dir_okay=False, path_type=Path)
"""A file that may not be there: whoever reads it says so."""
