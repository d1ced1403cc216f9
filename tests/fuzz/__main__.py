"""`python -m tests.fuzz --minutes 5`: decode in bulk, then every target under atheris.

Half of the time goes to the bulk driver, whose counts it prints, half to atheris, shared among the
targets. `--inputs N` runs the bulk driver alone, `--judge N` has Go judge N mutated streams.
"""

from __future__ import annotations

import argparse
import os
import time

from . import bulk, guided, judge
from .targets import TARGETS


def main() -> None:
    """Run what was asked for; a broken invariant ends it with a traceback that has the input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--inputs", type=int, help="so many decodes of the bulk driver, no atheris")
    parser.add_argument("--judge", type=int, help="so many mutated streams for Go to judge")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    asked = parser.parse_args()
    os.nice(10)
    if asked.judge:
        judge.run(asked.judge, asked.seed)
    elif asked.inputs:
        bulk.run(asked.inputs, asked.seed)
    else:
        seconds = asked.minutes * 60
        bulk.run(2**63, asked.seed, seconds / 2)
        for target in asked.targets:
            guided.run(target, seconds / 2 / len(asked.targets))


if __name__ == "__main__":
    main()
