"""Who a process at a terminal is, so that a later one on the same machine can tell that it is dead (D63).

Only a process of the same boot and the same PID namespace can be proven dead; of every other it is not
known, and then nothing may be assumed.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from pathlib import Path

_HOLDER = re.compile(r"(\S+@\S+) boot=(\S+) pidns=(\S+) pid=([0-9]{1,9}) start=([0-9]+)")


def process_holder() -> str:
    """This process as the holder of a slot."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    pid = os.getpid()
    who = re.sub(r"\s", "_", f"{user}@{socket.gethostname()}")
    return (
        f"{who} boot={_boot_id()} pidns={_pid_namespace()} pid={pid} start={_start_time(pid) or 0}"
    )


def is_dead(holder: str) -> bool:
    """Whether the holder was a process of this boot and PID namespace that is not there any more."""
    match = _HOLDER.fullmatch(holder)
    if match is None or "unknown" in (match[2], match[3]) or match[5] == "0":
        return False
    if (match[2], match[3]) != (_boot_id(), _pid_namespace()):
        return False
    pid = int(match[4])
    started = _start_time(pid)
    if started is None:
        # /proc may hide the processes of other users, kill does not.
        return not _exists(pid)
    return started != int(match[5])


def shown(holder: str) -> str:
    """The holder as people read it."""
    match = _HOLDER.fullmatch(holder)
    return f"{match[1]} (process {match[4]})" if match else holder


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return "unknown"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "unknown"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
