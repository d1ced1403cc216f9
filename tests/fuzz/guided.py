"""Coverage-guided fuzzing of one target by atheris, which lives in an environment of its own.

It is pinned by hash in requirements/fuzz.txt and installed once into the cache: a tool that is needed
by hand only has no place among the packages of the test run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.controlplane import cache

_CHECKOUT = Path(__file__).parents[2]
_REQUIREMENTS = _CHECKOUT / "requirements" / "fuzz.txt"
_CORPUS = Path(__file__).parent / "corpus"


def environment() -> Path:
    """The python that has atheris and what the library needs."""
    folder = cache.cache_dir() / f"fuzz-py{sys.version_info.major}{sys.version_info.minor}"
    python = folder / "bin" / "python"
    with cache.exclusive(folder.parent, print):
        if not (folder / "ready").exists():
            print(f"fuzz: installing atheris into {folder}")
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes"]
            subprocess.run([*install, "--requirement", str(_REQUIREMENTS)], check=True)
            (folder / "ready").touch()
    return python


def run(target: str, seconds: float) -> None:
    """Fuzz one target for so long; raises CalledProcessError when an input breaks it."""
    found = cache.cache_dir() / "fuzz-corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    print(f"{target}: atheris for {seconds:.0f} s")
    subprocess.run(
        [
            str(environment()),
            str(Path(__file__).with_name("atheris_target.py")),
            target,
            f"-max_total_time={max(int(seconds), 1)}",
            "-max_len=4096",
            "-rss_limit_mb=1024",
            "-timeout=10",
            "-print_final_stats=1",
            f"-artifact_prefix={found}/",
            str(found),
            str(_CORPUS / target),
        ],
        cwd=_CHECKOUT,
        env={"PYTHONPATH": f"{_CHECKOUT}:{_CHECKOUT / 'src'}"},
        check=True,
    )
