"""One line a record, as JSON for machines or as text for people, with nothing secret in it.

A traceback prints source lines and, by way of reprs, values; so an exception is logged by its
class, its message and the places that it came through, never by its traceback. Nothing is masked
by pattern: what must not be logged is not handed to a logger. This module must not know who logs.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import PurePath
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# Set by kopf on records about an object: the settings hold no news, the reference is shown apart.
_KOPF_EXTRAS = frozenset({"settings", "k8s_skip", "k8s_ref"})
# How kopf ends an attempt that it makes again: it calls that an error, at each restart of an API server.
_NOT_THE_LAST = ("will retry: ", "will re-authenticate: ")
_MAX_FRAMES = 8
_MAX_TEXT = 2000

# Loggers that say too much. kopf tells of each daemon and login that went well, and what it does for
# us our own lines tell. `kubernetes` prints bodies of answers, Secrets among them, at DEBUG: these
# floors hold whatever level is asked for.
_LEVELS = {
    "aiohttp.access": logging.CRITICAL,
    "asyncio": logging.WARNING,
    "kopf": logging.WARNING,
    "kubernetes": logging.INFO,
    "urllib3": logging.WARNING,
}


class LogFormat(StrEnum):
    """What a line looks like."""

    JSON = "json"
    TEXT = "text"


def configure(
    log_format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None
) -> None:
    """Send every record to `stream` (stderr) in that format; a second call replaces the first."""
    handler = _LineHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLine() if log_format is LogFormat.JSON else _TextLine())
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each, _LineHandler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    for name, floor in _LEVELS.items():
        logging.getLogger(name).setLevel(max(level, floor))


class _LineHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the library's name
        """Stay silent: the library would print the record's arguments with a traceback."""


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = _fields(record)
        return json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))


class _TextLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        head = [str(fields.pop(key)) for key in ("time", "level", "logger", "message")]
        tail = [f"{key}={_word(value)}" for key, value in fields.items()]
        return " ".join((*head, *tail)).replace("\r", "\\r").replace("\n", "\\n")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, object] = {
        "time": when.replace("+00:00", "Z"),
        "level": _level(record),
        "logger": record.name,
        "message": _message(record),
    }
    if isinstance(reference := getattr(record, "k8s_ref", None), dict):
        named = (reference.get(key) for key in ("kind", "namespace", "name"))
        fields["object"] = "/".join(part for part in named if part)
    for key, value in vars(record).items():
        if key not in _STANDARD and key not in _KOPF_EXTRAS and key not in fields:
            fields[key] = _plain(value)
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = _describe(record.exc_info[1])
        fields["error_at"] = _places(record.exc_info[1])
    return fields


def _level(record: logging.LogRecord) -> str:
    if (
        record.levelno == logging.ERROR
        and record.name.partition(".")[0] == "kopf"
        and any(words in str(record.msg) for words in _NOT_THE_LAST)
    ):
        return "warning"
    return record.levelname.lower()


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):  # arguments that do not fit: a bug, not worth a line
        text = str(record.msg)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes | bytearray | memoryview):
        return f"({len(value)} bytes)"
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, BaseException):
        return _describe(value)
    return str(value)


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_describe(each) for each in error.exceptions)
    text = " ".join(str(error).split())
    text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _places(error: BaseException) -> list[str]:
    """Where it came through, innermost last: file, line and function, no source and no values."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    frames = traceback.walk_tb(error.__traceback__)
    places = [
        f"{PurePath(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
        for frame, line in frames
    ]
    return places[-_MAX_FRAMES:]


def _word(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text
