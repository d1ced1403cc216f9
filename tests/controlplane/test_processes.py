"""Nothing a test starts outlives it, and no two tests share a port."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from .ports import Ports
from .processes import NotReady, Server, wait_until

ROOT = Path(__file__).parents[2]

# A parent that starts a server with a child of its own, and then only waits.
PARENT = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from tests.controlplane.processes import Server

    folder = Path(sys.argv[1])
    # `wait` is the shell's own: whatever shell it is, it stays, with one child.
    with Server("sleeper", ["/bin/sh", "-c", "sleep 300 & wait"], folder / "log") as server:
        print(server.pid, flush=True)
        time.sleep(300)
    """
)


@pytest.mark.parametrize("last_signal", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_its_parent_however_that_ends(
    tmp_path: Path, last_signal: signal.Signals
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    with parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        wait_until(lambda: _size(group) == 2, "the server and its child run")

        parent.send_signal(last_signal)
        parent.wait(60)

    wait_until(lambda: _size(group) == 0, "the whole group has ended")


def test_a_server_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = Server("brief", ["/bin/sh", "-c", "echo no such luck; exit 3"], tmp_path / "log")
    with (
        pytest.raises(NotReady, match=r"(?s)brief ended .*exit code 3.*no such luck"),
        server,
    ):
        server.wait_until(lambda: False, "ready", 60)


def test_a_server_that_is_too_slow_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = Server("slow", ["/bin/sh", "-c", "echo still warming up; sleep 60"], tmp_path / "log")
    with server:
        wait_until(server.log_text, "it has spoken")
        with pytest.raises(NotReady, match=r"(?s)slow was not ready after 0.1 s.*warming up"):
            server.wait_until(lambda: False, "ready", 0.1)


def test_a_server_can_be_stopped_from_another_thread_than_started_it(tmp_path: Path) -> None:
    server = Server("sleeper", ["sleep", "300"], tmp_path / "log")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()

    assert server.running
    server.stop()
    assert not server.running


def test_a_paused_server_can_be_stopped(tmp_path: Path) -> None:
    server = Server("sleeper", ["sleep", "300"], tmp_path / "log").start()
    server.pause()
    started = time.monotonic()

    server.stop(grace=120)

    assert not server.running
    # It was let go on to end by itself: nobody waited for the grace to be over.
    assert time.monotonic() - started < 60


def test_a_port_held_by_one_owner_is_given_to_no_other() -> None:
    with Ports() as ours, Ports() as theirs:
        one = [ours.take() for _ in range(20)]
        other = [theirs.take() for _ in range(20)]

        assert len({*one, *other}) == 40
        lowest_ephemeral = int(
            Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
        )
        assert max(one + other) < max(lowest_ephemeral, 32_768)


def _size(group: int) -> int:
    """How many processes of the group there are, zombies aside."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            count += int(fields[2]) == group and fields[0] != "Z"
    return count
