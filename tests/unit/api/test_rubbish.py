"""Whatever lies in the API under our names is parsed or refused: nothing else may happen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etcdmaint.api.connection import EtcdConnectionStatus, connection_status, parse_connection
from etcdmaint.api.defrag import defrag_status, parse_defrag
from etcdmaint.api.metadata import allowed_unsafe_version, is_dry_run, is_paused, object_key
from etcdmaint.errors import InvalidInput
from tests.unit.api.cases import CONNECTION_CASES, DEFRAG_CASES
from tests.unit.api.test_specs import METADATA

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["200Mi", "80%", "5m", "etcd", "Running", "0", "\ud800", 10**400, -(2**63)])
)
WORDS = st.sampled_from(
    sorted(
        {
            *("metadata", "spec", "status", "name", "namespace", "uid", "creationTimestamp"),
            *("clusterRef", "kind", "rule", "all", "freeSpaceAbove", "quotaUsageAbove"),
            *("minReclaim", "ttlSecondsAfterFinished", "leaderTransfer", "dryRun", "endpoints"),
            *("tls", "caSecretRef", "key", "auth", "compaction", "interval", "volumeSize"),
            *("phase", "members", "memberID", "outcome", "conditions", "annotations", "startedAt"),
        }
    )
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=6)
    ),
    max_leaves=20,
)
# Making such values takes longer than refusing them, and the whole unit suite takes seconds.
FEW = settings(max_examples=40)


def refusal(parse: Any, obj: Any) -> InvalidInput | None:
    """How it is refused, None where it is read; any other error ends the test."""
    try:
        parse(obj)
    except InvalidInput as refused:
        return refused
    return None


@pytest.mark.parametrize("parse", [parse_defrag, parse_connection])
@FEW
@given(obj=ANYTHING)
@example(obj={})
def test_any_json_is_refused_or_read(parse: Any, obj: Any) -> None:
    """D52: the operator never crashes on an object."""
    refused = refusal(parse, obj)
    assert refused is None or (len(refused.fault) < 300 and "\n" not in str(refused))


@pytest.mark.parametrize("parse", [parse_defrag, parse_connection])
@pytest.mark.parametrize("field", ["metadata", "spec", "status", "else"])
def test_what_is_nested_beyond_measure_is_refused_or_read(parse: Any, field: str) -> None:
    """D52."""
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    spec = {"clusterRef": {"name": "etcd"}}
    refused = refusal(parse, {"metadata": METADATA, "spec": spec, field: deep})
    assert refused is None or len(refused.fault) < 300


VALID = [
    *((parse_defrag, case.spec) for case in DEFRAG_CASES if case.models_field is None),
    *((parse_connection, case.spec) for case in CONNECTION_CASES if case.models_field is None),
]


@FEW
@given(valid=st.sampled_from(VALID), rubbish=ANYTHING, data=st.data())
def test_a_valid_object_with_one_value_replaced_is_refused_or_read(
    valid: Any, rubbish: Any, data: st.DataObject
) -> None:
    """D52."""
    parse, spec = valid
    obj = json.loads(json.dumps({"metadata": METADATA, "spec": spec, "status": {}}))
    place = obj
    while True:
        key = data.draw(st.sampled_from(sorted(place) or ["new"]))
        if not (isinstance(place.get(key), dict) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = rubbish
    refused = refusal(parse, obj)
    assert refused is None or refused.field


@FEW
@given(status=ANYTHING)
def test_no_status_stops_an_object_from_being_read(status: Any) -> None:
    """D2, D52: a status may be written by anybody."""
    obj = {"metadata": METADATA, "spec": {"clusterRef": {"name": "etcd"}}, "status": status}
    parse_defrag(obj)
    json.dumps(defrag_status(obj).to_wire())
    obj["spec"] = {"endpoints": ["etcd"]}
    parse_connection(obj)
    json.dumps(connection_status(obj).to_wire())


@FEW
@given(status=st.dictionaries(WORDS, ANYTHING))
def test_what_is_written_is_read_back_as_it_was(status: Any) -> None:
    once = defrag_status({"status": status}).to_wire()
    assert defrag_status({"status": once}).to_wire() == once
    twice = EtcdConnectionStatus.model_validate(status).to_wire()
    assert EtcdConnectionStatus.model_validate(twice).to_wire() == twice


@FEW
@given(value=ANYTHING)
def test_no_metadata_is_too_odd_to_be_looked_at(value: Any) -> None:
    is_paused(value)
    is_dry_run(value)
    assert isinstance(allowed_unsafe_version(value), str)
    namespace, name = object_key({"metadata": value})
    assert isinstance(namespace, str)
    assert isinstance(name, str)
