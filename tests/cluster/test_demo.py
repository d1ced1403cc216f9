"""`make demo` is what somebody sees first: it must work, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.controlplane.processes import wait_until

# The whole story takes half a minute; on a slow machine, several.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


class Demo:
    """The demo in a process of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._mark = f"DEMO_TEST={folder}"
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "demo.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # What the demo starts inherits the mark.
            env={
                **os.environ,
                "DEMO_TEST": str(folder),
                "KEEP": "",
                **environment,
            },
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self.lines.extend, args=[self.process.stdout])
        self._reader.start()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def wait_said(self, words: str, timeout: float = 600.0) -> None:
        """Wait until it has said so; fail when it ends before."""

        def told() -> bool:
            ended = self.process.poll() is not None
            if ended:
                self._reader.join()
            assert words in self.said or not ended, self.said
            return words in self.said

        wait_until(told, words, timeout)

    def ended(self, timeout: float = 600.0) -> int:
        """Its exit code."""
        code = self.process.wait(timeout)
        self._reader.join()
        return code

    def leaves_nothing(self) -> None:
        """Wait until all is gone: what it leaves to its watchdog goes a moment after it."""
        with suppress(TimeoutError):
            wait_until(lambda: not self.left_behind(), "nothing is left")
        assert self.left_behind() == []

    def left_behind(self) -> list[str]:
        """Its folder, and the processes that it started, as far as they are still there."""
        data = Path(self.said.splitlines()[0].split(" lie in ")[1].split(" until ")[0])
        found = [str(data)] if data.exists() else []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if self._mark.encode() in environment and command:
                found.append(command)
        return found

    def close(self) -> None:
        """Interrupt it if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def demo(folder: Path, **environment: str) -> Iterator[Demo]:
    running = Demo(folder, **environment)
    try:
        yield running
    finally:
        running.close()


def test_the_demo_tells_its_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as running:
        assert running.ended() == 0, running.said
    for words in (
        "the rights that the chart gives it",
        "kubectl get edf --watch",
        "Complete",
        "MEMBER   ROLE       OUTCOME        BEFORE",
        "alive after",
        "Reclaimed in all: ",
        "has no KEP-6264",
    ):
        assert words in running.said
    assert running.said.count("   Defragmented   ") == 3
    running.leaves_nothing()


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("A kube-apiserver on an etcd", signal.SIGINT),
        ("Another etcd with three", signal.SIGTERM),
        ("kubectl get edf --watch", signal.SIGINT),
    ],
)
def test_an_interruption_ends_everything(
    words: str, number: signal.Signals, tmp_path: Path
) -> None:
    with demo(tmp_path) as running:
        running.wait_said(words)
        running.process.send_signal(number)
        assert running.ended(120) == 130, running.said
    assert "Traceback" not in running.said
    running.leaves_nothing()


def test_keep_leaves_everything_up_and_says_how_to_look(tmp_path: Path) -> None:
    with demo(tmp_path, KEEP="1") as running:
        running.wait_said("kubectl get edf,etcdconnection")
        kubeconfig = next(
            line.partition("KUBECONFIG=")[2].strip()
            for line in running.lines
            if "export KUBECONFIG=" in line
        )
        path = next(
            line.partition("PATH=")[2].partition(":")[0]
            for line in running.lines
            if "export PATH=" in line
        )
        asked = [str(Path(path) / "kubectl"), f"--kubeconfig={kubeconfig}", "get", "edf", "demo"]
        shown = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
        assert "Complete" in shown.stdout
        running.process.send_signal(signal.SIGINT)
        assert running.ended(120) == 130
    running.leaves_nothing()
