"""The console script: where the program begins, before anything large is loaded.

To load it takes a moment, and Python answers a Ctrl-C in that moment with a traceback. Nothing has
begun by then, so the signal may simply end the process. Nothing but `signal` is imported at the head.
"""

import signal


def main() -> None:
    """Load the command line and run it; from then on a Ctrl-C is its own affair."""
    # A shell has it ignored in the background, and that stays so.
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if answered:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from etcdmaint.cli import main as program

    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    program.main()
