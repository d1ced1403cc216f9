"""Where built programs live, and how two builders share the place.

The cache is outside the checkout, so that every clone and every clean-up keeps it. An entry's key
is everything that could change the bytes: the pins, the Go version, the flags, the machine. Nothing
in an entry is ever changed after it has its name. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from .golang import Say


def cache_dir() -> Path:
    """The cache's folder: ETCDMAINT_CACHE, or etcdmaint in the user's cache folder."""
    named = os.environ.get("ETCDMAINT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "etcdmaint"


def key(module_dir: Path, *parts: str) -> str:
    """The name of the folder for what is built from this module in this way."""
    digest = hashlib.sha256()
    for content in (
        (module_dir / "go.mod").read_bytes(),
        (module_dir / "go.sum").read_bytes(),
        platform.system().encode(),
        platform.machine().encode(),
        *(part.encode() for part in parts),
    ):
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return f"{module_dir.name}-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def exclusive(folder: Path, say: Say) -> Iterator[None]:
    """Hold a folder's lock, saying so once if another builder has it.

    The kernel frees the lock when its holder dies, so no stale lock has to be told from a live one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{folder.name}: another build is under way, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
