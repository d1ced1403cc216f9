"""The outermost shell of the command line: it finds the command, and turns errors into a sentence.

This is the only place that catches everything: somebody who is paged at night gets a sentence and
an exit code, never a traceback, and never a secret that a library put into an exception's text.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from etcdmaint import __version__
from etcdmaint.cli.connection import CONNECTION_FLAGS, with_switches
from etcdmaint.cli.exits import (
    MEANINGS,
    ExitCode,
    cause,
    code_for,
    missing_package,
    one_line,
    sentence,
)
from etcdmaint.cli.lazy import Lazy, LazyGroup
from etcdmaint.errors import EtcdmaintError

COMMANDS = {
    "status": Lazy("etcdmaint.cli.status", "status", "Show every member's sizes, health and role."),
    "defrag": Lazy(
        "etcdmaint.cli.defrag", "defrag", "Defragment the members that are worth it, one by one."
    ),
    "compact": Lazy(
        "etcdmaint.cli.compact", "compact", "Look at compaction, and take part in it by hand."
    ),
    "rescue": Lazy(
        "etcdmaint.cli.rescue", "rescue", "Heal an etcd that is full, when nothing else can."
    ),
    "storage": Lazy(
        "etcdmaint.cli.storage", "storage", "Look into what Kubernetes has stored in etcd."
    ),
    "operator": Lazy("etcdmaint.cli.operator", "operator", "Run the Kubernetes operator."),
    "finalizers": Lazy(
        "etcdmaint.cli.finalizers", "finalizers", "Free objects that an operator left behind."
    ),
}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

EPILOG = "\b\nExit codes:\n" + "\n".join(
    f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items()
)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    leading=CONNECTION_FLAGS,
    name="etcdmaint",
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="etcdmaint")
def etcdmaint() -> None:
    """Keep etcd small, fast and alive.

    Flags for reaching etcd are etcdctl's, with its ETCDCTL_* variables as fallback, and may stand
    before the command or after it. See `etcdmaint COMMAND --help`.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give back its exit code; never raises."""
    try:
        result = etcdmaint.main(
            with_switches(sys.argv[1:] if arguments is None else arguments),
            prog_name=_program(),
            standalone_mode=False,
        )
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads any more: what is still buffered has nowhere to go, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        return _explain(cause(error))
    return int(result) if isinstance(result, int) else ExitCode.DONE


def main() -> NoReturn:
    """The whole process, once `start` has loaded it."""
    _mend_streams()
    try:
        code = run()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    except KeyboardInterrupt:  # once more, while the first was answered
        code = ExitCode.INTERRUPTED
    # Everything is closed and written. To take the interpreter apart would take as long as it took
    # to ask etcd.
    os._exit(code)


def _mend_streams() -> None:
    """What a shell closed (`>&-`) goes nowhere, and a character that a terminal lacks is spelled out."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            lasting = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - to the end of the process
            setattr(sys, name, lasting)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _explain(error: BaseException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return ExitCode.USAGE
    if isinstance(error, click.UsageError):
        asked = f"; see `{error.ctx.command_path} --help`" if error.ctx is not None else ""
        return _say(one_line(error.format_message()).rstrip(".") + asked, ExitCode.USAGE)
    if isinstance(error, click.ClickException):
        return _say(one_line(error.format_message()), ExitCode.FAILED)
    if isinstance(error, EtcdmaintError):
        return _say(sentence(error), code_for(error))
    if isinstance(error, ModuleNotFoundError) and (told := missing_package(error)):
        return _say(told, ExitCode.FAILED)
    if isinstance(error, OSError) and error.errno in _FULL:
        return _say(f"not everything could be written: {error.strerror}", ExitCode.FAILED)
    return _say(_confession(error), ExitCode.FAILED)


def _confession(error: BaseException) -> str:
    """A fault of ours: where it is, but not the exception's text, which may quote anything."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return (
        f"this is a fault of etcdmaint {__version__} itself: {type(error).__name__}{place}; "
        "please report it with this line"
    )


def _say(text: str, code: ExitCode) -> int:
    with contextlib.suppress(OSError):
        print(f"{_program()}: {text}", file=sys.stderr)
    return code


def _program() -> str:
    """What people typed: etcdmaint, or kubectl-etcdmaint as kubectl's plugin."""
    name = Path(sys.argv[0]).name
    return "kubectl etcdmaint" if name.startswith("kubectl-") else "etcdmaint"
