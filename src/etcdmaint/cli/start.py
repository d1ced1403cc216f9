"""The console script: where the program begins, before anything large is loaded.

To load it takes a moment, and Python answers a Ctrl-C in that moment with a traceback. Nothing has
begun by then, so the signal may simply end the process. Nothing that takes long is imported at the
head.
"""

import signal
import sys


def main() -> None:
    """Load the command line and run it; from then on a Ctrl-C is its own affair."""
    # A shell has it ignored in the background, and that stays so.
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
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
    program.main()
