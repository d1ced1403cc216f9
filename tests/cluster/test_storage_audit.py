"""What a real kube-apiserver stores, counted; and the proof before a downgrade, against it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.cli.apiserver import ApiServerClient, ListExpired
from etcdmaint.compression.resources import INTERNAL
from etcdmaint.kube.access import load_access
from tests.controlplane import build
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until
from tests.kms_plugin import KmsPlugin
from tests.unit.cli.commandline import CommandLine
from tests.unit.compression import objects

from .storing import KINDS, SEED, WIDGETS, Kind, Stored, configuration

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

COPIES = 300
FAST = "--limit-rate=0"


@pytest.fixture
def etcdmaint(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.fixture(scope="module", params=["3.7", "3.6"])
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stored]:
    """Objects of every kind, bare at first; in an etcd that streams ranges, and in one that does not."""
    folder = tmp_path_factory.mktemp("storing")
    file = folder / "encryption.json"
    with (
        tempfile.TemporaryDirectory(prefix="kms") as short,
        KmsPlugin(f"{short}/kms.sock", ["kid-1"]) as plugin,
        EtcdCluster(folder / "etcd", size=1, version=request.param) as etcd,
    ):
        file.write_bytes(configuration(plugin, writes=False))
        with ControlPlane(folder, etcd=etcd, encryption_config=file) as plane:
            plane.apply(WIDGETS)
            plane.wait_established("widgets.example.com")
            made = Stored(plane, plugin, file)
            for kind in KINDS:
                made.create(kind)
            asyncio.run(copies(made, 1))
            yield made


async def copies(made: Stored, first: int) -> None:
    for kind in KINDS:
        await made.copy(kind, first, COPIES)


def run(etcdmaint: CommandLine, stored: Stored, *arguments: str) -> tuple[int, dict[str, Any], str]:
    command, *rest = arguments
    endpoint = f"--endpoints={stored.plane.etcd.client_urls[0]}"
    said = etcdmaint("storage", command, endpoint, FAST, "-o", "json", *rest)
    assert said.out, said.err
    return said.code, json.loads(said.out), said.err


def forms(document: dict[str, Any], kind: Kind) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in document["resources"]:
        if row["resource"] == kind.name:
            for form in row["forms"]:
                found[form["content"], form["provider"], form["keyName"]] += form["values"]
    return found


def test_01_bare_objects_are_counted_as_the_api_server_lists_them(
    stored: Stored, etcdmaint: CommandLine
) -> None:
    """R150, R18: every resource of a real API server, each known by its key."""
    code, found, _ = run(etcdmaint, stored, "scan")
    assert code == 0
    assert found["consistent"]
    (revision,) = found["revisions"]
    for kind in KINDS:
        every = forms(found, kind)
        path = kind.path.replace("/namespaces/default", "")
        assert sum(every.values()) == stored.listed(path, revision)
        assert every == {(kind.content, "", ""): every.total()}
        assert every.total() > COPIES
    unknown = [row["resource"] for row in found["resources"] if not row["known"]]
    assert all(name == "compact_rev_key" for name in unknown)
    assert sum(row["damaged"] for row in found["resources"]) == 0


def test_02_a_clean_cluster_is_verified(stored: Stored, etcdmaint: CommandLine) -> None:
    """R148, R150: every resource, at one revision, against the API server's own lists."""
    kubeconfig = f"--kubeconfig={stored.plane.kubeconfig()}"
    code, found, err = run(etcdmaint, stored, "verify-downgrade", kubeconfig)
    assert code == 0, (found, err)
    assert found["verified"]
    listed = {row["resource"]: row["listed"] for row in found["resources"]}
    for kind in KINDS:
        assert listed[kind.name] > COPIES
    internal = [name for name, number in listed.items() if number is None]
    assert "servicenodeportallocations" in internal
    assert set(internal) <= {resource for _, resource in INTERNAL}
    one = "--resource=configmaps"
    code, found, _ = run(etcdmaint, stored, "verify-downgrade", kubeconfig, one)
    assert (code, [row["resource"] for row in found["resources"]]) == (0, ["configmaps"])
    code, found, _ = run(
        etcdmaint, stored, "verify-downgrade", kubeconfig, "--resource=podtemplates"
    )
    assert code == 15
    assert "an empty scan proves nothing" in found["resources"][0]["faults"][0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_02_an_object_is_shown_as_the_api_server_shows_it(
    stored: Stored, etcdmaint: CommandLine, kind: Kind
) -> None:
    """Field by field, from the bytes in etcd alone."""
    name = (kind.name, SEED, "--namespace=default", "--show-secrets")
    endpoint = f"--endpoints={stored.plane.etcd.client_urls[0]}"
    said = etcdmaint("storage", "get", endpoint, "-o", "json", *name)
    assert said.code == 0, said.err
    served = stored.plane.api.request("GET", f"{kind.path}/{SEED}")
    del served["metadata"]["resourceVersion"]

    def told(value: Any) -> Any:
        """Without what is empty: protobuf does not keep it."""
        if isinstance(value, dict):
            kept = {name: told(content) for name, content in value.items()}
            return {
                name: content for name, content in kept.items() if content not in ({}, None, "")
            }
        return [told(each) for each in value] if isinstance(value, list) else value

    assert told(json.loads(said.out)) == told(served)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (objects.DEFLATED, "1 are frames"),
        (objects.NEWER, "1 cannot be read"),
        (objects.MALFORMED, "1 cannot be read"),
        (b"k8s:enc:aesgcm:v1:nobody:x", "1 are encrypted and were not looked into"),
    ],
    ids=["a frame", "a newer frame", "a malformed frame", "an unknown key"],
)
def test_03_one_value_stands_in_the_way_of_a_downgrade(
    stored: Stored, etcdmaint: CommandLine, value: bytes, fault: str
) -> None:
    """R149, R150: and what the API server says about it is told as well."""
    kind = next(kind for kind in KINDS if kind.plural == "configmaps")
    asyncio.run(put(stored, kind.key("zz"), value))
    try:
        code, found, _ = run(
            etcdmaint,
            stored,
            "verify-downgrade",
            f"--kubeconfig={stored.plane.kubeconfig()}",
            "--resource=configmaps",
        )
    finally:
        asyncio.run(stored.delete(kind, "zz", "zzz"))
    assert code == 15
    assert not found["verified"], found
    assert fault in found["resources"][0]["faults"]


