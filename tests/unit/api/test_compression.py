"""The spec of a StorageCompressionConfiguration, by the table that the API server is asked about too."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings

from etcdmaint.api.compression import (
    ApiServerStatus,
    AuditStatus,
    EncryptionCount,
    FormCount,
    ResourceCount,
    StorageCompressionStatus,
    compression_status,
    parse_compression,
)
from etcdmaint.api.vocabulary import ClusterKind, CompressionStage
from etcdmaint.kube.storage_compression_file import read_configuration
from tests.unit.api.cases import Case, by_field
from tests.unit.api.compression_cases import COMPRESSION_CASES, PODS, policy
from tests.unit.api.test_rubbish import ANYTHING
from tests.unit.api.test_specs import METADATA, stored

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
FULL_COMPRESSION = StorageCompressionStatus(
    observed_generation=3,
    cluster_id=0xAC0DCDECDB11ADAA,
    config_map="policy-storage-compression",
    hash="sha256:" + "ab" * 32,
    api_server=ApiServerStatus(version="v1.38.0", emulation="1.38", min_compatibility="1.37"),
    last_audit=AuditStatus(
        cluster_id=0xAC0DCDECDB11ADAA,
        started_at=NOON,
        completed_at=NOON,
        first_revision=7,
        last_revision=9,
        consistent=False,
        values=130,
        damaged=1,
        forms=(
            FormCount(form="deflate", values=129, bytes=4096),
            FormCount(form="checksum", values=1),
        ),
        encryption=(EncryptionCount(provider="kms:v2", key_name="vault", values=2),),
        resources=(ResourceCount(resource="pods", values=130, damaged=1, forms={"deflate": 129}),),
    ),
    conditions=({"type": "Valid", "status": "True"},),
)


@pytest.mark.parametrize("cases", by_field(COMPRESSION_CASES))
def test_the_operator_says_what_the_crd_says_and_what_the_crd_cannot_see(cases: list[Case]) -> None:
    """R102 to R113: by the same code as the file's."""
    for case in cases:
        valid = read_configuration(stored(case.spec)).valid
        told = f"{case.name}: {valid.message}"
        if case.models_field is None:
            assert valid.status is True, told
            continue
        assert valid.status is False, told
        assert valid.reason == "InvalidSpec", told
        named = valid.message.split(": ")
        assert any(each.startswith(case.models_field) for each in (valid.message, *named)), told
        if case.field is None:
            assert case.says in valid.message, told
        assert valid.message.isascii(), told


def test_the_names_of_the_cases_are_unique() -> None:
    names = [case.name for case in COMPRESSION_CASES]
    assert len(names) == len(set(names))


def test_what_is_left_out_has_its_default_but_for_what_the_file_would_say() -> None:
    """A20: a default is never written out, so none is filled in."""
    spec = parse_compression(stored(policy(PODS))).spec
    assert spec.stage is CompressionStage.ALPHA
    assert spec.cluster_ref is None
    assert spec.audit.interval == 24 * 3600
    assert spec.audit.bytes_per_second == 20 << 20
    (entry,) = spec.resources
    assert entry.min_size is None
    assert entry.rewrite is None
    given = parse_compression(stored({"clusterRef": {"name": "etcd"}})).spec.cluster_ref
    assert given is not None
    assert given.kind is ClusterKind.ETCD_CLUSTER


@settings(max_examples=60)
@given(obj=ANYTHING, spec=ANYTHING)
@example(obj={}, spec={})
def test_any_json_is_refused_or_read(obj: Any, spec: Any) -> None:
    for each in (obj, {"metadata": METADATA, "spec": spec}):
        if not isinstance(each, dict):
            continue
        reading = read_configuration(each)
        assert (reading.file is None) == (reading.valid.status is False)


@settings(max_examples=40)
@given(status=ANYTHING)
def test_no_status_stops_an_object_from_being_read(status: Any) -> None:
    """A status may be written by anybody."""
    once = compression_status({"status": status}).to_wire()
    json.dumps(once)
    assert compression_status({"status": once}).to_wire() == once


def test_a_full_status_is_read_back_as_it_was_written() -> None:
    assert compression_status({"status": FULL_COMPRESSION.to_wire()}) == FULL_COMPRESSION
