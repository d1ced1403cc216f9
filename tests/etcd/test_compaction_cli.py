"""`etcdmaint compact` on real etcd servers, as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import text
from tests.controlplane.processes import wait_until
from tests.etcd.commandline import PATIENCE
from tests.etcd.compacting import KEY, compacted_to, read_key

pytestmark = pytest.mark.etcd

PROGRAM = Path(sys.executable).with_name("etcdmaint")


def command(cluster: EtcdCluster, *arguments: str) -> list[str]:
    return [str(PROGRAM), "--endpoints", cluster.client_urls[0], *arguments]


def run(cluster: EtcdCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(cluster, *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **PATIENCE},
    )


def status(cluster: EtcdCluster) -> dict[str, Any]:
    done = run(cluster, "compact", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", ["3.5", "3.6", "3.7"])
def test_status_tells_the_key_from_what_etcd_really_has(
    etcd_cluster_factory: EtcdClusterFactory, version: str
) -> None:
    """C1, C8, C30: the key advertises; etcd's own word is read from etcd."""
    cluster = etcd_cluster_factory(size=1, version=version)
    (member,) = cluster.members
    fresh = status(cluster)
    assert (fresh["key"]["version"], fresh["compactRevision"]) == (0, 0)
    assert "nobody" in fresh["lastWrittenBy"]
    for number in range(40):
        member.gateway.put(b"k%d" % (number % 4), b"x" * 1000)
    member.gateway.put(KEY, b"30")
    promised = status(cluster)
    assert "not carried out" in promised["lastWrittenBy"]
    member.gateway.compact(30)
    kept = status(cluster)
    assert kept["key"] == {"version": 1, "revision": 30, "writtenAtRevision": member_head(member)}
    assert kept["compactRevision"] == 30
    assert "as it said" in kept["lastWrittenBy"]
    assert kept["historyRevisions"] == member_head(member) - 30
    assert kept["liveKeys"] == 5
    assert 0 < kept["historyBytesEstimate"] < kept["dbSizeInUse"]
    member.gateway.compact(35)
    assert "without the election" in status(cluster)["lastWrittenBy"]
    shown = run(cluster, "compact", "status").stdout
    assert "really compacted to: 35" in shown
    assert "last compaction: " in shown
    assert "ago" in shown


def member_head(member: Any) -> int:
    return int(read_key(member).head)


def test_once_takes_part_and_is_polite(etcd_cluster_factory: EtcdClusterFactory) -> None:
    """C2, C9: it compacts to what it saw at its start, and not at all where another went first."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    member.gateway.put(b"a", b"1")
    seen = read_key(member).head
    won = run(cluster, "compact", "once", "--interval", "300ms")
    assert (won.returncode, won.stdout) == (0, f"won: compacted to revision {seen}\n")
    assert (read_key(member).version, compacted_to(member)) == (1, seen)

    begun = subprocess.Popen(
        command(cluster, "compact", "once", "--interval", "5s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert begun.stderr is not None
    assert "waits 5s" in begun.stderr.readline()
    member.gateway.put(KEY, b"2")
    out, _ = begun.communicate(timeout=60)
    assert begun.returncode == 0
    assert "lost" in out
    assert compacted_to(member) == seen


def test_once_is_held_with_whoever_is_there_when_it_has_waited(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """C12: the member that it looked at has gone meanwhile."""
    cluster = etcd_cluster_factory()
    begun = subprocess.Popen(
        command(cluster, "compact", "once", "--interval", "4s", "--command-timeout", "10s"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert begun.stderr is not None
    assert "waits 4s" in begun.stderr.readline()
    # etcd lists its members by their IDs.
    first = min(cluster.members, key=lambda member: int(member.id_hex, 16))
    first.kill()
    out, err = begun.communicate(timeout=60)
    assert begun.returncode == 0, err
    assert "won: compacted to revision" in out


def test_watch_shows_every_round_until_ctrl_c(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """C22, C26, C27: one line each; and writes nothing."""
    cluster = etcd_cluster_factory(size=1)
    (member,) = cluster.members
    log = tmp_path / "watch.log"
    with log.open("w") as output:
        watching = subprocess.Popen(
            command(cluster, "compact", "watch"),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        wait_until(lambda: int(member.metric("etcd_debugging_mvcc_watcher_total")), "watches")
        head = read_key(member).head
        member.gateway.put(KEY, b"0")
        member.gateway.put(KEY, b"%d" % head)
        member.gateway.put(KEY, b"rubbish")
        member.gateway.post("/v3/kv/deleterange", {"key": text(KEY)})
        wait_until(lambda: "deleted" in log.read_text(), "all are shown")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
    finally:
        watching.kill()
        watching.wait()
    lines = log.read_text().splitlines()
    assert "round 1: compacts nothing yet" in lines[0]
    assert f"round 2: compacts to {head}" in lines[1]
    assert "after the one before" in lines[1]
    assert "says no revision" in lines[2]
    assert read_key(member).head == head + 4


def test_watch_goes_on_with_another_member(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """C22, C24: what was written meanwhile is shown as well."""
    cluster = etcd_cluster_factory()
    log = tmp_path / "watch.log"
    with log.open("w") as output:
        watching = subprocess.Popen(
            command(cluster, "compact", "watch", "--command-timeout", "2s"),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def watched(member: Any) -> bool:
        return bool(int(member.metric("etcd_debugging_mvcc_watcher_total")))

    try:
        wait_until(lambda: any(map(watched, cluster.members)), "watches")
        (gone,) = filter(watched, cluster.members)
        others = [member for member in cluster.members if member is not gone]
        others[0].gateway.put(KEY, b"1")
        wait_until(lambda: "round 1" in log.read_text(), "the first is shown")
        gone.kill()
        cluster.leader()
        others[0].gateway.put(KEY, b"2")
        wait_until(lambda: "round 2" in log.read_text(), "the second is shown")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
    finally:
        watching.kill()
        watching.wait()
    assert "tries again each second" in log.read_text()


def test_compact_imports_no_framework_and_answers_at_once(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    cluster = etcd_cluster_factory(size=1)
    code = (
        "import sys; from etcdmaint.cli.main import run; run(sys.argv[1:]);"
        "print([m for m in ('kopf', 'kubernetes', 'pydantic', 'aiohttp') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, *command(cluster, "compact", "status")[1:]]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("bad", ["0s", "-5m", "5", "soon"])
def test_a_bad_interval_is_refused_by_name(bad: str) -> None:
    done = subprocess.run(
        [str(PROGRAM), "compact", "once", "--interval", bad],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "--interval" in done.stderr
