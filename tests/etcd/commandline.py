"""`etcdmaint` against real members: in this process where that will do, in its own where it must."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.member import Member
from tests.controlplane.processes import wait_until
from tests.controlplane.stalling import hold_snapshot
from tests.unit.cli.commandline import CommandLine, Said

SLOT = b"etcdmaint.io/lock"

# What a busy machine may need, for whoever asks by way of the environment. A test in which a member
# hangs says by flags how long to wait for it.
PATIENCE = {"ETCDCTL_DIAL_TIMEOUT": "20s", "ETCDCTL_COMMAND_TIMEOUT": "20s"}

# The real command with one hook: at a member's turn, just before its Defragment is sent, it waits
# for the test. Opened any earlier, a stalled snapshot would defer the run (D16).
HELD_COMMAND = """
import sys, time
from pathlib import Path
from etcdmaint.cli import progress
from etcdmaint.cli.main import main
from etcdmaint.defrag.run import Outcome

folder = Path(sys.argv.pop(1))

class Held(progress.Progress):
    def turn(self, turn):
        super().turn(turn)
        if turn.row.outcome is Outcome.PENDING:
            (folder / "turn").write_text(turn.row.name)
            while not (folder / "go").exists():
                time.sleep(0.01)

progress.open_progress = Held
main()
"""


class PatientCommandLine(CommandLine):
    """Calls `etcdmaint` with that."""

    def __call__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Said:
        return super().__call__(*arguments, environment={**PATIENCE, **(environment or {})})


def endpoints(cluster: EtcdCluster) -> str:
    """The flag that leads to the cluster."""
    return "--endpoints=" + ",".join(cluster.client_urls)


class HeldDefrag:
    """`etcdmaint defrag` in a process of its own, with the first member's Defragment in flight."""

    def __init__(self, cluster: EtcdCluster, folder: Path, arguments: Sequence[str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", HELD_COMMAND, str(folder), "defrag", "--all", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **PATIENCE},
            start_new_session=True,
        )
        self._errors: list[str] = []
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._errors.extend, args=[self._process.stderr])
        self._reader.start()
        name = wait_until(self._turn, "a member's turn", 60.0)
        self.member: Member = next(m for m in cluster.members if m.name == name)

    def _turn(self) -> str:
        if self._process.poll() is not None:
            self._reader.join()
            raise AssertionError(self.errors)
        path = self._folder / "turn"
        return path.read_text() if path.exists() else ""

    @property
    def errors(self) -> str:
        """What it has said on standard error so far."""
        return "".join(self._errors)

    def send_the_rpc(self) -> None:
        """Let it go on, and wait until etcd defragments."""
        (self._folder / "go").touch()
        wait_until(self.member.defragmenting, "a defragmentation in flight", 30.0)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ctrl-C."""
        os.kill(self._process.pid, number)

    def wait_said(self, words: str) -> None:
        """Wait until it has said so."""
        wait_until(lambda: words in self.errors, words, 30.0)

    def ended(self, timeout: float = 60.0) -> tuple[int, str]:
        """Its exit code and what it wrote to standard output."""
        code = self._process.wait(timeout)
        self._reader.join()
        assert self._process.stdout is not None
        return code, self._process.stdout.read()

    def close(self) -> None:
        """End it, whatever it does."""
        (self._folder / "go").touch()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@contextlib.contextmanager
def held_defrag(
    cluster: EtcdCluster, folder: Path, *arguments: str
) -> Iterator[tuple[HeldDefrag, contextlib.ExitStack]]:
    """A run whose first member stays in flight until the stack is closed."""
    run = HeldDefrag(cluster, folder, [endpoints(cluster), *arguments])
    with contextlib.closing(run), contextlib.ExitStack() as snapshot:
        snapshot.enter_context(hold_snapshot(run.member))
        run.send_the_rpc()
        yield run, snapshot
