"""The slot's value, and who is dead."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.defrag import process
from etcdmaint.defrag.lock import SlotValue
from etcdmaint.defrag.process import is_dead, process_holder, shown


def test_the_value_survives_a_round_trip() -> None:
    """D60."""
    value = SlotValue(
        holder="etcdmaint-system/etcdmaint 1f",
        epoch="3-ab",
        run="team-a/etcd-now",
        uid="u-1",
        member=0xFEDCBA9876543210,
        since="2026-01-01T00:00:00+00:00",
        defrag_count=4,
        process_start=1700000000.25,
    )
    assert SlotValue.decode(value.encode()) == value
    assert b'"member":"fedcba9876543210"' in value.encode()


@given(data=st.binary(max_size=200))
def test_rubbish_in_the_slot_is_held_by_somebody_unknown(data: bytes) -> None:
    """D60: it is respected, and never taken for ours."""
    value = SlotValue.decode(data)
    assert value.holder
    assert not is_dead(value.holder)


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b"1",
        b'{"holder":1}',
        b"[" * 5000,
        b'{"holder":"a","epoch":"b","member":"zz"}',
        b'{"holder":"a","epoch":"b","processStart":1' + b"0" * 400 + b"}",
    ],
)
def test_json_that_is_no_slot_is_held_by_somebody_unknown(data: bytes) -> None:
    assert SlotValue.decode(data).holder == "somebody who writes another format"


def test_this_process_is_not_dead() -> None:
    """D63."""
    holder = process_holder()
    assert not is_dead(holder)
    assert f"process {os.getpid()}" in shown(holder)
    assert "boot=" not in shown(holder)


def test_a_process_of_this_machine_that_is_gone_is_dead() -> None:
    """D63: same boot, same PID namespace, no such process."""
    code = "from etcdmaint.defrag.process import process_holder; print(process_holder())"
    holder = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert is_dead(holder)


def test_a_reused_process_number_is_told_by_its_start() -> None:
    """D63."""
    holder = re.sub(r"start=\d+", "start=1", process_holder())
    assert is_dead(holder)


@pytest.mark.parametrize(("field", "other"), [("boot", "00000000"), ("pidns", "1")])
def test_of_another_boot_or_namespace_nothing_is_known(field: str, other: str) -> None:
    """D63: not known is not dead."""
    holder = re.sub(rf"{field}=\S+", f"{field}={other}", process_holder())
    holder = re.sub(r"pid=\d+", "pid=999999999", holder)
    assert not is_dead(holder)


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """D63: with hidepid, /proc lacks what belongs to other users."""
    monkeypatch.setattr(process, "_start_time", lambda pid: None)
    assert not is_dead(re.sub(r"start=\d+", "start=7", process_holder()))
    gone = re.sub(r"pid=\d+ start=\d+", "pid=999999999 start=7", process_holder())
    assert is_dead(gone)


def test_a_process_that_did_not_know_its_own_start_is_not_dead() -> None:
    """D63: not known is not dead."""
    assert not is_dead(re.sub(r"start=\d+", "start=0", process_holder()))
