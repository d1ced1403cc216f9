"""`etcdmaint storage scan` against real etcd: counts equal to what was planted, and good manners."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from etcdmaint.defrag.lock import SLOT_KEY, SlotValue
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.processes import wait_until
from tests.controlplane.stalling import hold_snapshot
from tests.kms_plugin import KmsPlugin
from tests.unit.cli.commandline import CommandLine, one_sentence
from tests.unit.compression import objects

from .commandline import PATIENCE, PatientCommandLine, endpoints
from .planting import HOSTILE, TRUTH, plant, told, values

pytestmark = pytest.mark.etcd

FAST = "--limit-rate=0"


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return PatientCommandLine(capsys, monkeypatch)


@pytest.fixture(scope="module", params=["3.7", "3.6"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdCluster]:
    """One member; every test leaves it as it was."""
    folder = tmp_path_factory.mktemp("scan")
    with EtcdCluster(folder, size=1, version=request.param) as started:
        plant(started, values().items())
        yield started


def scan(etcdmaint: CommandLine, cluster: EtcdCluster, *arguments: str, code: int = 10) -> dict:
    said = etcdmaint("storage", "scan", endpoints(cluster), FAST, "-o", "json", *arguments)
    assert said.code == code, said.everything
    return json.loads(said.out)


def test_the_counts_are_exactly_what_was_planted(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    """R150, A1, A2: every form and every kind of damage, by resource, on etcd 3.6 and 3.7."""
    found = scan(etcdmaint, cluster)
    assert told(found) == TRUTH
    assert found["values"] == len(values())
    assert found["bytes"] == sum(map(len, values().values()))
    assert found["consistent"]
    assert len(found["revisions"]) == 1
    assert {row["resource"]: row["damaged"] for row in found["resources"] if row["damaged"]} == {
        "pods": 6
    }
    damaged = {record["key"].rpartition("/")[2] for record in found["damaged"]}
    assert damaged == {"checksum", "newer", "malformed", "envelope", "empty", "opaque"}


def test_people_get_a_table_and_nothing_steers_their_terminal(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    said = etcdmaint("storage", "scan", endpoints(cluster), FAST, "--top=5")
    assert said.code == 10
    assert re.search(r"^configmaps +protobuf +601 ", said.out, re.MULTILINE)
    assert re.search(r"^secrets +encrypted by aesgcm key-0 +20 ", said.out, re.MULTILINE)
    assert "Damaged values: 6. " in said.out
    assert f"Read {len(values())} keys from member etcd-0 at revision" in said.out
    assert "/registry/configmaps/ns-1/large" in said.out
    assert all(letter.isprintable() or letter == "\n" for letter in said.everything)


def test_one_resource_or_one_prefix_is_read_alone(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    both = scan(etcdmaint, cluster, "--resource=leases", "--resource=widgets.example.com", code=0)
    assert {row["resource"]: row["values"] for row in both["resources"]} == {
        "leases.coordination.k8s.io": 300,
        "widgets.example.com": 200,
    }
    part = scan(etcdmaint, cluster, "--prefix=/registry/configmaps/ns-1/", code=0)
    assert [row["values"] for row in part["resources"]] == [87]


def test_a_prefix_without_keys_is_said_loudly(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    said = etcdmaint("storage", "scan", endpoints(cluster), FAST, "--prefix=/nothing-here/")
    assert said.code == 0
    assert "NOTHING WAS FOUND" in said.err
    said = etcdmaint("storage", "scan", endpoints(cluster), FAST, "--storage-prefix=/elsewhere")
    assert "no object of Kubernetes was found below /elsewhere/" in said.err


def test_programs_get_csv(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    said = etcdmaint("storage", "scan", endpoints(cluster), FAST, "-o", "csv")
    rows = list(csv.DictReader(said.out.splitlines()))
    assert sum(int(row["values"]) for row in rows) == len(values())
    secrets = [row for row in rows if row["resource"] == "secrets"]
    assert {(row["provider"], row["key_name"]) for row in secrets} == {
        ("aesgcm", "key-0"),
        ("aesgcm", "key-1"),
    }


def test_keys_are_cut_where_that_is_asked_for(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    """A22."""
    found = scan(etcdmaint, cluster, "--redact", "--top=3")
    keys = {record["key"] for record in (*found["damaged"], *found["largest"])}
    assert keys == {"/registry/pods/ns-3/…", "/registry/configmaps/ns-1/…"} | (
        keys & {f"/registry/configmaps/ns-{number}/…" for number in range(7)}
    )


def test_what_a_policy_would_have_stored_otherwise_is_counted(
    cluster: EtcdCluster, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    """R47, R54, R55: both directions."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "{apiVersion: apiserver.config.k8s.io/v1alpha1, kind: StorageCompressionConfiguration, "
        "resources: [{resources: [configmaps], algorithm: Deflate, minSize: 1024}]}"
    )
    found = scan(etcdmaint, cluster, f"--policy={policy}")
    stale = {row["resource"]: row["stale"]["values"] for row in found["resources"]}
    wanted = sum(
        len(value) >= 1024 and len(value) <= 1_507_328
        for key, value in values().items()
        if b"/configmaps/" in key
    )
    assert stale["configmaps"] == wanted
    assert stale["pods"] == 40, "the deflated ones; a value that begins with zero is always framed"
    undecided = {row["resource"]: row["undecided"] for row in found["resources"]}
    assert undecided["secrets"] == 40
    policy.write_text("kind: Nonsense")
    said = etcdmaint("storage", "scan", endpoints(cluster), f"--policy={policy}")
    assert said.code == 2
    assert "kind" in one_sentence(said)


