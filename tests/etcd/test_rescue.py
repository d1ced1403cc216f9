"""`etcdmaint rescue` on real etcd servers that are really full, as a person runs it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etcdmaint.defrag.prefixes import prefix_of
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import GatewayError, text
from tests.controlplane.processes import wait_until
from tests.etcd.commandline import PATIENCE
from tests.etcd.compacting import compacted_to, read_key

pytestmark = pytest.mark.etcd

MIB = 1 << 20
QUOTA = 16 * MIB
PROGRAM = Path(sys.executable).with_name("etcdmaint")
SMALL_RULE = (
    *("--rule-free-space-above", "2Mi"),
    *("--rule-min-reclaim", "1Mi"),
    *("--rule-quota-usage-above", "50%"),
)


def command(cluster: EtcdCluster, *arguments: str) -> list[str]:
    return [str(PROGRAM), "--endpoints", ",".join(cluster.client_urls), "rescue", *arguments]


def rescue(
    cluster: EtcdCluster, *arguments: str, answers: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(cluster, *arguments),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        input=answers,
        env={**os.environ, **PATIENCE},
    )


def fill(cluster: EtcdCluster, key: Callable[[int], bytes]) -> None:
    """Write until etcd takes no more."""
    gateway = cluster.leader().gateway
    # Small ones fit into freed pages: of large ones a tenth of the file may stay free, and the rest
    # would not fill the quota.
    value = text(b"x" * 20_000)

    def write() -> None:
        for number in range(1000):
            gateway.post("/v3/kv/put", {"key": text(key(number)), "value": value})

    with pytest.raises(GatewayError, match="database space exceeded"):
        write()


def history(number: int) -> bytes:
    return b"/registry/events/default/k%d" % (number % 3)


def live(number: int) -> bytes:
    return b"/registry/pods/default/k%d" % number


def alarms(cluster: EtcdCluster) -> str:
    return cluster.etcdctl("alarm", "list").stdout


def revision_is_there(cluster: EtcdCluster, revision: int) -> bool:
    try:
        cluster.leader().gateway.post("/v3/kv/range", {"key": text(b"a"), "revision": revision})
    except GatewayError:
        return False
    return True


@pytest.mark.parametrize(("version", "size"), [("3.5", 1), ("3.6", 1), ("3.7", 3)])
def test_an_etcd_full_of_history_is_healed_step_by_step(
    etcd_cluster_factory: EtcdClusterFactory, version: str, size: int
) -> None:
    """D40, D64, C14: asked twice, since nobody will see it; and it says what filled the database."""
    cluster = etcd_cluster_factory(quota_backend_bytes=QUOTA, version=version, size=size)
    cluster.leader().gateway.put(b"compact_rev_key", b"1")
    fill(cluster, history)
    head = read_key(cluster.members[0]).head
    done = rescue(cluster, "--keep", "1s", answers="y\ny\n")
    assert done.returncode == 0, done.stderr
    assert "Is nobody else at it?" in done.stderr
    assert f"history up to revision {head} will be dropped in 1s" in done.stderr
    assert alarms(cluster) == ""
    assert [member.defrag_count() for member in cluster.members] == [1] * size
    assert all(member.status().db_size < 4 * MIB for member in cluster.members)
    assert all(compacted_to(member) == head for member in cluster.members)
    key = read_key(cluster.members[0])
    assert (key.version, key.value) == (2, b"%d" % head)
    assert "/registry/events/" in done.stdout
    cluster.leader().gateway.put(b"again", b"writable")
    again = rescue(cluster, "--yes")
    assert (again.returncode, "nothing to rescue" in again.stdout) == (0, True)


def test_where_defragmenting_is_enough_no_history_is_dropped(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D40: free pages alone: the alarm is left over from before somebody compacted."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    fill(cluster, history)
    (member,) = cluster.members
    old = read_key(member).head - 2
    member.gateway.compact(old)

    def told() -> bool:
        # Only a commit updates what etcd says of it; it takes no put now, but a role.
        cluster.etcdctl("role", "add", f"role-{next(numbers)}")
        status = member.status()
        return status.db_size - status.db_size_in_use > QUOTA // 2

    numbers = itertools.count()
    wait_until(told, "it says what is free", pause=0.2)
    done = rescue(cluster, "--yes", "--keep", "0s", *SMALL_RULE)
    assert done.returncode == 0, done.stderr
    assert alarms(cluster) == ""
    assert "compacting" not in done.stderr
    assert revision_is_there(cluster, old)
    assert all(compacted_to(member) == old for member in cluster.members)


def test_nothing_is_touched_without_a_yes(etcd_cluster_factory: EtcdClusterFactory) -> None:
    """D8: it shows what it sees and what it would do, and asks, twice where it takes no slot."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    fill(cluster, history)
    for answers in ("n\n", "y\nn\n", ""):
        done = rescue(cluster, answers=answers)
        assert done.returncode == 130
        assert "NOSPACE is armed for etcd-0" in done.stdout
        assert "drop history" in done.stdout
    assert "NOSPACE" in alarms(cluster)
    assert cluster.members[0].defrag_count() == 0
    assert compacted_to(cluster.members[0]) <= 0


