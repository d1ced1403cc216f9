"""`etcdmaint defrag` against real etcd: what it does, how it stops, and what it gives back."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.cli.progress import Progress
from etcdmaint.defrag import versions
from etcdmaint.defrag.run import Severity
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import GatewayError
from tests.controlplane.tls import ClusterTls
from tests.unit.cli.commandline import CommandLine, one_sentence

from .commandline import SLOT, PatientCommandLine, endpoints, held_defrag

pytestmark = pytest.mark.etcd

MIB = 1 << 20


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return PatientCommandLine(capsys, monkeypatch)


@pytest.fixture
def cluster(etcd_cluster_factory: EtcdClusterFactory) -> EtcdCluster:
    """Three members with some megabytes to give back."""
    started = etcd_cluster_factory()
    started.fill(bytes_live=6_000_000, bytes_deleted=12_000_000)
    return started


def counts(cluster: EtcdCluster) -> list[int]:
    """How many defragmentations each member has done, by its own metrics."""
    return [member.defrag_count() for member in cluster.members]


def slot(cluster: EtcdCluster) -> bytes | None:
    return cluster.leader().gateway.get_value(SLOT)


def test_every_member_shrinks_by_exactly_one_rpc(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    """D12, D30: and the numbers told are etcd's."""
    before = [member.status().db_size for member in cluster.members]
    leader = cluster.leader()
    said = etcdmaint("defrag", endpoints(cluster), "--rule-free-space-above=8Mi", "-o", "json")
    assert said.code == 0, said.everything
    assert counts(cluster) == [1, 1, 1]
    result = json.loads(said.out)
    assert (result["phase"], result["defragmented"]) == ("Complete", 3)
    for row, member, size in zip(result["members"], cluster.members, before, strict=True):
        assert row["name"] == member.name
        assert row["outcome"] == "Defragmented"
        assert row["dbSizeBefore"] == size
        assert row["dbSizeAfter"] < size - 8 * MIB
        assert row["dbSizeAfter"] - row["dbSizeBefore"] == -row["reclaimedBytes"]
    assert result["reclaimedBytes"] == sum(row["reclaimedBytes"] for row in result["members"])
    assert slot(cluster) is None
    assert cluster.leader() is not leader
    turns = [line.split()[0] for line in said.err.splitlines() if ": defragmenting, " in line]
    assert sorted(turns) == ["etcd-0", "etcd-1", "etcd-2"]
    assert turns[-1] == leader.name


def test_the_table_ends_with_what_was_reclaimed(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    said = etcdmaint("defrag", endpoints(cluster), "--all", "--move-leader=never")
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[:3][::2] for line in lines[1:4]] == [
        [f"etcd-{number}", "Defragmented"] for number in range(3)
    ]
    assert lines[-1].startswith("3 of 3 members defragmented, ")
    assert counts(cluster) == [1, 1, 1]