def test_old_revisions_are_counted_and_named(cluster: EtcdCluster, etcdmaint: CommandLine) -> None:
    """Often the real hog; exact for keys that are there at both ends."""
    gateway = cluster.members[0].gateway
    gateway.compact(gateway.put(b"/registry/pods/history/a", b"x" * 100))
    for number in range(9):
        gateway.put(b"/registry/pods/history/a", b"x" * 100)
        gateway.put(b"/registry/pods/history/b", b"y" * 100)
        del number
    found = scan(etcdmaint, cluster, "--history", "--top=2", code=10)
    gateway.post(
        "/v3/kv/deleterange", _range(b"/registry/pods/history/", b"/registry/pods/history0")
    )
    history = found["history"]
    assert history["complete"]
    assert {row["resource"]: row["oldRevisions"] for row in history["resources"]} == {"pods": 17}
    size = len(b"/registry/pods/history/a") + 100
    assert history["bytes"] == 17 * size
    assert history["busiest"][0] == {
        "key": "/registry/pods/history/a",
        "oldRevisions": 9,
        "bytes": 9 * size,
    }


def _range(start: bytes, end: bytes) -> dict[str, str]:
    import base64

    return {
        "key": base64.b64encode(start).decode(),
        "range_end": base64.b64encode(end).decode(),
    }


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--resource=nonsense"], "nonsense is no resource of Kubernetes"),
        (["--resource=pods", "--prefix=/x"], "--prefix"),
        (["--limit-rate=fast"], "fast"),
        (["--kms-rate=0"], "--kms-rate"),
        (["--resume=rubbish"], "--resume"),
        (["--encryption-config=/does/not/exist"], "cannot be read"),
        (["--top=-1"], "top"),
    ],
)
def test_bad_flags_are_told_before_anything_is_read(
    cluster: EtcdCluster, etcdmaint: CommandLine, flags: list[str], fault: str
) -> None:
    said = etcdmaint("storage", "scan", endpoints(cluster), *flags)
    assert said.code == 2, said.everything
    assert fault in one_sentence(said)