def test_it_refuses_whatever_the_gate_refuses_but_nospace(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D10, D11, D13, D15: CORRUPT, a member away, no quorum; in a sentence, and touches nothing."""
    cluster = etcd_cluster_factory(quota_backend_bytes=QUOTA)
    fill(cluster, history)
    corrupt = {"action": "ACTIVATE", "memberID": cluster.members[0].id, "alarm": "CORRUPT"}
    cluster.members[0].gateway.post("/v3/maintenance/alarm", corrupt)
    refused = rescue(cluster, "--yes", "--keep", "0s")
    assert refused.returncode == 3
    assert "CORRUPT" in refused.stderr
    disarm = {**corrupt, "action": "DEACTIVATE"}
    cluster.members[0].gateway.post("/v3/maintenance/alarm", disarm)
    cluster.members[2].kill()
    away = rescue(cluster, "--yes", "--keep", "0s", "--command-timeout", "2s")
    assert away.returncode == 3
    assert "etcd-2" in away.stderr
    cluster.members[1].kill()
    alone = rescue(cluster, "--yes", "--keep", "0s", "--command-timeout", "2s")
    assert alone.returncode in (1, 3)
    assert cluster.members[0].defrag_count() == 0


def test_somebody_who_holds_the_cluster_is_respected(
    etcd_cluster_factory: EtcdClusterFactory,
) -> None:
    """D61, D64: a slot that was taken before etcd was full; --break-lock overrides it, after the yes."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    slot = b'{"v":1,"holder":"team-a/etcdmaint 1f","epoch":"3","run":"team-a/now"}'
    cluster.members[0].gateway.put(b"etcdmaint.io/lock", slot)

    def slot_is_there() -> bool:
        return "team-a/now" in cluster.etcdctl("get", "etcdmaint.io/lock").stdout

    idle = rescue(cluster, "--yes", "--break-lock")
    assert "nothing to rescue" in idle.stdout
    assert slot_is_there()
    fill(cluster, history)
    held = rescue(cluster, "--yes", "--keep", "0s")
    assert held.returncode == 5
    assert "team-a/etcdmaint" in held.stderr
    assert "--break-lock" in held.stderr
    assert "NOSPACE" in alarms(cluster)
    asked = rescue(cluster, "--break-lock", answers="n\n")
    assert (asked.returncode, "The lock of team-a/etcdmaint" in asked.stdout) == (130, True)
    assert slot_is_there()
    broken = rescue(cluster, "--yes", "--keep", "0s", "--break-lock")
    assert broken.returncode == 0, broken.stderr


def test_live_data_is_said_to_be_live(etcd_cluster_factory: EtcdClusterFactory) -> None:
    """D40, D41: nothing that it may drop: the alarm stays, with what to do."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    fill(cluster, live)
    done = rescue(cluster, "--yes", "--keep", "0s")
    assert done.returncode == 6
    assert "NOSPACE stays armed" in done.stderr
    assert "raise --quota-backend-bytes" in done.stderr
    assert "NOSPACE" in alarms(cluster)


def test_ctrl_c_while_it_counts_down_drops_nothing(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path
) -> None:
    """D7: and the same command heals it later."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    fill(cluster, history)
    log = tmp_path / "rescue.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            command(cluster, "--yes", "--keep", "5m"), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "will be dropped in 5m" in log.read_text(), "counts down", 100)
        running.terminate()
        assert running.wait(60) == 130
    finally:
        running.kill()
        running.wait()
    assert "before any history was dropped" in log.read_text()
    assert compacted_to(cluster.members[0]) <= 0
    assert rescue(cluster, "--yes", "--keep", "0s").returncode == 0


@pytest.mark.parametrize("line", ["compacting to revision", "defragmenting every member"])
def test_it_can_be_run_again_wherever_it_was_killed(
    etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path, line: str
) -> None:
    """D2: nothing but etcd itself remembers where it stood."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=QUOTA)
    fill(cluster, history)
    head = read_key(cluster.members[0]).head
    log = tmp_path / "rescue.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            command(cluster, "--yes", "--keep", "0s"), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: line in log.read_text(), line, 60, pause=0.001)
    finally:
        running.kill()
        running.wait()
    again = rescue(cluster, "--yes", "--keep", "0s")
    assert again.returncode == 0, again.stderr
    assert alarms(cluster) == ""
    assert read_key(cluster.members[0]).value == b"%d" % head
    # As if it had been killed between disarming and publishing.
    cluster.members[0].gateway.put(b"compact_rev_key", b"1")
    last = rescue(cluster, answers="y\n")
    assert last.returncode == 0, last.stderr
    assert "compact_rev_key says less" in last.stdout
    assert read_key(cluster.members[0]).value == b"%d" % head


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (b"/registry/pods/default/nginx", "/registry/pods/"),
        (b"/registry/apps.example.com/things/default/one", "/registry/apps.example.com/things/"),
        (b"/registry/clusterroles/admin.one", "/registry/clusterroles/"),
        (b"compact_rev_key", "(keys without a /)"),
        (b"etcdmaint.io/lock", "etcdmaint.io/"),
        (b"/a", "/"),
        (b"\xff/\xfe/b", "\ufffd/\ufffd/"),
        (b"/", "/"),
        (b"//", "//"),
    ],
)
def test_a_prefix_never_names_a_single_object(key: bytes, prefix: str) -> None:
    assert prefix_of(key) == prefix
