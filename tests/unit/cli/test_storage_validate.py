"""`etcdmaint storage validate` and `render`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etcdmaint.compression.policy import Policy, Stage

from .commandline import CommandLine, one_sentence

POLICY = """\
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
  - resources: [events]
    algorithm: None
  - resources: ["*.*"]
    algorithm: Deflate
    minSize: 2Ki
"""
ENCRYPTION = """\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [secrets]
    providers:
      - aescbc: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
      - identity: {}
"""
OBJECT = """\
apiVersion: etcdmaint.io/v1alpha1
kind: StorageCompressionConfiguration
metadata: {name: all}
spec:
  resources:
    - resources: [events]
      algorithm: None
    - resources: ["*.*"]
      algorithm: Deflate
      minSize: 2Ki
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


def test_good_files_of_each_kind_are_told_with_their_hash(
    etcdmaint: CommandLine, file: Path
) -> None:
    """R101, A15: the hash that every process in front of one etcd must have."""
    for text, kind in (
        (POLICY, "StorageCompressionConfiguration"),
        (ENCRYPTION, "EncryptionConfiguration"),
        (OBJECT, "StorageCompressionConfiguration"),
    ):
        file.write_text(text)
        said = etcdmaint("storage", "validate", str(file))
        assert said.code == 0, said.everything
        assert f"a valid {kind}, sha256:" in said.out
    file.write_text(ENCRYPTION)
    assert "warning" in etcdmaint("storage", "validate", str(file)).out, "aescbc writes"
    file.write_text(POLICY)
    told = json.loads(etcdmaint("storage", "validate", str(file), "-o", "json").out)
    loaded = Policy.load(POLICY.encode(), stage=Stage.ALPHA, min_compatibility_version="1.38")
    assert told["hash"] == loaded.hash


def test_every_fault_of_a_policy_is_told_with_its_line(etcdmaint: CommandLine, file: Path) -> None:
    """R104, R108 to R110."""
    file.write_text(
        POLICY.replace("2Ki", "63").replace("algorithm: None", "algorithm: Gzip")
        + "  - resources: [pods]\n    algorithm: Deflate\n    level: 9\n"
    )
    said = etcdmaint("storage", "validate", str(file))
    assert said.code == 1
    assert [
        line.removeprefix(f"{file}: ").partition(": ")[0] for line in said.out.splitlines()
    ] == [
        "line 5",
        "line 8",
        "line 9",
        "line 11",
    ]
    told = json.loads(etcdmaint("storage", "validate", str(file), "-o", "json").out)
    assert not told["valid"]
    assert [(each["line"], each["field"]) for each in told["problems"]] == [
        (5, "resources[0].algorithm"),
        (8, "resources[1].minSize"),
        (9, "resources[2].resources[0]"),
        (11, "resources[2].level"),
    ]


def test_every_fault_of_an_encryption_configuration_is_told_without_its_keys(
    etcdmaint: CommandLine, file: Path
) -> None:
    file.write_text(
        ENCRYPTION.replace("resources: [secrets]", "resources: [Secrets]")
        .replace("MDEy", "hunter2!")
        .replace("identity: {}", "kms: {apiVersion: v9}")
    )
    said = etcdmaint("storage", "validate", str(file))
    assert said.code == 1
    assert {"line 4", "line 6", "line 7"} <= {
        line.removeprefix(f"{file}: ").partition(": ")[0] for line in said.out.splitlines()
    }
    assert "hunter2" not in said.everything


