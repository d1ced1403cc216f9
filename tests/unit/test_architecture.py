"""What holds for the whole house: who may import whom, and pages that are generated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_room_imports_from_above() -> None:
    """The contracts of .importlinter."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_table_of_requirements_is_current() -> None:
    script = ROOT / "scripts" / "generate_requirements_table.py"
    done = subprocess.run([sys.executable, script, "--check"], check=False)
    assert done.returncode == 0, "run `make docs`"
