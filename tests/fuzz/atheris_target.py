"""What atheris runs, by the python that has it: `atheris_target.py TARGET [libFuzzer's options]`."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["etcdmaint"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz one target until libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, lambda data: target(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
