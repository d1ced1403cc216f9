"""Say what this machine lacks to build and test the project, and how to get it.

Run by ``make doctor``, before anything is installed: standard library only, and written so that a
Python too old for the project still gets as far as saying so. Exit code 1 if something that is
needed is missing.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Modules 1.2, Go's build cache 3.2, programs 1.0; the rest is room for the tests' own data.
NEEDED_GB = 6
NEEDED_WHEN_BUILT_GB = 1


class Finding(NamedTuple):
    """One thing looked at. ``remedy`` is empty if there is nothing to do."""

    name: str
    state: str
    remedy: str = ""


def python() -> Finding:
    """The interpreter that runs this is the one ``make install`` will use."""
    version = platform.python_version()
    if sys.version_info < (3, 11):  # noqa: UP036  # the very thing to find out
        return Finding(
            "python",
            version + " is too old",
            "install Python 3.11 or newer (Debian 12, Ubuntu 24.04 and Fedora have it) and run "
            "make with PYTHON=python3.11",
        )
    return Finding("python", version)


def virtual_environments() -> Finding:
    """Debian and Ubuntu ship Python without the half of venv that brings pip along."""
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            return Finding(
                "venv",
                "module " + module + " is missing",
                "Debian, Ubuntu: apt-get install python3-venv",
            )
    return Finding("venv", "with ensurepip")


def command(name: str) -> Callable[[], Finding]:
    """A program that has to be on the PATH."""

    def look() -> Finding:
        path = shutil.which(name)
        if path is None:
            return Finding(
                name,
                "not on the PATH",
                f"Debian, Ubuntu: apt-get install {name}; Fedora: dnf install {name}",
            )
        said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, check=False).stdout
        return Finding(name, said.decode(errors="replace").split("\n")[0])

    return look


def system() -> Finding:
    """The test servers are ended by process groups and found by /proc: Linux."""
    name = platform.system() + " " + platform.machine()
    if platform.system() != "Linux":
        return Finding("system", name, "the tests with real servers need Linux; use a container")
    return Finding("system", name)


def servers() -> Finding:
    """Which of etcd, kube-apiserver and so on are built, and whether there is room for the rest."""
    sys.path.insert(0, str(ROOT))
    from tests.controlplane import build, cache
    from tests.controlplane.programs import PROGRAMS

    missing: list[str] = []
    wanted = [name for name, program in PROGRAMS.items() if not program.on_demand]
    for name in wanted:
        try:
            found = build.find(name)
        except build.ProgramUnavailable as error:
            return Finding("servers", "not usable", str(error))
        if found is None:
            missing.append(name)
    folder = cache.cache_dir()
    free = _free_gb(folder)
    needed = NEEDED_GB if missing else NEEDED_WHEN_BUILT_GB
    there = len(wanted) - len(missing)
    state = f"{there} of {len(wanted)} programs are there; {folder} has {free:.0f} GB free"
    if missing:
        state += "; to build: " + " ".join(missing) + " (10 to 15 min once, on two cores)"
    if free < needed:
        return Finding(
            "servers",
            state,
            f"make {needed} GB free, or name a folder with room in ETCDMAINT_CACHE (and in "
            "GOCACHE and GOMODCACHE, if Go's own caches are on the full disk)",
        )
    return Finding("servers", state)


def go() -> Finding:
    """Go is never missing: where there is none, a wheel brings one."""
    from tests.controlplane import cache, golang
    from tests.controlplane.programs import MODULES

    chosen = golang.toolchain(MODULES / "kubernetes", cache.cache_dir())
    if chosen.wheel:
        return Finding(
            "go", chosen.version + " from PyPI, installed into the cache when it is first needed"
        )
    return Finding("go", f"{chosen.version}, {chosen.command}")


def _free_gb(folder: Path) -> float:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(str(folder)).free / 1e9


def main() -> int:
    """Look at everything, so that one run tells all that is missing."""
    checks = [python, virtual_environments, command("make"), command("git"), system]
    findings = [check() for check in checks]
    if not findings[0].remedy:
        # These import the project's own code, which an older Python cannot read.
        findings += [servers(), go()]
    for finding in findings:
        mark = "MISSING" if finding.remedy else "OK"
        print(f"{mark:8}{finding.name}: {finding.state}")
        if finding.remedy:
            print("        -> " + finding.remedy)
    missing = [finding.name for finding in findings if finding.remedy]
    if missing:
        print("Missing: " + ", ".join(missing), file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
