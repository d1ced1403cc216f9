"""`etcdmaint storage get` against real etcd."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etcdmaint.compression import frame
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.unit.cli.commandline import CommandLine, one_sentence
from tests.unit.compression import objects

from .commandline import PatientCommandLine, endpoints

pytestmark = pytest.mark.etcd

SECRET = objects.protobuf("s", size=300, kind="Secret")
KEYS = {
    b"/registry/configmaps/default/plain": objects.protobuf("plain", size=40),
    b"/registry/configmaps/default/framed": frame.encode(objects.protobuf("framed", size=3000)),
    b"/registry/pods/default/p": objects.protobuf("p", kind="Pod"),
    b"/registry/example.com/widgets/default/w": objects.JSON,
    b"/registry/secrets/default/s": SECRET,
    b"/registry/secrets/default/e": b"k8s:enc:aesgcm:v1:k:xxxx",
    b"/registry/configmaps/default/checksum": objects.DAMAGED_CHECKSUM,
    b"/registry/configmaps/default/newer": objects.NEWER,
    b"/registry/configmaps/default/malformed": objects.MALFORMED,
    b"/registry/configmaps/default/empty": b"",
    b"/registry/configmaps/default/hostile": b'{"kind":"A\\u001b[2J","metadata":{}}',
}


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return PatientCommandLine(capsys, monkeypatch)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("get"), size=1) as started:
        for key, value in KEYS.items():
            started.members[0].gateway.put(key, value)
        yield started


def get(etcdmaint: CommandLine, cluster: EtcdCluster, *arguments: str, code: int = 0) -> dict:
    said = etcdmaint("storage", "get", endpoints(cluster), "-o", "json", *arguments)
    assert said.code == code, said.everything
    found: dict = json.loads(said.out)
    return found


@pytest.mark.parametrize(
    "target",
    [("configmaps", "plain", "-n", "default"), ("/registry/configmaps/default/plain",)],
    ids=["by resource and name", "by key"],
)
def test_a_known_kind_comes_out_as_kubectl_would_show_it(
    cluster: EtcdCluster, etcdmaint: CommandLine, target: tuple[str, ...]
) -> None:
    found = get(etcdmaint, cluster, *target)
    assert found["kind"] == "ConfigMap"
    assert found["metadata"] == {"name": "plain", "namespace": "default", "uid": "u"}
    assert found["data"] == {"key": ("some words again " * 3)[:40]}


def test_a_frame_is_taken_off(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    """R189."""
    assert get(etcdmaint, cluster, "configmaps", "framed", "-n", "default")["metadata"]["name"] == (
        "framed"
    )


def test_other_kinds_come_out_by_number_and_custom_ones_as_they_are(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    assert get(etcdmaint, cluster, "pods", "p", "-n", "default")["fields"]["1"]["1"] == "p"
    assert get(etcdmaint, cluster, "widgets.example.com", "w", "-n", "default") == json.loads(
        objects.JSON
    )


def test_a_secret_is_shown_only_to_those_who_insist(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    for extra in ((), ("--history",), ("--raw",)):
        said = etcdmaint(
            "storage", "get", endpoints(cluster), "secrets", "s", "--namespace=default", *extra
        )
        assert "some words" not in said.everything
        assert "--show-secrets" in said.everything
    shown = get(etcdmaint, cluster, "secrets", "s", "-n", "default", "--show-secrets")
    assert shown["data"]["key"]


@pytest.mark.parametrize(
    ("resource", "name", "code"),
    [
        ("configmaps", "checksum", 10),
        ("configmaps", "empty", 10),
        ("configmaps", "newer", 11),
        ("configmaps", "malformed", 12),
        ("secrets", "e", 13),
    ],
)
def test_what_cannot_be_read_is_told_by_its_exit_code(
    cluster: EtcdCluster, etcdmaint: CommandLine, resource: str, name: str, code: int
) -> None:
    """R85 to R88, R90."""
    assert "size" in get(etcdmaint, cluster, resource, name, "-n", "default", code=code)


def test_what_is_not_there_is_told(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    for target in (("/registry/nothing",), ("pods", "none", "-n", "x"), ("nodes",)):
        said = etcdmaint("storage", "get", endpoints(cluster), *target)
        assert said.code == 14
        assert "there is nothing at /registry/" in one_sentence(said)
    said = etcdmaint("storage", "get", endpoints(cluster), "nonsense", "x")
    assert said.code == 2


def test_a_list_names_keys_and_forms(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    said = etcdmaint("storage", "get", endpoints(cluster), "configmaps", "-n", "default")
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == [
        "NAME",
        "checksum",
        "empty",
        "framed",
        "hostile",
        "malformed",
        "newer",
        "plain",
    ]
    assert "deflate frame" in said.out


def test_nothing_steers_the_terminal(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    for style in ("yaml", "json"):
        said = etcdmaint(
            "storage",
            "get",
            endpoints(cluster),
            "-o",
            style,
            "configmaps",
            "hostile",
            "--namespace=default",
        )
        assert "\x1b" not in said.everything


def test_raw_is_what_etcd_has(cluster: EtcdCluster) -> None:
    command = [sys.executable, "-m", "etcdmaint", "storage", "get", endpoints(cluster), "--raw"]
    for key in (b"/registry/configmaps/default/framed", b"/registry/secrets/default/e"):
        said = subprocess.run([*command, key.decode()], capture_output=True, check=True)
        assert said.stdout == KEYS[key]


def test_history_is_every_revision_that_is_left(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    cluster = etcd_cluster_factory(size=3)
    gateway = cluster.leader().gateway
    key = b"/registry/configmaps/default/h"
    revisions = [
        gateway.put(key, objects.protobuf(f"h{number}", size=number)) for number in range(5)
    ]
    said = etcdmaint(
        "storage", "get", endpoints(cluster), "--output=json", "--history", key.decode()
    )
    found = json.loads(said.out)
    assert [each["revision"] for each in found] == revisions[::-1]
    assert [each["object"]["metadata"]["name"] for each in found] == ["h4", "h3", "h2", "h1", "h0"]
    gateway.compact(revisions[2])
    said = etcdmaint(
        "storage", "get", endpoints(cluster), "--output=json", "--history", key.decode()
    )
    assert [each["revision"] for each in json.loads(said.out)] == revisions[:1:-1]
    leader = cluster.leader()
    for member in cluster.members:
        if member is not leader:
            member.pause()
    try:
        said = etcdmaint(
            "storage",
            "get",
            endpoints(cluster),
            "--output=json",
            key.decode(),
            "--dial-timeout=3s",
            "--command-timeout=2s",
        )
    finally:
        for member in cluster.members:
            member.resume()
    assert said.out, said.err
    assert json.loads(said.out)["metadata"]["name"] == "h4"
    assert "alone says so" in said.err


def test_what_was_deleted_is_in_its_history(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    """Until it is compacted away: the way back from a `kubectl delete` too many."""
    cluster = etcd_cluster_factory(size=1)
    gateway = cluster.members[0].gateway
    key = "/registry/configmaps/default/gone"
    gateway.put(key.encode(), objects.protobuf("gone", size=10))
    for number in range(20):
        gateway.put(b"/registry/other", b"%d" % number)
    cluster.etcdctl("del", key)
    deleted = gateway.put(b"/registry/other", b"x") - 1
    said = etcdmaint("storage", "get", endpoints(cluster), key)
    assert said.code == 14
    assert "--history looks for what was there" in one_sentence(said)
    found = get(etcdmaint, cluster, "--history", key)
    assert found[0] == {"revision": deleted, "deleted": True}
    assert found[1]["object"]["metadata"]["name"] == "gone"


def test_a_list_is_for_programs_too(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    found = get(etcdmaint, cluster, "configmaps", "-n", "default")
    assert [each["name"] for each in found][:2] == ["checksum", "empty"]
    assert found[0]["form"] == "checksum mismatch"


def test_it_needs_nothing_of_kubernetes(cluster: EtcdCluster, tmp_path: Path) -> None:
    code = (
        "import sys; from etcdmaint.cli.main import run; run(sys.argv[1:]);"
        "sys.exit(bool({'kopf', 'kubernetes', 'pydantic', 'aiohttp'} & set(sys.modules)))"
    )
    for command in (
        ["scan"],
        ["estimate"],
        ["get", "configmaps"],
        ["--help"],
        ["validate", str(tmp_path / "none")],
    ):
        where = [] if command[0] in ("--help", "validate") else [endpoints(cluster)]
        said = subprocess.run(
            [sys.executable, "-c", code, "storage", command[0], *where, *command[1:]],
            capture_output=True,
            text=True,
            env=dict(os.environ),
        )
        assert said.returncode == 0, (command, said.stderr)


@pytest.mark.parametrize(
    ("command", "key", "code"),
    [
        (("unframe",), b"/registry/configmaps/default/framed", 0),
        (("unframe",), b"/registry/configmaps/default/checksum", 10),
        (("unframe",), b"/registry/configmaps/default/newer", 11),
        (("show", "-o", "raw"), b"/registry/configmaps/default/malformed", 12),
        (("decrypt",), b"/registry/secrets/default/e", 13),
        (("unframe",), b"/registry/secrets/default/s", 2),
        (("identify",), b"/registry/configmaps/default/none", 14),
    ],
    ids=lambda each: each.decode() if isinstance(each, bytes) else None,
)
def test_the_layers_of_a_key_are_taken_off_as_those_of_a_file(
    cluster: EtcdCluster, command: tuple[str, ...], key: bytes, code: int
) -> None:
    """Issue 5: the same commands and exit codes on a live key, and 14 where there is none."""
    said = subprocess.run(
        [
            *(sys.executable, "-m", "etcdmaint", "storage", *command),
            *(endpoints(cluster), f"--etcd-key={key.decode()}"),
        ],
        capture_output=True,
        check=False,
    )
    assert said.returncode == code, said.stderr
    assert said.stdout == (frame.decode(KEYS[key]) if code == 0 else b"")
    assert len(said.stderr.splitlines()) == (1 if code else 0)
