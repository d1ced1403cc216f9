"""A record is one line, and an exception in it is no traceback."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import kopf
import pytest

from etcdmaint.observability.logging import LogFormat, configure


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is logged; the root logger is afterwards as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_line_with_utc_time_and_its_extras(written: io.StringIO) -> None:
    configure(LogFormat.JSON, stream=written)
    extra = {"run": "a/b", "bytes": 12, "at": datetime(2026, 1, 2, tzinfo=UTC)}
    logging.getLogger("etcdmaint.x").info("two\nlines of %s", "text", extra=extra)
    (line,) = lines(written)
    moment = datetime.fromisoformat(str(line.pop("time")))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert line == {
        "level": "info",
        "logger": "etcdmaint.x",
        "message": "two\nlines of text",
        "run": "a/b",
        "bytes": 12,
        "at": "2026-01-02T00:00:00Z",
    }


def test_text_is_one_line_too(written: io.StringIO) -> None:
    configure(LogFormat.TEXT, stream=written)
    extra = {"run": "a/b", "why": "not now", "count": 3, "empty": ""}
    logging.getLogger("etcdmaint.x").warning("two\nlines", extra=extra)
    (line,) = written.getvalue().splitlines()
    assert line.endswith('Z warning etcdmaint.x two\\nlines run=a/b why="not now" count=3 empty=""')


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_an_exception_is_its_class_its_message_and_its_places(
    written: io.StringIO, log_format: LogFormat
) -> None:
    """D51: no traceback, and with it no source line and no value, reaches a log."""
    configure(log_format, stream=written)

    def log_in(password: str) -> None:
        raise RuntimeError(f"refused after {len(password)} characters")

    try:
        log_in("hunter2")
    except RuntimeError:
        logging.getLogger("etcdmaint.x").exception("It failed")
    (text,) = written.getvalue().splitlines()
    assert "RuntimeError: refused after 7 characters" in text
    assert "log_in" in text
    assert "hunter2" not in text
    assert "Traceback" not in text


def test_the_members_of_a_group_are_told_and_not_just_their_number(written: io.StringIO) -> None:
    configure(LogFormat.JSON, stream=written)
    group = ExceptionGroup("two", [ValueError("one\nthing"), OSError("other")])
    logging.getLogger("x").error("It failed", exc_info=group)
    (line,) = lines(written)
    assert line["error"] == "ValueError: one thing; OSError: other"


def test_bytes_and_exceptions_in_extras_are_not_spelled_out(written: io.StringIO) -> None:
    """D51: a stored value or a key would be bytes."""
    configure(LogFormat.JSON, stream=written)
    extra = {"value": b"secret", "seen": {"k": [b"secret", None]}, "cause": OSError("away")}
    logging.getLogger("x").info("Read", extra=extra)
    assert "secret" not in written.getvalue()
    (line,) = lines(written)
    assert line["value"] == "(6 bytes)"
    assert line["seen"] == {"k": ["(6 bytes)", None]}
    assert line["cause"] == "OSError: away"


def test_arguments_that_do_not_fit_cost_neither_the_line_nor_a_traceback(
    written: io.StringIO,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(LogFormat.JSON, stream=written)
    # Without pytest's own handlers, which take such a record for a failure.
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[-1:])
    logging.getLogger("x").info("%d of %d", "secret")
    (line,) = lines(written)
    assert line["message"] == "%d of %d"
    assert capsys.readouterr().err == ""


def test_the_object_of_a_kopf_record_is_shown_and_its_settings_are_not(
    written: io.StringIO,
) -> None:
    configure(LogFormat.JSON, stream=written)
    reference = {"kind": "EtcdDefrag", "namespace": "a", "name": "b", "uid": "u"}
    # The real ones: kopf's own handler, which is there once somebody imports kopf, looks into them.
    extra = {"settings": kopf.OperatorSettings(), "k8s_skip": False, "k8s_ref": reference}
    logging.getLogger("kopf.objects").error("It hangs", extra=extra)
    (line,) = lines(written)
    assert line["object"] == "EtcdDefrag/a/b"
    assert "settings" not in line


def test_kopf_is_silent_about_what_went_well_and_loud_about_what_did_not(
    written: io.StringIO,
) -> None:
    configure(LogFormat.JSON, level=logging.DEBUG, stream=written)
    kopf = logging.getLogger("kopf.objects")
    kopf.info("Daemon 'x' succeeded.", extra={"k8s_skip": False})
    kopf.error("Daemon 'x' failed.", extra={"k8s_skip": True})
    logging.getLogger("kopf._core.engines.activities").info("Re-authentication has finished.")
    assert [line["message"] for line in lines(written)] == ["Daemon 'x' failed."]


def test_an_attempt_that_kopf_makes_again_is_no_error(written: io.StringIO) -> None:
    """D38: whoever is alerted by errors is not woken by each restart of an API server."""
    configure(LogFormat.JSON, stream=written)
    log = logging.getLogger("kopf._cogs.clients.watching")
    log.error("Request attempt #1 failed; will retry: GET /apis -> TimeoutError()")
    log.error("Request attempt #2 failed; TCP closed; will re-authenticate: GET /apis")
    log.error("Request attempt #3 failed; escalating: GET /apis -> TimeoutError()")
    logging.getLogger("other").error("failed; will retry: it is not kopf's")
    assert [line["level"] for line in lines(written)] == ["warning", "warning", "error", "error"]


def test_the_kubernetes_client_never_prints_bodies(written: io.StringIO) -> None:
    """D51: at DEBUG it would print every Secret that it reads."""
    configure(LogFormat.JSON, level=logging.DEBUG, stream=written)
    logging.getLogger("kubernetes.aio.client.rest").debug("response body: hunter2")
    logging.getLogger("etcdmaint").debug("seen")
    assert [line["message"] for line in lines(written)] == ["seen"]


def test_configuring_twice_does_not_double_the_lines(written: io.StringIO) -> None:
    configure(LogFormat.JSON, stream=io.StringIO())
    configure(LogFormat.JSON, stream=written)
    logging.getLogger("x").info("once")
    assert len(lines(written)) == 1
