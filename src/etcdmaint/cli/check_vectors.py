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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click

from etcdmaint.cli import output
from etcdmaint.cli.parameters import FILE
from etcdmaint.errors import InvalidInput
from etcdmaint.files import read_whole

_CLASSES = {"checksum": 10, "unsupported": 11, "malformed": 12}
_NAMES = {code: name for name, code in _CLASSES.items()}
# A few of the vectors are larger than a frame may be.
_MOST_SAID = 4 << 20
# Seconds; the clock that a reader is timed by ends somewhere.
_LONGEST = 86_400
_NO_VECTOR = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
_FORMATS = ("etcdmaint/frames/1", "etcdmaint/frames_rejected/1")


@click.command("check-vectors", context_settings={"ignore_unknown_options": True})
@click.argument("file", type=FILE)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--timeout", default=10.0, help="Seconds for one vector.")
def check_vectors(file: Path, command: tuple[str, ...], timeout: float) -> int:
    """Run a reader over the vectors in FILE and print what differs.

    COMMAND, behind `--`, gets the stored bytes on standard input. It writes the plaintext to
    standard output and exits with 0, or exits with 10 (checksum), 11 (unsupported algorithm) or 12
    (malformed). FILE is frames.json or frames_rejected.json.
    """
    if not 0 < timeout <= _LONGEST:
        raise InvalidInput("--timeout", f"must be more than 0 seconds and at most {_LONGEST}")
    cases = _cases(file)
    different = 0
    for number, case in enumerate(cases):
        try:
            vector = _Vector.read(case)
        except _NO_VECTOR:
            raise InvalidInput(f"{file}: cases[{number}]", "is no vector") from None
        difference = _difference(vector, command, timeout)
        if difference:
            different += 1
            output.print_line(f"{vector.title}: {difference}")
    output.print_line(f"{len(cases)} vectors, {different} different")
    return 1 if different else 0


@dataclass(frozen=True, slots=True)
class _Vector:
    """What a reader gets, and what it may answer: `good`, or classes of errors and why."""

    title: str
    value: bytes
    good: bool
    plaintext: str
    classes: tuple[str, ...]
    reason: str

    @classmethod
    def read(cls, case: dict[str, Any]) -> Self:
        """Raises whatever Python raises where it is none."""
        accepted = case.get("accept") or [case.get("class", "plaintext")]
        good = accepted in (["plaintext"], ["passthrough"])
        return cls(
            f"{case['kind']}: {case['name']}",
            octets(case["value"]),
            good,
            _digest(case.get("plaintext", case["value"])) if good else "",
            tuple(map(str, accepted)),
            "" if good else str(case["reason"]),
        )


def _cases(file: Path) -> list[Any]:
    try:
        document = json.loads(read_whole(file, field=str(file)))
        if document["format"] not in _FORMATS:
            raise InvalidInput(str(file), f"must be of the format {' or '.join(_FORMATS)}")
        cases = document["cases"]
        if not isinstance(cases, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(str(file), "is no file of vectors") from None
    return cases


def _difference(vector: _Vector, command: tuple[str, ...], timeout: float) -> str:
    try:
        code, said = _answer(vector.value, command, timeout)
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        raise InvalidInput("COMMAND", f"cannot be run: {error.strerror}") from None
    if len(said) > _MOST_SAID:
        return f"more than {_MOST_SAID} bytes, and no frame holds as many"
    got = _NAMES.get(code, f"exit code {code}")
    if vector.good:
        if code:
            return f"refused ({got}), and is good"
        same = hashlib.sha256(said).hexdigest() == vector.plaintext
        return "" if same else f"another plaintext ({len(said)} bytes)"
    wanted = f"{' or '.join(vector.classes)}: {vector.reason}"
    if not code:
        return f"accepted, and is {wanted}"
    return "" if got in vector.classes else f"{got}, and is {wanted}"


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


def _digest(described: str | dict[str, Any]) -> str:
    if isinstance(described, dict) and "sha256" in described:
        return str(described["sha256"])
    return hashlib.sha256(octets(described)).hexdigest()


def _xorshift64(state: int, length: int) -> Iterator[bytes]:
    mask = (1 << 64) - 1
    for _ in range(0, length, 8):
        state ^= state << 13 & mask
        state ^= state >> 7
        state ^= state << 17 & mask
        yield state.to_bytes(8, "little")
