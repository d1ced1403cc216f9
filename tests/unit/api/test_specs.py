"""The two specs, by the table that the API server is asked about as well."""

from __future__ import annotations

import types
from fractions import Fraction
from typing import Any

import pytest

from etcdmaint.api.connection import EtcdConnection, parse_connection
from etcdmaint.api.defrag import EtcdDefrag, EtcdDefragSpec, parse_defrag
from etcdmaint.api.vocabulary import ClusterKind, LeaderTransfer
from etcdmaint.errors import InvalidInput
from tests.unit.api.cases import (
    ABSENT,
    CONNECTION_CASES,
    DEFRAG_CASES,
    REF,
    TLS,
    Case,
    by_field,
    connection,
    rule,
)

METADATA = {
    "name": "etcd-now",
    "namespace": "team-a",
    "uid": "4b1f2a3c",
    "generation": 1,
    "creationTimestamp": "2026-11-29T10:00:00Z",
}


def stored(spec: Any, status: Any = None, **metadata: Any) -> dict[str, Any]:
    """An object as the API server hands it out."""
    body: dict[str, Any] = {"metadata": {**METADATA, **metadata}, "status": status}
    return body if spec is ABSENT else {**body, "spec": spec}


def refusal(parse: Any, spec: Any) -> InvalidInput | None:
    """How the models refuse it, None where they do not."""
    try:
        parse(stored(spec))
    except InvalidInput as refused:
        return refused
    return None


def check(case: Case, refused: InvalidInput | None) -> None:
    """Hold the models' verdict against the table's."""
    wanted = case.models_field
    if wanted is None:
        assert refused is None, case.name
        return
    assert refused is not None, f"{case.name}: it was accepted"
    assert refused.field == wanted or refused.field.startswith(f"{wanted}["), case.name
    assert case.says in refused.fault, case.name
    assert str(refused).isascii(), case.name
    assert len(str(refused)) < 400, case.name


@pytest.mark.parametrize("cases", by_field(DEFRAG_CASES))
def test_the_model_of_an_etcddefrag_says_what_the_crd_says(cases: list[Case]) -> None:
    """D20, D52."""
    for case in cases:
        check(case, refusal(parse_defrag, case.spec))


@pytest.mark.parametrize("cases", by_field(CONNECTION_CASES))
def test_the_model_of_an_etcdconnection_says_what_the_crd_says(cases: list[Case]) -> None:
    """D51: Secrets of the own namespace only, no credential without TLS."""
    for case in cases:
        check(case, refusal(parse_connection, case.spec))


def test_the_names_of_the_cases_are_unique() -> None:
    for cases in (DEFRAG_CASES, CONNECTION_CASES):
        names = [case.name for case in cases]
        assert len(names) == len(set(names))


def spec_of(spec: Any) -> EtcdDefragSpec:
    return parse_defrag(stored(spec)).spec


def test_no_rule_is_an_empty_rule_is_two_hundred_mebibytes() -> None:
    """D20."""
    assert spec_of({"clusterRef": REF}) == spec_of(rule())
    given = spec_of(rule()).rule
    assert not given.all
    assert given.free_space_above == 200 * 2**20
    assert given.quota_usage_above is None
    assert given.min_reclaim == 32 * 2**20


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        ({"quotaUsageAbove": "80%"}, 32 * 2**20),
        ({"quotaUsageAbove": "80%", "freeSpaceAbove": "16Mi"}, 16 * 2**20),
        ({"freeSpaceAbove": 1}, 1),
        ({"freeSpaceAbove": "1Gi"}, 32 * 2**20),
        ({"freeSpaceAbove": "1Gi", "minReclaim": "1Gi", "quotaUsageAbove": "1%"}, 2**30),
    ],
)
def test_an_omitted_least_win_is_the_smaller_of_its_default_and_the_threshold(
    fields: dict[str, Any], least: int
) -> None:
    """D20."""
    assert spec_of(rule(**fields)).rule.min_reclaim == least


def test_thresholds_are_exact() -> None:
    given = spec_of(rule(freeSpaceAbove="1.5Gi", quotaUsageAbove="33%", minReclaim="0.5")).rule
    assert given.free_space_above == 1610612736
    assert given.quota_usage_above == Fraction(33, 100)
    assert given.min_reclaim == 1


def test_what_is_left_out_has_its_default() -> None:
    given = spec_of({"clusterRef": REF})
    assert given.cluster_ref.kind is ClusterKind.ETCD_CLUSTER
    assert given.leader_transfer is LeaderTransfer.ALWAYS
    assert given.ttl_seconds_after_finished is None
    assert not given.dry_run
    reached = parse_connection(stored(connection(tls=TLS, kubernetesStorage={}))).spec
    assert reached.tls is not None
    assert reached.tls.ca_secret_ref.key == "ca.crt"
    assert reached.kubernetes_storage is not None
    assert reached.kubernetes_storage.prefix == "/registry"
    assert reached.compaction is None


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0", 0), ("0s", 0), (0, 0), ("10s", 10), ("1h30m", 5400), ("24h", 86400), ("1.5m", 90)],
)
def test_a_compaction_interval_is_in_seconds(written: str | int, seconds: float) -> None:
    given = parse_connection(stored(connection(compaction={"interval": written}))).spec.compaction
    assert given is not None
    assert given.interval == seconds


def test_an_object_of_a_library_that_only_looks_like_a_dict_is_read() -> None:
    body = types.MappingProxyType(stored({"clusterRef": REF}))
    assert isinstance(parse_defrag(body), EtcdDefrag)
    body = types.MappingProxyType(stored(connection()))
    assert isinstance(parse_connection(body), EtcdConnection)


def test_a_parsed_object_cannot_be_changed() -> None:
    parsed = parse_defrag(stored({"clusterRef": REF}))
    with pytest.raises(ValueError, match="frozen"):
        parsed.spec.dry_run = True