def test_the_stage_and_the_oldest_reader_decide(etcdmaint: CommandLine, file: Path) -> None:
    """A20, R116."""
    file.write_text(POLICY + "    rewrite: OnWrite\n")
    assert etcdmaint("storage", "validate", str(file)).code == 1
    assert etcdmaint("storage", "validate", str(file), "--stage=beta").code == 0
    file.write_text(POLICY)
    said = etcdmaint("storage", "validate", str(file), "--min-compatibility-version=1.37")
    assert said.code == 1
    assert "line 7: resources[1].algorithm" in said.out
    assert etcdmaint("storage", "validate", str(file), "--min-compatibility-version=x").code == 2


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Pod\napiVersion: v1\n", "kind"),
        ("[1, 2]", "kind"),
        ("a: [", "not readable as YAML"),
        ("", "is empty"),
        ("!!python/object:os.system {}", "kind"),
        ("{a: &a [*a]}", "aliases"),
    ],
)
def test_what_is_neither_is_told(etcdmaint: CommandLine, file: Path, text: str, fault: str) -> None:
    file.write_text(text)
    said = etcdmaint("storage", "validate", str(file))
    assert said.code == 1, said.everything
    assert fault in said.out


def test_a_file_that_is_not_there_is_wrong_usage(etcdmaint: CommandLine) -> None:
    said = etcdmaint("storage", "validate", "/does/not/exist")
    assert said.code == 2
    assert "/does/not/exist" in one_sentence(said)


def test_what_is_rendered_loads_and_means_the_same(etcdmaint: CommandLine, file: Path) -> None:
    """A20: no default is written out, and the strict loader takes it."""
    file.write_text(OBJECT)
    said = etcdmaint("storage", "render", str(file))
    assert said.code == 0
    rendered = Policy.load(said.out.encode(), stage=Stage.ALPHA, min_compatibility_version="1.38")
    written = Policy.load(POLICY.encode(), stage=Stage.ALPHA, min_compatibility_version="1.38")
    assert rendered.rules == written.rules
    assert "rewrite" not in said.out
    assert etcdmaint("storage", "render", str(file)).out == said.out
    assert rendered.hash in etcdmaint("storage", "validate", str(file)).out


def test_an_object_with_faults_is_not_rendered_and_they_are_told_by_its_own_lines(
    etcdmaint: CommandLine, file: Path
) -> None:
    file.write_text(
        OBJECT.replace("2Ki", "1")
        + "    - {resources: [pods], algorithm: Deflate}\n    - resources: pods\n"
    )
    for command in ("render", "validate"):
        said = etcdmaint("storage", command, str(file))
        assert said.code == 1
        assert "line 12: spec.resources[3]" in said.everything
    file.write_text(OBJECT.replace("2Ki", "1"))
    said = etcdmaint("storage", "render", str(file))
    assert said.out == ""
    assert "line 10: spec.resources[1].minSize" in said.err
    file.write_text(OBJECT + "  stage: gamma\n")
    assert etcdmaint("storage", "render", str(file)).code == 2
    file.write_text(POLICY)
    assert "etcdmaint.io" in one_sentence(etcdmaint("storage", "render", str(file)))


@pytest.mark.parametrize("value", ["2024-01-01", "[1]", "{a: b}", "2024-01-01T00:00:00Z"])
@pytest.mark.parametrize("name", ["minSize", "rewrite"])
def test_what_no_json_can_hold_is_a_fault_of_the_file(
    etcdmaint: CommandLine, file: Path, name: str, value: str
) -> None:
    """YAML has dates, and more; nothing of that is a fault of ours."""
    file.write_text(f"{OBJECT}      {name}: {value}\n")
    for command in ("validate", "render"):
        said = etcdmaint("storage", command, str(file))
        assert said.code == 1
        assert f".{name}: must be a number or a text" in said.everything, said.everything


def test_an_object_that_is_not_alone_in_its_file_is_not_said_to_be_missing(
    etcdmaint: CommandLine, file: Path
) -> None:
    file.write_text(f"kind: Other\n---\n{OBJECT}")
    said = etcdmaint("storage", "render", str(file))
    assert said.code == 2
    assert "more than one YAML document" in said.err


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "/dev/zero"),
        ("render", "/dev/zero"),
        ("scan", "--policy", "/dev/zero"),
        ("scan", "--encryption-config", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_a_file_without_an_end_is_too_large(etcdmaint: CommandLine, command: list[str]) -> None:
    said = etcdmaint("storage", *command)
    assert said.code in (1, 2)
    assert "/dev/zero" in said.everything
    assert "is larger than" in said.everything
