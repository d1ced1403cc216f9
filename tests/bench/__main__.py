"""Runs the benchmarks one after the other and prints their tables: `make bench`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Each in a process of its own, so that none leaves memory or threads to the next."""
    here = Path(__file__).parent
    names = sys.argv[1:] or sorted(
        path.stem for path in here.glob("bench_*.py") if "__name__ ==" in path.read_text("utf-8")
    )
    failed = 0
    for name in names:
        print(f"## {name}\n", flush=True)
        began = time.monotonic()
        code = subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode
        print(f"\n{name}: {time.monotonic() - began:.0f} s, exit code {code}\n", flush=True)
        failed |= code
    return failed


if __name__ == "__main__":
    sys.exit(main())
