"""What a scan writes, whatever lies in etcd; and that no hour of scanning is lost."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from etcdmaint.cli import storage_scan
from etcdmaint.cli.scanning import Reading
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.walk import Timing
from etcdmaint.errors import ConnectionLost
from etcdmaint.etcd.types import Member
from tests.unit.compression import objects
from tests.unit.compression.memory import Alone, MemoryEtcd

from .commandline import CommandLine, one_sentence

HOSTILE = b"/registry/=cmd|'/c calc'!.x/\xff\xc2\x9b2J/ns/n"


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> MemoryEtcd:
    """What the command reads."""
    memory = MemoryEtcd(chunk=3)
    memory.member = Member(1, "etcd-0")  # type: ignore[attr-defined]  # of a ClusterSource

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[Any]:
        cluster: Any = SimpleNamespace(cluster_id=7)
        source: Any = memory
        governor = Governor(None, memory.clock)
        yield Reading(cluster, source, memory.clock, governor, Alone(), Timing(), 5.0)

    monkeypatch.setattr(storage_scan, "reading", opened)
    for number in range(10):
        memory.put(b"/registry/pods/ns/%d" % number, objects.protobuf())
    return memory


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.mark.parametrize("style", ["json", "csv", "table"])
def test_nothing_in_a_name_steers_a_terminal(
    etcd: MemoryEtcd, etcdmaint: CommandLine, style: str
) -> None:
    etcd.put(HOSTILE, b"k8s:enc:\xc2\x9b2J:v1:\xe2\x80\xaex:y")
    etcd.put(b"\x1b]0;x", b"x")
    said = etcdmaint("storage", "scan", "-o", style)
    assert said.code == 0, said.err
    assert all(letter.isprintable() or letter == "\n" for letter in said.everything)


def test_no_cell_is_a_formula(etcd: MemoryEtcd, etcdmaint: CommandLine) -> None:
    etcd.put(b"=cmd|'/c calc'!A1", b"k8s:enc:@x:v1:+1:y")
    etcd.put(b"/registry/a.b/-1+1/ns/n", b"x")
    said = etcdmaint("storage", "scan", "-o", "csv")
    rows = list(csv.reader(said.out.splitlines()))
    assert len(rows) == 4
    assert all(cell[:1] not in ("=", "+", "-", "@") for row in rows for cell in row)


@pytest.mark.parametrize("flag", ["--top=3", "--history", "--policy=x"])
def test_csv_takes_no_flag_that_it_has_no_column_for(
    etcd: MemoryEtcd, etcdmaint: CommandLine, flag: str
) -> None:
    """Told at once, and not after an hour."""
    said = etcdmaint("storage", "scan", "-o", "csv", flag)
    assert said.code == 2
    assert "-o csv" in one_sentence(said)


def test_redacted_nothing_of_a_name_is_left(etcd: MemoryEtcd, etcdmaint: CommandLine) -> None:
    """A22."""
    for key in (b"a-flat-key-with-a-token-in-it-hunter2", b"/registry/pods/ns/hunter2"):
        etcd.put(key, b"")
    etcd.put(b"/registry/nodes/hunter2", b"")
    for style in ("table", "json"):
        said = etcdmaint("storage", "scan", "-o", style, "--redact", "--top=20", "--history")
        assert said.code == 10
        assert "/registry/pods/ns/" in said.out
        assert "hunter2" not in said.everything


def test_a_history_that_fails_leaves_what_was_counted_before(
    etcd: MemoryEtcd, etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(chunk: int) -> None:
        if chunk > 5:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    said = etcdmaint("storage", "scan", "-o", "json", "--history", "--patience=2s")
    assert said.code == 1
    token = re.search(r"--resume (\S+)", said.err)
    assert token
    etcd.before = lambda _: None
    again = etcdmaint("storage", "scan", "-o", "json", "--history", f"--resume={token[1]}")
    document = json.loads(again.out)
    assert document["values"] == 10
    assert document["history"]["complete"]
    assert document["consistent"]


def test_a_token_is_for_the_same_question(
    etcd: MemoryEtcd, etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a count with kms v1 decrypted and half without would be neither."""

    def fail(chunk: int) -> None:
        if chunk > 1:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    token = re.search(r"--resume (\S+)", etcdmaint("storage", "scan", "--patience=2s").err)
    assert token
    etcd.before = lambda _: None
    said = etcdmaint("storage", "scan", f"--resume={token[1]}", "--decrypt-kms")
    assert said.code == 2
    assert "other flags" in said.err
    stdin = io.TextIOWrapper(io.BytesIO(token[1].encode() + b"\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert "Read 10 keys" in etcdmaint("storage", "scan", "--resume=-").out


def test_a_token_that_is_too_long_for_an_argument_is_given_another_way(
    etcd: MemoryEtcd, etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etcdmaint.cli.scanning._LONGEST_ARGUMENT", 10)

    def fail(chunk: int) -> None:
        if chunk > 1:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    said = etcdmaint("storage", "scan", "--patience=2s")
    assert re.search(r"--resume - and this on its standard input: \S{50}", said.err)


@pytest.mark.parametrize("rate", ["0", "nan", "-1"])
def test_a_rate_of_nothing_is_refused(etcdmaint: CommandLine, rate: str) -> None:
    said = etcdmaint("storage", "scan", f"--kms-rate={rate}")
    assert said.code == 2
    assert "--kms-rate" in one_sentence(said)


def test_verifying_has_no_flag_that_it_would_refuse(etcdmaint: CommandLine) -> None:
    assert "--prefix " not in etcdmaint("storage", "verify-downgrade", "--help").out
    assert "--prefix " in etcdmaint("storage", "scan", "--help").out


def test_a_resource_that_is_served_twice_is_known_by_the_name_it_is_counted_by() -> None:
    from etcdmaint.cli.scanning import resource_named
    from etcdmaint.compression.resources import Keyspace

    assert resource_named(Keyspace(), "events.events.k8s.io") == ("", "events")
    assert resource_named(Keyspace(), "ingresses.extensions") == ("networking.k8s.io", "ingresses")
    assert resource_named(Keyspace(), "services") == ("", "services")
    assert resource_named(Keyspace(), "widgets.example.com") == ("example.com", "widgets")
