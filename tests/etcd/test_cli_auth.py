"""`--user` where etcd's auth is off: the command line goes on as etcdctl does, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.tls import ClusterTls
from tests.etcd.commandline import PatientCommandLine, endpoints
from tests.unit.cli.commandline import CommandLine

pytestmark = pytest.mark.etcd

PASSWORD = "correct-horse-battery"


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return PatientCommandLine(capsys, monkeypatch)


@pytest.fixture
def cluster(etcd_cluster_factory: EtcdClusterFactory, tmp_path: Path) -> EtcdCluster:
    tls = ClusterTls(tmp_path, client_certificates=False)
    return etcd_cluster_factory(size=1, tls=tls)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("status", 0),
        ("compact status", 0),
        ("defrag --all", 0),
        ("rescue --yes", 0),
        ("storage scan", 0),
        ("storage get /nothing", 14),
    ],
)
def test_a_user_where_auth_is_off_is_told_and_left_out(
    cluster: EtcdCluster, etcdmaint: CommandLine, command: str, code: int
) -> None:
    """D50: its environment may be that of another cluster, and this one is in trouble now."""
    assert cluster.tls is not None
    said = etcdmaint(
        *command.split(),
        endpoints(cluster),
        f"--cacert={cluster.tls.ca_file}",
        environment={"ETCDCTL_USER": f"root:{PASSWORD}"},
    )
    assert said.code == code, said.everything
    assert said.err.count("auth is off on this etcd") == 1
    assert PASSWORD not in said.everything
    assert cluster.members[0].defrag_count() == (command == "defrag --all")
