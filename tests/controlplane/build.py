"""Find or build the programs of the control plane.

``python -m tests.controlplane.build etcd kube-apiserver`` prints their paths; ``program("etcd")``
gives one to a test. A program is looked for in ETCDMAINT_TEST_ASSETS, then in the cache, and is
built only if it is in neither: minutes once, nothing afterwards. A version other than the pinned
one is refused, because a test that passes against something else proves nothing. Standard library
only: it runs before any dependency is installed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import cache, golang
from .golang import NoGo, Say
from .programs import PROGRAMS, Program

_FLAGS = ("-trimpath", "-buildvcs=false")
# How often a build that is still going says so.
_SIGN_OF_LIFE_SECONDS = 15.0


class ProgramUnavailable(Exception):
    """A program could be neither found nor built; the text says why and what would help."""


def program(name: str, say: Say | None = None) -> Path:
    """The path of a program of the pinned version, built first if need be."""
    return find(name) or _built(PROGRAMS[name], say or _to_stderr)


def find(name: str) -> Path | None:
    """The path of a program that need not be built; None if it must be."""
    try:
        wanted = PROGRAMS[name]
    except KeyError:
        raise ProgramUnavailable(f"no program {name!r}; there are {', '.join(PROGRAMS)}") from None
    cached = _asset(wanted) or _on_path(wanted) or _place(wanted)[0]
    return cached if cached.exists() else None


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _asset(wanted: Program) -> Path | None:
    folder = os.environ.get("ETCDMAINT_TEST_ASSETS")
    if not folder:
        return None
    path = Path(folder).expanduser() / wanted.name
    if not path.exists():
        return None
    said = version_of(path, wanted.version_arguments)
    if wanted.version not in _versions(said) and not wanted.from_path:
        raise ProgramUnavailable(
            f"ETCDMAINT_TEST_ASSETS: {path} is not {wanted.name} {wanted.version} but says "
            f"{said.strip()[:120]!r}; put version {wanted.version} there, or take the file away "
            f"and it is built"
        )
    return path


def _on_path(wanted: Program) -> Path | None:
    found = shutil.which(wanted.name) if wanted.from_path else None
    return Path(found) if found else None


@functools.cache
def version_of(path: Path, arguments: tuple[str, ...]) -> str:
    """What a program says when asked for its version; empty if it cannot be run."""
    try:
        answer = subprocess.run(
            [str(path), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    return answer.stdout + answer.stderr


def _versions(said: str) -> set[str]:
    # Whole versions: 3.5.2 must not be found in 3.5.21, nor 1.37.2 in 1.37.2-rc.0.
    return set(re.findall(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:-[\w.]+)?)", said))


def _place(wanted: Program) -> tuple[Path, golang.Toolchain, tuple[str, ...]]:
    """Where in the cache a program is or will be, and what it is built with."""
    try:
        go = golang.toolchain(wanted.module_dir, cache.cache_dir())
    except NoGo as error:
        raise ProgramUnavailable(f"{wanted.name}: {error}") from error
    flags = (*_FLAGS, "-ldflags", wanted.ldflags)
    folder = cache.cache_dir() / "bin" / cache.key(wanted.module_dir, go.version, *flags)
    return folder / wanted.name, go, flags


def _built(wanted: Program, say: Say) -> Path:
    path, go, flags = _place(wanted)
    with cache.exclusive(path.parent, say):
        # The one who held the lock before may have built just this.
        if not path.exists():
            _build(wanted, go, flags, path, say)
    return path


def _build(
    wanted: Program, go: golang.Toolchain, flags: tuple[str, ...], path: Path, say: Say
) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    log = path.with_name(f"{path.name}.log")
    started = time.monotonic()
    say(
        f"{wanted.name}: building {wanted.version} with Go {go.version}; about "
        f"{_duration(wanted.cold_seconds)} on two cores, less if its modules are cached"
    )
    try:
        command = [str(go.ensure(say)), "build", *flags, "-o", str(fresh), wanted.package]
        code = _run(command, wanted, log, say)
        if code != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise ProgramUnavailable(f"{wanted.name}: go build failed ({code}), see {log}:\n{tail}")
        said = version_of(fresh, wanted.version_arguments)
        if wanted.version not in _versions(said):
            raise ProgramUnavailable(
                f"{wanted.name}: what was built says {said.strip()[:120]!r}, "
                f"not {wanted.version}; the pin in programs.py and {wanted.module}/go.mod differ"
            )
        fresh.rename(path)
    except NoGo as error:
        raise ProgramUnavailable(f"{wanted.name}: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)
    took = time.monotonic() - started
    say(f"{wanted.name}: built in {_duration(took)}, {path.stat().st_size / 1e6:.0f} MB, {path}")


def _run(command: list[str], wanted: Program, log: Path, say: Say) -> int:
    """Run a build, say now and then that it lives, and end it whole if we are interrupted."""
    started = time.monotonic()
    with log.open("wb") as output:
        build = subprocess.Popen(
            command,
            cwd=wanted.module_dir,
            env=golang.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # go starts a compiler for each package: all of them go together.
            start_new_session=True,
        )
    try:
        while True:
            try:
                return build.wait(_SIGN_OF_LIFE_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"{wanted.name}: {time.monotonic() - started:.0f} s, {_last_line(log)}")
    finally:
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGKILL)
            build.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    # go build is silent while it compiles; only downloads are worth repeating.
    return lines[-1] if lines else "compiling"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def main(arguments: list[str] | None = None) -> int:
    """The command: make the named programs available and print where they are."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.controlplane.build", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--all", action="store_true", help="everything the tests need")
    options = parser.parse_args(arguments)
    names = list(options.names)
    if options.all:
        names += [p.name for p in PROGRAMS.values() if not p.on_demand and p.name not in names]
    if not names:
        parser.error("name a program, or say --all")
    # A terminated build must not leave its compilers behind; an exception runs the clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        for name in names:
            print(f"{name}\t{program(name)}", flush=True)
    except ProgramUnavailable as error:
        _to_stderr(str(error))
        return 1
    except KeyboardInterrupt:
        _to_stderr("interrupted; what is built already is kept")
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