async def put(stored: Stored, key: bytes, value: bytes) -> int:
    async with stored.etcd() as client:
        return (await client.put(key, value)).header.revision


def test_03_one_frame_breaks_the_whole_list_of_a_release_without_the_kep(stored: Stored) -> None:
    """R155: what a downgrade too early comes to; once it is gone, everything is there as before."""
    kind = next(kind for kind in KINDS if kind.plural == "configmaps")
    revision = asyncio.run(put(stored, kind.key("zz"), objects.DEFLATED))

    def listed() -> int:
        try:
            return stored.listed(kind.path, revision - 1, patience=0.0)
        except ApiError:
            return 0

    try:
        # It cannot decode the object, and its watch cache does not come past it.
        with pytest.raises(ApiError) as refusal:
            stored.listed(kind.path, revision, patience=5.0)
        assert refusal.value.status in (429, 500, 504), refusal.value
    finally:
        asyncio.run(stored.delete(kind, "zz", "zzz"))
        found = wait_until(listed, "the list without the frame", timeout=150)
    assert found > COPIES


def test_03_a_release_without_the_kep_does_not_start_with_its_flag(tmp_path: Path) -> None:
    """R156: nobody can turn compression on for a release that would not read it."""
    flag = "--storage-compression-config"
    started = subprocess.run(
        [build.program("kube-apiserver"), f"{flag}={tmp_path}/compression.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert started.returncode != 0
    assert f"unknown flag: {flag}" in started.stderr


def test_04_another_clusters_api_server_is_not_believed(
    stored: Stored, etcdmaint: CommandLine, control_plane: ControlPlane
) -> None:
    """R150: proven by kube-system's UID, before anything is counted."""
    kubeconfig = f"--kubeconfig={control_plane.kubeconfig()}"
    code, found, _ = run(etcdmaint, stored, "verify-downgrade", kubeconfig)
    assert code == 15
    assert "does not use this etcd" in found["faults"][0]
    assert found["resources"] == []


def test_05_an_api_server_that_was_not_asked_is_a_reason_to_refuse(
    stored: Stored, etcdmaint: CommandLine
) -> None:
    """R139, R148: each API server keeps an identity Lease; there is one more than was asked."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    name = "apiserver-another"
    mine = stored.plane.api.request(
        "GET", f"{leases}?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver"
    )["items"][0]
    stored.plane.api.request(
        "POST",
        leases,
        {
            "metadata": {"name": name, "labels": mine["metadata"]["labels"]},
            "spec": mine["spec"] | {"holderIdentity": name},
        },
    )
    try:
        code, found, _ = run(
            etcdmaint, stored, "verify-downgrade", f"--kubeconfig={stored.plane.kubeconfig()}"
        )
    finally:
        stored.plane.api.request("DELETE", f"{leases}/{name}")
    assert code == 15
    assert "there are 2 API servers and 1 was asked" in found["faults"][0]
    assert found["resources"] == []


async def test_06_a_revision_that_is_gone_is_told_by_the_api_server_too(stored: Stored) -> None:
    """R150: then everything starts again."""
    async with stored.etcd() as client:
        revision = (await client.put(b"/registry/other", b"x")).header.revision
        await client.delete_range(b"/registry/other")
        await client.compact(revision, physical=True)
    access = await load_access(str(stored.plane.kubeconfig()))
    async with ApiServerClient(access) as server:
        # Of a revision after its cache began, an API server may still answer from a snapshot in
        # its memory. The cache of widgets began when they were defined, long after this one.
        with pytest.raises(ListExpired):
            await server.count("example.com", "widgets", 2)
        assert await server.count("", "configmaps", revision) > COPIES
        assert await server.count("example.com", "widgets", revision) == COPIES + 1
        assert await server.count("example.com", "gadgets", revision) is None
        assert await server.count("nowhere.example.com", "gadgets", revision) is None
        facts = await server.facts()
        assert facts.can_write_frames is False
        assert facts.policy_hash == ""


def test_06_a_verification_starts_again_when_its_revision_is_compacted_away(
    stored: Stored,
) -> None:
    """R150: kube-apiserver itself compacts every few minutes."""
    command = [sys.executable, "-m", "etcdmaint", "storage", "verify-downgrade"]
    endpoint = f"--endpoints={stored.plane.etcd.client_urls[0]}"
    kubeconfig = f"--kubeconfig={stored.plane.kubeconfig()}"
    # The second chunk is counted when the first is paid for: time enough to compact.
    verifying = subprocess.Popen(
        [*command, endpoint, kubeconfig, "--limit-rate=400Ki", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert verifying.stderr is not None
    assert " of about " in verifying.stderr.readline()
    asyncio.run(compact(stored))
    out, err = verifying.communicate(timeout=200)
    assert verifying.returncode == 0, (out, err)
    assert "the revision was compacted away; starting again" in err
    assert json.loads(out)["verified"]


async def compact(stored: Stored) -> None:
    async with stored.etcd() as client:
        revision = (await client.put(b"/other", b"x")).header.revision
        await client.compact(revision, physical=True)


def test_07_encrypted_objects_are_counted_by_provider_and_key(
    stored: Stored, etcdmaint: CommandLine
) -> None:
    """Each provider beside what was bare before; then the same with the keys, and frames among them."""
    stored.encrypt(writes=True)
    before = {kind: forms(scanned(stored, etcdmaint), kind) for kind in KINDS}
    for kind in KINDS:
        asyncio.run(stored.copy(kind, 1001, COPIES))
    config = f"--encryption-config={stored.file}"
    kubeconfig = f"--kubeconfig={stored.plane.kubeconfig()}"
    code, verified, err = run(etcdmaint, stored, "verify-downgrade", kubeconfig, config)
    assert code == 0, (verified, err)
    # From here on the API server cannot list any of these kinds: no release of today reads frames.
    for kind in KINDS:
        asyncio.run(stored.copy(kind, 2001, 50, framed=True))
    found = scanned(stored, etcdmaint)
    for kind in KINDS:
        more = forms(found, kind) - before[kind]
        if kind.provider:
            assert more == {("encrypted", kind.provider, kind.key_name): COPIES + 50}
        else:
            assert more == {(kind.content, "", ""): COPIES, ("deflate frame", "", ""): 50}
    code, blind, _ = run(etcdmaint, stored, "verify-downgrade", kubeconfig)
    assert code == 15
    assert SEED not in json.dumps(blind)

    calls = stored.plugin.calls["Decrypt"]
    code, opened, err = run(etcdmaint, stored, "scan", config)
    assert code == 0, err
    for kind in KINDS:
        within = forms(opened, kind)
        assert within[kind.content, kind.provider, kind.key_name] >= COPIES
        assert within["deflate frame", kind.provider, kind.key_name] == 50
        assert sum(within.values()) == sum(forms(found, kind).values())
    # One seed of the API server's and one for each time that copies were made.
    made = stored.plugin.calls["Decrypt"] - calls
    assert opened["kmsCalls"]["Decrypt"] == made <= 4
    assert f"Decrypt calls to KMS plugins: {made}" in err

    code, estimated, err = run(etcdmaint, stored, "estimate", config)
    assert code == 0, err
    rows = {row["resource"]: row for row in estimated["resources"]}
    assert "secrets" not in rows
    assert rows["configmaps"]["framedAlready"] == 50
    (at,) = [each for each in rows["configmaps"]["minSizes"] if each["minSize"] == 1024]
    assert at["framed"] >= 2 * COPIES
    assert at["bytesThen"] < at["bytesNow"] / 2


def scanned(stored: Stored, etcdmaint: CommandLine) -> dict[str, Any]:
    code, found, err = run(etcdmaint, stored, "scan")
    assert code == 0, err
    return found


def test_08_a_plugin_that_does_not_answer_ends_a_scan_with_its_name(
    stored: Stored, etcdmaint: CommandLine, tmp_path: Path
) -> None:
    config = tmp_path / "encryption.json"
    away = stored.file.read_text().replace(stored.plugin.socket, "/nowhere/kms.sock")
    config.write_text(away)
    said = etcdmaint(
        "storage",
        "scan",
        f"--endpoints={stored.plane.etcd.client_urls[0]}",
        FAST,
        f"--encryption-config={config}",
    )
    assert said.code == 1
    assert "vault" in said.err
    assert "Traceback" not in said.err
