"""`etcdmaint storage estimate` against real etcd: what it foretells is what happens."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from etcdmaint.compression import frame
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.processes import wait_until
from tests.unit.cli.commandline import CommandLine, one_sentence
from tests.unit.compression import objects

from .commandline import PatientCommandLine, endpoints
from .planting import plant

pytestmark = pytest.mark.etcd

FAST = "--limit-rate=0"
RANDOM = random.Random(11)


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return PatientCommandLine(capsys, monkeypatch)


def estimate(etcdmaint: CommandLine, cluster: EtcdCluster, *arguments: str) -> dict:
    said = etcdmaint("storage", "estimate", endpoints(cluster), FAST, "-o", "json", *arguments)
    assert said.code == 0, said.everything
    return json.loads(said.out)


def planted() -> dict[bytes, bytes]:
    """About 20 MB of sizes as clusters have them, half of each value random."""
    found = {}
    for number in range(6000):
        size = int(RANDOM.lognormvariate(7.0, 1.1))
        value = b'{"' + RANDOM.randbytes(size // 4).hex().encode() + b"x" * (size // 2) + b"}"
        found[b"/registry/example.com/widgets/ns/%05d" % number] = value
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdCluster, dict]]:
    values = planted()
    with EtcdCluster(
        tmp_path_factory.mktemp("estimate"), size=1, quota_backend_bytes=64 << 20
    ) as started:
        plant(started, values.items())
        settle(started)
        yield started, values


def settle(cluster: EtcdCluster) -> None:
    """Compact and defragment."""
    member = cluster.members[0]
    member.gateway.compact(member.gateway.put(b"settled", b""))
    cluster.etcdctl("defrag", member=member)
    wait_until(lambda: member.status().db_size, "an answer")


def test_every_figure_on_the_way_there_comes_true(
    filled: tuple[EtcdCluster, dict], etcdmaint: CommandLine
) -> None:
    """Rewrite everything as the policy would, and look at etcd's own file each time."""
    cluster, values = filled
    member = cluster.members[0]
    found = estimate(etcdmaint, cluster)
    way = found["way"]
    assert way["quota"] == 64 << 20
    assert way["compactedAndDefragmentedNow"] == pytest.approx(member.status().db_size, rel=0.03)

    rewritten = {key: frame.encode(value) for key, value in values.items() if len(value) >= 1024}
    (at,) = [each for each in found["minSizes"] if each["minSize"] == 1024]
    assert at["framed"] == len(rewritten)
    assert at["saved"] == sum(len(values[key]) - len(new) for key, new in rewritten.items())
    plant(cluster, rewritten.items())
    wait_until(lambda: member.status().db_size >= way["peak"] * 0.97, "the peak", 60.0)
    assert member.status().db_size == pytest.approx(way["peak"], rel=0.03)
    member.gateway.compact(member.gateway.put(b"settled", b""))

    def compacted() -> bool:
        # Only a commit updates what etcd says of it.
        member.gateway.put(b"settled", b"")
        return member.status().db_size_in_use <= way["inUseAfterCompactionAtLeast"] * 1.4

    wait_until(compacted, "compacted", 60.0, pause=0.2)
    assert member.status().db_size_in_use >= way["inUseAfterCompactionAtLeast"] * 0.95
    settle(cluster)
    assert way["usedAfterDefragmentation"] == pytest.approx(member.status().db_size, rel=0.03)
    again = estimate(etcdmaint, cluster)
    assert again["resources"][0]["framedAlready"] == len(rewritten)
    assert again["way"]["written"] == 0
    assert again["way"]["fits"]


def test_a_nearly_full_etcd_is_told_how_many_batches(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    cluster = etcd_cluster_factory(size=1, version="3.6", quota_backend_bytes=16 << 20)
    value = b'{"' + RANDOM.randbytes(30_000).hex().encode() + b"}"
    plant(cluster, ((b"/registry/a.b/c/d/%04d" % number, value) for number in range(200)))
    found = estimate(etcdmaint, cluster)["way"]
    assert not found["fits"]
    assert found["batches"] > 1
    assert "compact and defragment first" in found["verdict"]
    said = etcdmaint("storage", "estimate", endpoints(cluster), FAST)
    assert f"then {found['batches']} batches" in said.out
    assert "quota" in said.out
    roomy = estimate(etcdmaint, cluster, "--quota=1Gi")["way"]
    assert (roomy["quota"], roomy["fits"]) == (1 << 30, True)


def test_secrets_are_a_matter_of_insisting_and_come_with_a_warning(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    """R120, R121, R138."""
    cluster = etcd_cluster_factory(size=1)
    plant(cluster, [(b"/registry/secrets/a/s", objects.protobuf(size=9000))])
    said = etcdmaint("storage", "estimate", endpoints(cluster), FAST)
    assert "1 Secrets were left out" in said.err
    assert "secrets " not in said.out
    said = etcdmaint("storage", "estimate", endpoints(cluster), FAST, "--include-secrets")
    assert "secrets " in said.out
    assert "the length of a compressed Secret tells how well its content compresses" in said.err


@pytest.mark.parametrize("size", ["63", "2Mi", "0"])
def test_a_min_size_that_no_policy_may_have_is_refused(etcdmaint: CommandLine, size: str) -> None:
    """R108."""
    said = etcdmaint("storage", "estimate", f"--min-size={size}")
    assert said.code == 2
    assert "min-size" in one_sentence(said)