def test_a_broken_encryption_configuration_is_told_without_its_keys(
    cluster: EtcdCluster, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    config = tmp_path / "encryption.yaml"
    config.write_text(
        "{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: "
        "[{resources: [secrets], providers: [{aesgcm: {keys: [{name: a, secret: aHVudGVyMg==}]}}]}]}"
    )
    said = etcdmaint("storage", "scan", endpoints(cluster), f"--encryption-config={config}")
    assert said.code == 2
    assert "resources[0].providers[0].aesgcm.keys[0].secret" in one_sentence(said)
    assert "aHVudGVyMg" not in said.everything
    assert "hunter2" not in said.everything


def test_without_the_right_key_the_exit_code_says_so(
    cluster: EtcdCluster, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    config = tmp_path / "encryption.yaml"
    secret = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
    config.write_text(
        "{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: "
        "[{resources: [secrets], providers: [{aesgcm: {keys: "
        f"[{{name: other, secret: {secret}}}]}}}}]}}]}}"
    )
    scan(etcdmaint, cluster, f"--encryption-config={config}", "--resource=secrets", code=13)
    config.write_text(config.read_text().replace("name: other", "name: key-1"))
    found = scan(etcdmaint, cluster, f"--encryption-config={config}", "--resource=secrets")
    assert told(found) == {
        ("secrets", "encrypted aesgcm key-0"): 20,
        ("secrets", "decryption failed aesgcm key-1"): 20,
    }


def test_kms_v1_is_asked_only_when_that_is_wanted_and_at_a_rate(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    """One Decrypt a value, since each has a data key of its own."""
    cluster = etcd_cluster_factory(size=1)
    with (
        tempfile.TemporaryDirectory(prefix="kms") as short,
        KmsPlugin(f"{short}/kms.sock", ["kid-1"]) as plugin,
    ):
        for number in range(5):
            key = b"/registry/secrets/a/s-%d" % number
            secret, nonce = os.urandom(32), os.urandom(12)
            wrapped = plugin.wrap(secret, "kid-1")
            sealed = nonce + AESGCM(secret).encrypt(nonce, objects.protobuf(kind="Secret"), key)
            value = b"k8s:enc:kms:v1:old:" + len(wrapped).to_bytes(2, "big") + wrapped + sealed
            cluster.members[0].gateway.put(key, value)
        config = tmp_path / "encryption.yaml"
        config.write_text(
            "{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: "
            "[{resources: [secrets], providers: [{kms: {name: old, endpoint: "
            f"'{plugin.endpoint}'}}}}]}}]}}"
        )
        flag = f"--encryption-config={config}"
        found = scan(etcdmaint, cluster, flag, code=13)
        assert told(found) == {("secrets", "encrypted kms:v1 old"): 5}
        assert plugin.calls["Decrypt"] == 0
        began = time.monotonic()
        found = scan(etcdmaint, cluster, flag, "--decrypt-kms", "--kms-rate=20", code=0)
        assert time.monotonic() - began >= 4 / 20
        assert told(found) == {("secrets", "protobuf kms:v1 old"): 5}
        assert found["kmsCalls"]["Decrypt"] == plugin.calls["Decrypt"] == 5


def running(cluster: EtcdCluster, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "etcdmaint", "storage", "scan", endpoints(cluster), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **PATIENCE, "PYTHONUNBUFFERED": "1"},
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("three"), size=3) as started:
        plant(started, values().items())
        yield started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_scan_is_resumed_to_the_same_counts(
    three: EtcdCluster, etcdmaint: CommandLine, number: signal.Signals
) -> None:
    scanning = running(three, "--limit-rate=100Ki", "-o", "json")
    line = first_line(scanning)
    while not re.match(r"[1-9]\d* of .* left", line):
        # A busy machine has read nothing yet after a second; ten seconds later it has.
        line = first_line(scanning)
    scanning.send_signal(number)
    out, err = scanning.communicate(timeout=60)
    assert scanning.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    found = re.search(r"--resume (\S+)", err)
    assert found, err
    resumed = scan(etcdmaint, three, f"--resume={found[1]}")
    assert told(resumed) == TRUTH
    assert resumed["consistent"]


def first_line(scanning: subprocess.Popen[str]) -> str:
    """What it says next: after a second, and then every ten, in the middle of its work."""
    assert scanning.stderr is not None
    line = scanning.stderr.readline()
    assert re.match(r"\d+ of about \d+ keys, ", line), line
    return line


def test_a_follower_is_read_from(three: EtcdCluster, etcdmaint: CommandLine) -> None:
    found = scan(etcdmaint, three)
    assert told(found) == TRUTH
    assert found["member"] in {member.name for member in three.followers()}


def test_a_member_that_is_defragmented_is_left_alone(
    three: EtcdCluster, etcdmaint: CommandLine
) -> None:
    busy, other = three.followers()
    with hold_snapshot(busy):
        defragmenting = subprocess.Popen(three.etcdctl_command("defrag", member=busy))
        try:
            wait_until(busy.defragmenting, "a defragmentation in flight", 60.0)
            found = scan(etcdmaint, three)
        except BaseException:
            defragmenting.kill()
            raise
    defragmenting.wait(60)
    assert found["member"] == other.name
    assert told(found) == TRUTH


def test_a_scan_waits_for_a_sweep_that_holds_the_slot(three: EtcdCluster) -> None:
    slot = SlotValue(holder="operator etcdmaint-0", epoch="1", run="ns/now", since="")
    three.leader().gateway.put(SLOT_KEY, slot.encode())
    scanning = running(three, FAST, "-o", "json")
    line = first_line(scanning)
    three.etcdctl("del", SLOT_KEY.decode())
    assert "waiting for operator etcdmaint-0" in line
    out, err = scanning.communicate(timeout=60)
    assert scanning.returncode == 10, err
    found = told(json.loads(out))
    assert found == TRUTH


def test_when_etcd_goes_away_in_the_middle_the_token_is_printed(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    cluster = etcd_cluster_factory(size=1)
    planted = {b"/registry/pods/b/%03d" % number: objects.DEFLATED for number in range(40)}
    planted |= {b"/registry/pods/a/%d" % number: b"x" * 1_000_000 for number in range(20)}
    plant(cluster, planted.items())
    scanning = running(cluster, "--limit-rate=1Mi", "--patience=2s")
    first_line(scanning)
    member = cluster.members[0]
    member.kill()
    _, err = scanning.communicate(timeout=60)
    assert scanning.returncode == 1, err
    assert "Traceback" not in err
    found = re.search(r"--resume (\S+)", err)
    assert found, err
    member.start()
    said = etcdmaint(
        "storage", "scan", endpoints(cluster), FAST, "-o", "json", f"--resume={found[1]}"
    )
    document = json.loads(said.out)
    assert told(document) == {("pods", "deflate frame"): 40, ("pods", "opaque"): 20}
    assert document["consistent"]


@pytest.mark.parametrize("version", ["3.7", "3.6"])
def test_when_the_member_that_is_read_from_dies_another_one_is_read(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine, version: str
) -> None:
    """R150: at the same revision, each key once."""
    cluster = etcd_cluster_factory(size=3, version=version)
    planted = {b"/registry/pods/b/%03d" % number: objects.DEFLATED for number in range(40)}
    planted |= {b"/registry/pods/a/%02d" % number: b"x" * 1_000_000 for number in range(20)}
    plant(cluster, planted.items())
    read, other = cluster.followers()
    other.pause()
    try:
        timeouts = ("--dial-timeout=3s", "--command-timeout=3s")
        scanning = running(cluster, "--limit-rate=4Mi", "-o", "json", *timeouts)
        first_line(scanning)
    finally:
        other.resume()
    read.kill()
    out, err = scanning.communicate(timeout=60)
    document = json.loads(out)
    assert (document["member"], document["consistent"]) == (other.name, True), err
    assert told(document) == {("pods", "deflate frame"): 40, ("pods", "opaque"): 20}


def test_hostile_names_come_out_escaped_and_whole(
    cluster: EtcdCluster, etcdmaint: CommandLine
) -> None:
    found = scan(etcdmaint, cluster, "--top=1000")
    keys = [record["key"] for record in found["largest"]]
    assert any(key.startswith("/registry/pods/\\x1b[2J\\xff/") for key in keys)
    assert HOSTILE.decode("utf-8", "replace") not in keys


def test_a_scan_of_pages_that_is_compacted_under_its_feet_says_so(
    etcd_cluster_factory: EtcdClusterFactory, etcdmaint: CommandLine
) -> None:
    """Equal counts are claimed only for a scan of one revision."""
    cluster = etcd_cluster_factory(size=1, version="3.6")
    large = {b"/registry/pods/a/%02d" % number: b"{" + bytes(500_000) for number in range(40)}
    plant(cluster, large.items())
    scanning = running(cluster, "--limit-rate=4Mi", "-o", "json")
    first_line(scanning)
    gateway = cluster.members[0].gateway
    gateway.compact(gateway.put(b"/registry/pods/z", objects.protobuf()))
    out, err = scanning.communicate(timeout=60)
    document = json.loads(out)
    assert not document["consistent"]
    assert len(document["revisions"]) == 2
    assert "not of one revision" in err
    assert told(document) == {("pods", "opaque"): 40, ("pods", "protobuf"): 1}
