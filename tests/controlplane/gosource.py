"""Small Go programs of our own, that ask the packages which the servers are made of.

Each is one file, built with the pins of a module into the cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.controlplane import cache, golang


def go_program(source: Path, module: Path) -> Path:
    """The program that is made of one file with the pins of a module; built if need be.

    Raises golang.NoGo where no Go can be had.
    """
    go = golang.toolchain(module, cache.cache_dir())
    processor = os.environ.get("GOAMD64", "v1")
    folder = (
        cache.cache_dir() / "bin" / cache.key(module, go.version, processor, source.read_text())
    )
    program = folder / source.stem
    with cache.exclusive(folder, _say):
        if not program.exists():
            _say(f"building {source.parent.name}/{source.name}")
            for needed in (module / "go.mod", module / "go.sum", source):
                shutil.copy(needed, folder)
            subprocess.run(
                [str(go.ensure(_say)), "build", "-trimpath", "-o", f"{program}.new", source.name],
                cwd=folder,
                env=golang.environment() | {"GOAMD64": processor},
                check=True,
            )
            Path(f"{program}.new").rename(program)
    return program


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
