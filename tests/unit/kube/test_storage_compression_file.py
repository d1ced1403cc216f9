"""From an object to the bytes of the file: stable, nothing added, and judged by the file's own reader."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.kube.storage_compression_file import PolicyFile, read_configuration
from tests.unit.api.cases import Case
from tests.unit.api.compression_cases import ADMITTED, KEP_SAMPLE, PODS, entry, many, policy
from tests.unit.api.test_specs import stored


def file_of(spec: Any) -> PolicyFile:
    file = read_configuration(stored(spec)).file
    assert file is not None
    return file


GOLDEN = b"""\
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
- resources:
  - "events"
  - "events.events.k8s.io"
  algorithm: "None"
- resources:
  - "customwidgets.example.com"
  algorithm: "Deflate"
  minSize: 512
- resources:
  - "*.*"
  algorithm: "Deflate"
"""


def test_the_keps_sample_is_these_bytes_for_ever() -> None:
    """A15, R113, R127: whoever changes them makes every API server load another file."""
    file = file_of(KEP_SAMPLE)
    assert file.data == GOLDEN
    assert file.hash == f"sha256:{hashlib.sha256(GOLDEN).hexdigest()}"
    assert file_of({}).data.endswith(b"\nresources: []\n")


@pytest.mark.parametrize(
    ("written", "size"), [("1Ki", 1024), ("1.5Ki", 1536), ("1e3", 1000), (64, 64)]
)
def test_a_size_is_a_whole_number_in_the_file(written: Any, size: int) -> None:
    """A11: which the field takes, whether it is a quantity there or an integer."""
    (only,) = yaml.safe_load(file_of(entry(minSize=written)).data)["resources"]
    assert only["minSize"] == size


def test_only_what_was_written_is_in_the_file() -> None:
    """A20: a strict loader refuses what its release does not know."""
    (only,) = yaml.safe_load(file_of(entry()).data)["resources"]
    assert set(only) == {"resources", "algorithm"}
    spec = entry(rewrite="Eager") | {"stage": "beta", "clusterRef": {"name": "etcd"}}
    loaded = yaml.safe_load(file_of(spec).data)
    assert set(loaded) == {"apiVersion", "kind", "resources"}
    assert loaded["resources"][0]["rewrite"] == "Eager"


@pytest.mark.parametrize(
    "case", [case for case in ADMITTED if case.models_field is None], ids=lambda case: case.name
)
def test_what_is_valid_loads_and_means_what_was_written(case: Case) -> None:
    """R106, R107: entry for entry."""
    spec = case.spec
    stage = Stage(spec.get("stage") or "alpha")
    file = file_of(spec)
    loaded = Policy.load(file.data, stage=stage, min_compatibility_version="1.38")
    assert loaded.hash == file.hash
    entries = spec.get("resources") or []
    assert [rule.algorithm for rule in loaded.rules] == [each["algorithm"] for each in entries]
    assert [rule.min_size != 1024 for rule in loaded.rules] == [
        str(each.get("minSize") or 1024) not in ("1024", "1Ki") for each in entries
    ]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=12), max_size=4), st.text(max_size=8), st.text(max_size=8))
def test_no_text_gets_out_of_its_quotes(names: list[str], algorithm: str, size: str) -> None:
    """Whatever stands in a field, the file has that one entry or is refused."""
    spec = policy({"resources": names, "algorithm": algorithm, "minSize": size})
    reading = read_configuration(stored(spec))
    if reading.file is not None:
        assert [list(each) for each in yaml.safe_load(reading.file.data)["resources"]] == [
            ["resources", "algorithm", "minSize"]
        ]
    else:
        assert "spec.resources" in reading.valid.message


def test_every_fault_is_told_with_its_path_at_once() -> None:
    """R109, R125."""
    spec = policy(
        {"resources": ["*.*"], "algorithm": "Gzip"},
        {"resources": ["pods", "Pods"], "algorithm": "Deflate", "minSize": 63},
    )
    valid = read_configuration(stored(spec)).valid
    assert valid.message.startswith("4 faults: ")
    for path in (
        "spec.resources[0].algorithm: ",
        "spec.resources[1].resources[0]: never takes effect",
        "spec.resources[1].resources[1]: must not contain capital letters",
        "spec.resources[1].minSize: ",
    ):
        assert path in valid.message
    assert "line" not in valid.message


def test_faults_that_have_no_room_in_a_message_are_counted() -> None:
    spec = policy(*(PODS | {"minSize": "64.5"} for _ in range(200)))
    message = read_configuration(stored(spec)).valid.message
    assert message.startswith("399 faults: spec.resources[0].minSize: ")
    told, more = message.removeprefix("399 faults: ").split("; and ")
    assert len(told.split("; ")) + int(more.removesuffix(" more")) == 399
    assert 3500 < len(message) <= 4096


def test_a_file_that_no_api_server_could_load_is_not_valid() -> None:
    """A megabyte is the reader's limit."""
    names = [f"{'x' * 60}.{'y' * 200}{index}" for index in range(64)]
    spec = policy(*({**PODS, "resources": [f"a{n}.{name}" for name in names]} for n in range(256)))
    valid = read_configuration(stored(spec)).valid
    assert valid.status is False
    assert "spec.resources: is larger than" in valid.message


def test_secrets_by_name_are_warned_of_once_and_by_wildcard_not_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R121 to R123, R120."""
    with caplog.at_level(logging.WARNING):
        warned = read_configuration(stored(entry(resources=["secrets"]))).valid
    assert (warned.status, warned.reason) == (True, "SecretsSelected")
    assert "how well its content compresses" in warned.message
    assert len(caplog.records) == 1
    for spec in (entry(resources=["*.*"]), entry(resources=["secrets"], algorithm="None")):
        assert read_configuration(stored(spec)).valid.reason == "Valid"


def test_what_a_file_asks_of_a_release_is_named_by_its_first_field() -> None:
    """R116, R119."""
    reader = file_of(KEP_SAMPLE).reader
    assert reader is not None
    assert (reader.release, reader.field) == ((1, 38), "spec.resources[1].algorithm")
    assert file_of(KEP_SAMPLE).fields is None
    assert file_of(entry(algorithm="None")).reader is None
    fields = file_of(entry(rewrite="OnWrite") | {"stage": "beta"}).fields
    assert fields is not None
    assert (fields.release, fields.field) == ((1, 39), "spec.resources[0].rewrite")
    assert file_of(many(200)).reader == file_of(many(1)).reader
