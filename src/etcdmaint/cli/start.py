"""The console script: where the program begins, before anything large is loaded.

To load it takes a moment, and Python answers a Ctrl-C in that moment with a traceback. Nothing has
begun by then, so the signal may simply end the process. From then on SIGTERM, which `timeout` and
systemd send, is answered as a Ctrl-C is, where no command has an answer of its own: whoever asks a
command to end gets one exit code, whatever the moment. Nothing that takes long is imported at the head.
"""

import os
import signal
import sys

_INTERRUPTED = 130  # as `exits` has it, which is not loaded yet


def main() -> None:
    """Load the command line and run it; from then on a Ctrl-C is its own affair."""
    # A shell has it ignored in the background, and that stays so.
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ended = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if ended:
        signal.signal(signal.SIGTERM, _leave)
    try:
        from etcdmaint.cli import main as program
    except ModuleNotFoundError as error:
        # The package without extras is the codec alone.
        from etcdmaint.cli.exits import missing_package

        told = missing_package(error)
        if not told:
            raise
        sys.exit(f"etcdmaint: {told}")
    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if ended:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    program.main()


def _leave(*_: object) -> None:
    os._exit(_INTERRUPTED)