def test_nothing_due_is_success(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    said = etcdmaint("defrag", endpoints(cluster))
    assert said.code == 0
    assert counts(cluster) == [0, 0, 0]
    assert said.out.count("BelowThreshold") == 3


def test_a_dry_run_touches_nothing(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    """D8: no RPC, no slot, not a single write."""
    before = [member.status().revision for member in cluster.members]
    leader = cluster.leader()
    said = etcdmaint("defrag", endpoints(cluster), "--all", "--dry-run")
    assert said.code == 0
    assert said.out.count("WouldDefragment") == 3
    assert counts(cluster) == [0, 0, 0]
    assert [member.status().revision for member in cluster.members] == before
    assert cluster.leader() is leader


def test_a_volume_that_is_too_small_is_left_alone(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    """D24."""
    said = etcdmaint("defrag", endpoints(cluster), "--all", "--volume-size=20Mi")
    assert said.code == 1
    assert "NoDiskSpace" in said.out
    assert counts(cluster) == [0, 0, 0]


# Exit codes.


def test_exit_3_when_a_member_hangs_and_nothing_is_touched(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    """D10, D19."""
    hanging = cluster.followers()[0]
    hanging.pause()
    timeouts = ("--dial-timeout=3s", "--command-timeout=2s")
    said = etcdmaint("defrag", endpoints(cluster), "--all", *timeouts)
    hanging.resume()
    assert said.code == 3
    told = said.err.splitlines()[-1]
    assert hanging.name in told
    assert "--wait" in told
    assert counts(cluster) == [0, 0, 0]


def test_waiting_outlasts_a_member_that_comes_back(
    cluster: EtcdCluster, etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 3, section 4: --wait is how long the gate may defer."""
    gone = cluster.followers()[0]
    gone.stop()
    back = threading.Thread(target=gone.start)
    tell = Progress.event

    def event(self: Progress, severity: Severity, reason: str, message: str) -> None:
        tell(self, severity, reason, message)
        if reason == "DefragDeferred" and back.ident is None:
            back.start()

    monkeypatch.setattr(Progress, "event", event)
    said = etcdmaint("defrag", endpoints(cluster), "--all", "--wait=60s", "--command-timeout=2s")
    assert back.ident is not None, said.everything
    back.join()
    assert said.code == 0, said.everything
    assert f"warning: MemberUnreachable: member {gone.name}" in said.err
    assert counts(cluster) == [1, 1, 1]


def test_exit_4_when_this_release_loses_data(
    cluster: EtcdCluster, etcdmaint: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D17: no such release is at hand, so this one is called one."""
    hazard = versions.Hazard(versions.Action.REFUSE, "it eats data", fixed=((3, 7, 99),))
    monkeypatch.setattr(versions, "HAZARDS", (hazard,))
    version = cluster.members[0].status().version
    refused = etcdmaint("defrag", endpoints(cluster), "--all")
    assert refused.code == 4
    assert "it eats data" in refused.err
    assert "3.7.99" in refused.err
    other = etcdmaint("defrag", endpoints(cluster), "--all", "--allow-unsafe-version=3.5.0")
    assert other.code == 4
    assert counts(cluster) == [0, 0, 0]
    allowed = etcdmaint("defrag", endpoints(cluster), "--all", f"--allow-unsafe-version={version}")
    assert allowed.code == 0
    assert counts(cluster) == [1, 1, 1]


def test_exit_5_when_somebody_else_holds_the_cluster_until_the_lock_is_broken(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    """D60, D63: a holder of another machine is never taken for dead."""
    holder = "ops@elsewhere boot=other pidns=1 pid=1 start=1"
    value = json.dumps({"v": 1, "holder": holder, "epoch": "e", "run": "theirs"}).encode()
    cluster.leader().gateway.put(SLOT, value)
    said = etcdmaint("defrag", endpoints(cluster), "--all")
    assert said.code == 5
    told = said.err.splitlines()[-1]
    assert "ops@elsewhere" in told
    assert "--break-lock" in told
    assert counts(cluster) == [0, 0, 0]
    assert slot(cluster) == value
    assert etcdmaint("defrag", endpoints(cluster), "--all", "--break-lock").code == 0
    assert counts(cluster) == [1, 1, 1]
    assert slot(cluster) is None


def test_exit_6_when_the_alarm_stays_armed(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    """D41: everything is in use, so the file stays over 90 % of its quota."""
    cluster = etcd_cluster_factory(size=1, quota_backend_bytes=16 * MIB)
    (member,) = cluster.members
    fill_to_the_brim(cluster)
    assert any("NOSPACE" in error for error in member.status().errors)
    said = etcdmaint("defrag", endpoints(cluster), "--all")
    assert said.code == 6, said.everything
    assert "NOSPACE stays armed" in said.err
    assert member.defrag_count() == 1
    assert any("NOSPACE" in error for error in member.status().errors)


def fill_to_the_brim(cluster: EtcdCluster) -> None:
    """Write until etcd raises NOSPACE."""
    gateway = cluster.members[0].gateway
    for number in range(2000):
        try:
            gateway.put(b"brim/%d" % number, b"x" * 20_000)
        except GatewayError:
            return
    pytest.fail("etcd never said that it is full")


def test_exit_1_when_the_user_may_not_and_the_password_is_never_told(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    """D50: PermissionDenied is terminal; D51."""
    password = "correct-horse-battery"
    tls = ClusterTls(tmp_path, client_certificates=False)
    cluster = etcd_cluster_factory(size=1, tls=tls)
    cluster.enable_auth(password, {"reader": (password, ["reader"])})
    flags = (endpoints(cluster), f"--cacert={tls.ca_file}", "--all")
    refused = etcdmaint("defrag", *flags, f"--user=reader:{password}")
    assert refused.code == 1
    assert "PermissionDenied" in refused.err or "permission denied" in refused.err
    assert cluster.members[0].defrag_count() == 0
    unknown = etcdmaint("defrag", *flags, f"--user=root:{password[:-1]}")
    assert unknown.code == 1
    for said in (refused, unknown):
        assert password[:-1] not in said.everything
    done = etcdmaint("defrag", *flags, environment={"ETCDCTL_USER": f"root:{password}"})
    assert done.code == 0, done.everything
    assert password not in done.everything
    assert cluster.members[0].defrag_count() == 1


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_member_in_flight_and_stops(
    number: signal.Signals, cluster: EtcdCluster, tmp_path: Path
) -> None:
    """Issue 3, section 4: exit 130, one member done, the others as they were, the slot free."""
    with held_defrag(cluster, tmp_path) as (run, snapshot):
        run.interrupt(number)
        run.wait_said(f"stopping as soon as {run.member.name} is done")
        assert run.member.defragmenting()
        snapshot.close()
        code, out = run.ended()
    assert code == 130
    assert out.count("Defragmented") == 1
    assert out.splitlines()[-1].startswith("1 of 3 members defragmented")
    assert "stopped as asked" in run.errors
    assert sum(counts(cluster)) == run.member.defrag_count() == 1
    assert slot(cluster) is None


def test_the_second_signal_leaves_at_once_and_says_what_goes_on(
    cluster: EtcdCluster, tmp_path: Path, etcdmaint: CommandLine
) -> None:
    """Issue 3, section 4; D63: the next run takes the dead one's slot over, and never before the
    member is idle."""
    with held_defrag(cluster, tmp_path) as (run, snapshot):
        run.interrupt()
        run.wait_said("stopping as soon as")
        run.interrupt()
        code, _ = run.ended(20.0)
        assert code == 130
        farewell = run.errors.splitlines()[-1]
        assert f"{run.member.name} ({run.member.client_url})" in farewell
        assert "still being defragmented" in farewell
        assert run.member.defragmenting()
        again = etcdmaint("defrag", endpoints(cluster), "--all", "--command-timeout=2s")
        assert again.code == 3, again.everything
        status: Any = etcdmaint("status", endpoints(cluster), "--command-timeout=2s")
        assert f"at {run.member.name}" in status.out
        snapshot.close()
    assert etcdmaint("defrag", endpoints(cluster), "--all", "--wait=60s").code == 0
    assert [member.defrag_count() for member in cluster.members if member is not run.member] == [
        1,
        1,
    ]
    assert run.member.defrag_count() == 2


def test_a_second_run_meanwhile_is_told_who_is_at_it(
    cluster: EtcdCluster, tmp_path: Path, etcdmaint: CommandLine
) -> None:
    """D3, D60: two runs never overlap."""
    with held_defrag(cluster, tmp_path) as (run, snapshot):
        said = etcdmaint("defrag", endpoints(cluster), "--all", "--command-timeout=2s")
        assert said.code in (3, 5), said.everything
        assert sum(counts(cluster)) == 0
        snapshot.close()
        code, _ = run.ended()
    assert code == 0
    assert counts(cluster) == [1, 1, 1]


def test_wrong_usage_dials_nobody(etcdmaint: CommandLine) -> None:
    said = etcdmaint("defrag", "--endpoints=127.0.0.1:1", "--all", "--rule-min-reclaim=1Mi")
    assert said.code == 2
    assert "--rule-min-reclaim" in one_sentence(said)
