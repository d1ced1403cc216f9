"""The terminal's side of a sweep, and what Ctrl-C does to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from etcdmaint.cli.interruption import Interruption
from etcdmaint.cli.progress import Progress
from etcdmaint.cli.terminal import MemoryJournal, ProcessFence, TerminalSurroundings
from etcdmaint.clock import SystemClock
from etcdmaint.defrag.process import is_dead
from etcdmaint.defrag.run import Phase, RunState, Target
from etcdmaint.errors import SlotHeld
from etcdmaint.etcd.endpoint import Endpoint

from .test_progress import TURN

TARGET = Target(seeds=(Endpoint("a"),))


async def test_the_world_of_a_terminal_does_not_change() -> None:
    surroundings = TerminalSurroundings(TARGET)
    assert await surroundings.look() is TARGET
    assert not await surroundings.is_active("x", "y")


async def test_a_nap_ends_as_soon_as_a_stop_is_asked_for() -> None:
    """D7."""
    surroundings = TerminalSurroundings(TARGET)
    await surroundings.nap(0.001)
    assert not surroundings.stopping
    async with asyncio.timeout(60):
        nap = asyncio.ensure_future(surroundings.nap(1000))
        await asyncio.sleep(0)
        surroundings.stop()
        await nap
    assert surroundings.stopping


async def test_the_journal_keeps_the_record_and_tells_its_listener() -> None:
    heard: list[RunState] = []
    journal = MemoryJournal(heard.append)
    state = RunState(phase=Phase.PENDING)
    await journal.record(state)
    assert journal.state is state
    assert heard == [state]


def test_the_holder_is_this_very_process() -> None:
    """D63."""
    first, second = ProcessFence(), ProcessFence()
    first.assert_held()
    assert first.holder == second.holder
    assert first.epoch != second.epoch
    assert f"pid={os.getpid()}" in first.holder
    assert not is_dead(first.holder)


async def test_the_first_ctrl_c_asks_to_stop_and_the_work_goes_on_to_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    surroundings = TerminalSurroundings(TARGET)
    progress = Progress(SystemClock())
    progress.turn(TURN)

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await surroundings.nap(1000)
        assert surroundings.stopping
        return "finished"

    async with Interruption(surroundings, progress) as interruption:
        assert await interruption.guard(work()) == "finished"
    assert "stopping as soon as etcd-1 is done" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_sigterm_and_a_closed_terminal_are_like_the_first_ctrl_c(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = TerminalSurroundings(TARGET)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)

    async def work() -> None:
        os.kill(os.getpid(), number)
        await surroundings.nap(1000)

    async with Interruption(surroundings, Progress(SystemClock())) as interruption:
        await interruption.guard(work())
    assert "stopping before the next member" in capsys.readouterr().err


async def test_a_closed_terminal_is_one_wish_however_often_it_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell tells its jobs, and the kernel tells them again: the member in flight is finished."""
    surroundings = TerminalSurroundings(TARGET)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)

    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await surroundings.nap(1000)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return "finished"

    async with Interruption(surroundings, Progress(SystemClock())) as interruption:
        assert await interruption.guard(work()) == "finished"


async def test_nohup_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings = TerminalSurroundings(TARGET)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await surroundings.nap(0.05)

    try:
        async with Interruption(surroundings, Progress(SystemClock())) as interruption:
            await interruption.guard(work())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not surroundings.stopping


async def test_the_second_ctrl_c_leaves_and_says_what_is_still_running(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = TerminalSurroundings(TARGET)
    progress = Progress(SystemClock())
    progress.turn(TURN)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("there was time to let go"))

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await surroundings.nap(1000)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1000)

    async with Interruption(surroundings, progress) as interruption:
        assert await interruption.guard(work()) is None
    told = capsys.readouterr().err.splitlines()[-1]
    assert "etcd-1 (http://b:2379) is still being defragmented" in told
    assert "etcdmaint status" in told


async def test_an_error_of_the_work_is_not_swallowed() -> None:
    async def work() -> None:
        raise SlotHeld("held", holder="x")

    surroundings = TerminalSurroundings(TARGET)
    with pytest.raises(ExceptionGroup) as caught:
        async with Interruption(surroundings, Progress(SystemClock())) as interruption:
            await interruption.guard(work())
    assert caught.value.subgroup(SlotHeld) is not None


def test_a_sweep_that_does_not_let_go_is_left_all_the_same() -> None:
    """A second Ctrl-C leaves at once, whatever the work does about being cancelled."""
    script = textwrap.dedent("""
        import asyncio, os, signal
        from etcdmaint.cli import interruption
        from etcdmaint.cli.progress import Progress
        from etcdmaint.cli.terminal import TerminalSurroundings
        from etcdmaint.clock import SystemClock
        from etcdmaint.defrag.run import Target

        interruption.LEAVING_SECONDS = 0.05

        async def stubborn():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0)
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass

        async def main():
            surroundings = TerminalSurroundings(Target(seeds=()))
            progress = Progress(SystemClock())
            async with interruption.Interruption(surroundings, progress) as guard:
                await guard.guard(stubborn())

        asyncio.run(main())
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 130
    assert "left; no member is being defragmented by this run" in done.stderr
