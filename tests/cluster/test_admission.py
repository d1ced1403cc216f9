"""What the API server lets through to us: every field of both kinds, valid and not.

The table is the one that the models are held against, so admission and parsing cannot drift apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.api import names
from etcdmaint.api.connection import EtcdConnection, parse_connection
from etcdmaint.api.defrag import EtcdDefrag, defrag_status, parse_defrag
from etcdmaint.api.metadata import is_paused
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until
from tests.unit.api.cases import (
    CONNECTION_CASES,
    DEFRAG_CASES,
    REF,
    TLS,
    Case,
    connection,
    manifest,
)
from tests.unit.api.test_status import FULL, FULL_CONNECTION

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"
DEFRAG = (
    f"{names.COZYSTACK_GROUP}/{names.COZYSTACK_VERSION}",
    names.DEFRAG_KIND,
    names.DEFRAG_PLURAL,
)
CONNECTION = (
    f"{names.ETCDMAINT_GROUP}/{names.ETCDMAINT_VERSION}",
    names.CONNECTION_KIND,
    names.CONNECTION_PLURAL,
)
Kind = tuple[str, str, str]


def path(kind: Kind, namespace: str, name: str = "") -> str:
    api_version, _, plural = kind
    return f"/apis/{api_version}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def send(
    plane: ControlPlane, kind: Kind, namespace: str, spec: Any, query: str = ""
) -> dict[str, Any]:
    """Create an object as a strict client does."""
    api_version, name, _ = kind
    return plane.api.request(
        "POST",
        f"{path(kind, namespace)}?fieldValidation=Strict{query}",
        manifest(api_version, name, namespace, spec),
    )


def refusal(error: ApiError) -> tuple[list[str], str]:
    """The fields that a refusal names, and its text."""
    answer = json.loads(str(error).partition(": ")[2])
    causes = answer.get("details", {}).get("causes", [])
    return [cause.get("field", "") for cause in causes], answer["message"]


def wrong(plane: ControlPlane, kind: Kind, namespace: str, case: Case) -> str | None:
    """What is wrong with the API server's verdict, None where it is that of the table.

    What takes long to judge does so each time; what a busy machine makes long does not.
    """
    for _ in range(3):
        began = time.monotonic()
        fault = misjudged(plane, kind, namespace, case)
        if time.monotonic() - began < 5:
            return fault
    return "takes too long"


def misjudged(plane: ControlPlane, kind: Kind, namespace: str, case: Case) -> str | None:
    try:
        send(plane, kind, namespace, case.spec, "&dryRun=All")
    except ApiError as error:
        fields, text = refusal(error)
        if case.field is None:
            return f"refused: {text}"
        if error.status not in (400, 422) or case.says not in text:
            return f"refused in other words: {text}"
        # A field that is not in the schema is named in the text alone.
        if case.field not in fields and f'"{case.field}' not in text:
            return f"names {fields}, not {case.field}: {text}"
    else:
        if case.field is not None:
            return "accepted"
    return None


def check(plane: ControlPlane, kind: Kind, namespace: str, cases: Sequence[Case]) -> None:
    verdicts = {case.name: wrong(plane, kind, namespace, case) for case in cases}
    assert {name: verdict for name, verdict in verdicts.items() if verdict} == {}


def test_every_etcddefrag_of_the_table_is_judged_as_it_says(
    plane: ControlPlane, namespace: str
) -> None:
    """D20, D52: each refusal names the field."""
    check(plane, DEFRAG, namespace, DEFRAG_CASES)


def test_every_etcdconnection_of_the_table_is_judged_as_it_says(
    plane: ControlPlane, namespace: str
) -> None:
    """D51, D52: each refusal names the field."""
    check(plane, CONNECTION, namespace, CONNECTION_CASES)


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"clusterRef": {"name": "other"}}, "spec"),
        ({"rule": {"all": True}}, "spec"),
        ({"ttlSecondsAfterFinished": 5}, "spec"),
        ({"dryRun": True}, "spec"),
        ({"leaderTransfer": "Never"}, "spec"),
        (None, "spec"),
    ],
)
def test_the_spec_of_an_etcddefrag_cannot_be_changed(
    plane: ControlPlane, namespace: str, patch: Any, field: str
) -> None:
    """Row 21 of the admission table."""
    send(plane, DEFRAG, namespace, {"clusterRef": REF})
    with pytest.raises(ApiError) as caught:
        plane.api.request(
            "PATCH",
            path(DEFRAG, namespace, "case"),
            {"spec": patch},
            content_type="application/merge-patch+json",
        )
    fields, text = refusal(caught.value)
    assert field in fields
    assert patch is None or "immutable" in text


def test_the_labels_of_an_etcddefrag_and_the_same_spec_again_are_accepted(
    plane: ControlPlane, namespace: str
) -> None:
    manifest_text = json.dumps(manifest(DEFRAG[0], DEFRAG[1], namespace, {"clusterRef": REF}))
    plane.apply(manifest_text)
    plane.apply(manifest_text)
    labels = {"metadata": {"labels": {"a": "b"}, "annotations": {names.PAUSED_ANNOTATION: "true"}}}
    patched = plane.api.request(
        "PATCH",
        path(DEFRAG, namespace, "case"),
        labels,
        content_type="application/merge-patch+json",
    )
    assert is_paused(patched["metadata"]["annotations"])


def test_an_etcdconnection_can_be_changed(plane: ControlPlane, namespace: str) -> None:
    send(plane, CONNECTION, namespace, connection())
    patched = plane.api.request(
        "PATCH",
        path(CONNECTION, namespace, "case"),
        {"spec": {"endpoints": ["https://etcd"], "tls": TLS, "metricsPort": 2381}},
        content_type="application/merge-patch+json",
    )
    assert parse_connection(patched).spec.metrics_port == 2381


def write_status(
    plane: ControlPlane, kind: Kind, namespace: str, status: dict[str, Any]
) -> dict[str, Any]:
    return plane.api.request(
        "PATCH",
        f"{path(kind, namespace, 'case')}/status?fieldValidation=Strict",
        {"status": status},
        content_type="application/merge-patch+json",
    )


CONDITION = {
    "type": "Progressing",
    "status": "True",
    "reason": "Queued",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-29T12:00:00Z",
}


def test_every_field_that_a_run_records_is_kept(plane: ControlPlane, namespace: str) -> None:
    """D32: nothing of the record is pruned."""
    created = send(plane, DEFRAG, namespace, {"clusterRef": REF})
    assert isinstance(parse_defrag(created), EtcdDefrag)
    status = {**FULL.to_wire(), "conditions": [CONDITION]}
    written = write_status(plane, DEFRAG, namespace, status)
    assert written["status"] == status
    assert defrag_status(written).members == FULL.members


def test_every_field_that_is_measured_is_kept(plane: ControlPlane, namespace: str) -> None:
    created = send(plane, CONNECTION, namespace, connection())
    assert isinstance(parse_connection(created), EtcdConnection)
    status = {**FULL_CONNECTION.to_wire(), "conditions": [CONDITION]}
    written = write_status(plane, CONNECTION, namespace, status)
    assert written["status"] == status


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"members": [{"name": "a"}, {"name": "a"}]}, "status.members[1]"),
        ({"members": [{"outcome": "Failed"}]}, "status.members[0].name"),
        ({"members": [{"name": "a", "outcome": "Done"}]}, "status.members[0].outcome"),
        ({"members": [{"name": "a", "role": "king"}]}, "status.members[0].role"),
        ({"members": [{"name": "a", "memberID": "1"}]}, "status.members[0].memberID"),
        ({"phase": "Started"}, "status.phase"),
        ({"conditions": [CONDITION, CONDITION]}, "status.conditions[1]"),
        ({"conditions": [{**CONDITION, "reason": ""}]}, "status.conditions[0].reason"),
    ],
)
def test_a_status_that_cannot_be_is_refused(
    plane: ControlPlane, namespace: str, status: dict[str, Any], field: str
) -> None:
    """Row 22 of the admission table."""
    send(plane, DEFRAG, namespace, {"clusterRef": REF})
    with pytest.raises(ApiError) as caught:
        write_status(plane, DEFRAG, namespace, status)
    assert field in refusal(caught.value)[0]


def test_a_run_is_listed_as_promised(plane: ControlPlane, namespace: str) -> None:
    send(plane, DEFRAG, namespace, {"clusterRef": REF})
    write_status(plane, DEFRAG, namespace, {**FULL.to_wire(), "conditions": [CONDITION]})
    plain = plane.kubectl("get", "edf", "--namespace", namespace).stdout
    assert plain.split()[:6] == ["NAME", "CLUSTER", "PHASE", "DEFRAGMENTED", "RECLAIMED", "AGE"]
    assert plain.split()[6:11] == ["case", "etcd", "Running", "2", "5Mi"]
    wide = plane.kubectl("get", "edf", "--namespace", namespace, "-o", "wide").stdout
    assert wide.split()[6] == "REASON"
    assert wide.split()[-1] == "Queued"


def test_a_connection_is_listed_with_its_state(plane: ControlPlane, namespace: str) -> None:
    send(plane, CONNECTION, namespace, connection())
    conditions = [
        {**CONDITION, "type": "Reachable"},
        {**CONDITION, "type": "Healthy", "status": "False"},
    ]
    write_status(plane, CONNECTION, namespace, {"conditions": conditions})
    plain = plane.kubectl("get", "ec", "--namespace", namespace).stdout
    assert plain.split()[:4] == ["NAME", "REACHABLE", "HEALTHY", "AGE"]
    assert plain.split()[4:7] == ["case", "True", "False"]


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("edf.spec.rule.minReclaim", "32Mi or freeSpaceAbove"),
        ("edf.spec.leaderTransfer", "keep their leases"),
        ("edf.status.members.reason", "Why, in one word"),
        ("ec.spec.tls.caSecretRef.key", "PEM"),
        ("ec.spec.metricsPort", "2381"),
    ],
)
def test_kubectl_explains_every_field(plane: ControlPlane, field: str, says: str) -> None:
    def explained() -> bool:
        return says in plane.kubectl("explain", field, check=False).stdout

    # What explains a kind is published some time after the kind is served.
    wait_until(explained, f"{field} is explained", 120)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"clusterRef": REF, "dryrun": True}, 'unknown field "spec.dryrun"'),
        ({"clusterRef": REF, "rule": {"freeSpaceAbove": "0"}}, "spec.rule.freeSpaceAbove"),
    ],
)
def test_kubectl_apply_says_which_field_is_at_fault(
    plane: ControlPlane, namespace: str, spec: Any, says: str
) -> None:
    body = json.dumps(manifest(DEFRAG[0], DEFRAG[1], namespace, spec))
    answer = plane.kubectl("apply", "--filename", "-", stdin=body, check=False)
    assert answer.returncode != 0
    assert says in answer.stderr


def test_the_examples_are_admitted(plane: ControlPlane) -> None:
    examples = sorted(EXAMPLES.glob("*.yaml"))
    assert examples
    for example in examples:
        answer = plane.kubectl("apply", "--dry-run=server", "-f", str(example), check=False)
        assert answer.returncode == 0, answer.stderr
        assert "Warning" not in answer.stderr
