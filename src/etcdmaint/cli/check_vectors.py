"""`etcdmaint storage check-vectors`: let another implementation's reader prove itself.

Its reader is any command: the stored bytes on standard input; on standard output the plaintext, or
an exit code that names the class of the error. It is run over the vectors, and what differs is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from etcdmaint.cli.exits import one_line
from etcdmaint.errors import InvalidInput

_CLASSES = {"checksum": 10, "unsupported": 11, "malformed": 12}
_NAMES = {code: name for name, code in _CLASSES.items()}
# A few of the vectors are larger than a frame may be.
_MOST_SAID = 4 << 20
_FORMATS = ("etcdmaint/frames/1", "etcdmaint/frames_rejected/1")


@click.command("check-vectors", context_settings={"ignore_unknown_options": True})
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--timeout", default=10.0, show_default=True, help="Seconds for one vector.")
def check_vectors(file: Path, command: tuple[str, ...], timeout: float) -> int:
    """Run a reader over the vectors in FILE and print what differs.

    COMMAND, behind `--`, gets the stored bytes on standard input. It writes the plaintext to
    standard output and exits with 0, or exits with 10 (checksum), 11 (unsupported algorithm) or 12
    (malformed). FILE is frames.json or frames_rejected.json.
    """
    cases = _cases(file)
    different = 0
    for case in cases:
        difference = _difference(case, command, timeout)
        if difference:
            different += 1
            click.echo(f"{case['kind']}: {case['name']}: {one_line(difference)}")
    click.echo(f"{len(cases)} vectors, {different} different")
    return 1 if different else 0


def _cases(file: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(file.read_bytes())
        if document["format"] not in _FORMATS:
            raise InvalidInput(str(file), f"must be of the format {' or '.join(_FORMATS)}")
        cases: list[dict[str, Any]] = document["cases"]
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(str(file), "is no file of vectors") from None
    return cases


def _difference(case: dict[str, Any], command: tuple[str, ...], timeout: float) -> str:
    try:
        code, said = _answer(octets(case["value"]), command, timeout)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        raise InvalidInput("COMMAND", f"cannot be run: {error.strerror}") from None
    if len(said) > _MOST_SAID:
        return f"more than {_MOST_SAID} bytes, and no frame holds as many"
    got = _NAMES.get(code, f"exit code {code}")
    accepted = case.get("accept") or [case.get("class", "plaintext")]
    if accepted in (["plaintext"], ["passthrough"]):
        if code:
            return f"refused ({got}), and is good"
        wanted = case.get("plaintext", case["value"])
        return "" if _same(said, wanted) else f"another plaintext ({len(said)} bytes)"
    if not code:
        return f"accepted, and is {' or '.join(accepted)}: {case['reason']}"
    return "" if got in accepted else f"{got}, and is {' or '.join(accepted)}: {case['reason']}"


def _answer(value: bytes, command: tuple[str, ...], timeout: float) -> tuple[int, bytes]:
    """Exit code and output of a reader that nobody trusts: not to end, nor to say little."""
    late = threading.Event()
    with tempfile.TemporaryFile() as given:
        given.write(value)
        given.seek(0)
        with subprocess.Popen(  # noqa: S603  # running it is the whole point
            command,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as reader:

            def end() -> None:
                # With whatever it has started: a shell's child would hold its output open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(reader.pid, signal.SIGKILL)

            def be_late() -> None:
                late.set()
                end()

            timer = threading.Timer(timeout, be_late)
            timer.start()
            try:
                assert reader.stdout is not None
                said = reader.stdout.read(_MOST_SAID + 1)
                if len(said) <= _MOST_SAID:
                    # Its number is not given to another before it is waited for, below.
                    os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WNOWAIT)
            finally:
                timer.cancel()
                end()
    if late.is_set():
        raise TimeoutError
    return reader.returncode, said


def octets(described: str | dict[str, Any]) -> bytes:
    """The bytes that a vector describes (vectors/README.md)."""
    if isinstance(described, str):
        return bytes.fromhex(described)
    if "repeat" in described:
        return bytes.fromhex(described["repeat"]) * int(described["count"])
    if "xorshift64" in described:
        length = int(described["length"])
        return b"".join(_xorshift64(int(described["xorshift64"], 16), length))[:length]
    return b"".join(octets(part) for part in described["concat"])


def _same(value: bytes, wanted: str | dict[str, Any]) -> bool:
    if isinstance(wanted, dict) and "sha256" in wanted:
        return hashlib.sha256(value).hexdigest() == str(wanted["sha256"])
    return value == octets(wanted)


def _xorshift64(state: int, length: int) -> Iterator[bytes]:
    mask = (1 << 64) - 1
    for _ in range(0, length, 8):
        state ^= state << 13 & mask
        state ^= state >> 7
        state ^= state << 17 & mask
        yield state.to_bytes(8, "little")
