"""What the API server lets through of a StorageCompressionConfiguration, by the operator's own table."""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.api import names
from etcdmaint.api.compression import parse_compression
from tests.cluster.operators import until
from tests.cluster.test_admission import (
    CONDITION,
    Kind,
    check,
    path,
    refusal,
    send,
    write_status,
)
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.kubeapi import ApiError
from tests.unit.api.cases import manifest
from tests.unit.api.compression_cases import COMPRESSION_CASES, KEP_SAMPLE
from tests.unit.api.test_compression import FULL_COMPRESSION

pytestmark = pytest.mark.cluster

KIND: Kind = (
    f"{names.ETCDMAINT_GROUP}/{names.ETCDMAINT_VERSION}",
    names.COMPRESSION_KIND,
    names.COMPRESSION_PLURAL,
)


def test_every_configuration_of_the_table_is_judged_as_it_says(
    plane: ControlPlane, namespace: str
) -> None:
    """R102 to R112: each refusal names the field; what is between entries is the operator's."""
    check(plane, KIND, namespace, COMPRESSION_CASES)


@pytest.mark.parametrize(("length", "admitted"), [(233, True), (234, False), (253, False)])
def test_a_name_that_the_config_map_could_not_have_is_refused(
    plane: ControlPlane, namespace: str, length: int, admitted: bool
) -> None:
    body: dict[str, Any] = manifest(KIND[0], KIND[1], namespace, {})
    body["metadata"]["name"] = "a" * length
    where = f"{path(KIND, namespace)}?dryRun=All"
    if admitted:
        plane.api.request("POST", where, body)
        return
    with pytest.raises(ApiError) as caught:
        plane.api.request("POST", where, body)
    assert "metadata.name may have at most 233 characters" in refusal(caught.value)[1]


def test_no_default_is_filled_into_an_entry(plane: ControlPlane, namespace: str) -> None:
    """A20: what is left out stays out, also of the stored object."""
    created = send(plane, KIND, namespace, KEP_SAMPLE)
    assert created["spec"] == {**KEP_SAMPLE, "stage": "alpha"}
    assert parse_compression(created).spec.resources[0].min_size is None


def test_every_field_that_is_found_out_is_kept(plane: ControlPlane, namespace: str) -> None:
    send(plane, KIND, namespace, KEP_SAMPLE)
    status = {**FULL_COMPRESSION.to_wire(), "conditions": [CONDITION]}
    assert write_status(plane, KIND, namespace, status)["status"] == status
    plain = eventually(plane, "get", "scconf", "--namespace", namespace)
    assert plain.split()[:7] == [
        "NAME",
        "VALID",
        "PUBLISHED",
        "SUPPORTED",
        "DAMAGED",
        "AUDITED",
        "AGE",
    ]


def test_kubectl_explains_it(plane: ControlPlane) -> None:
    for field, said in (
        ("scconf.spec.resources.minSize", "own default"),
        ("scconf.spec.clusterRef", "nothing is counted"),
        ("scconf.status.lastAudit.forms.bytes", "at least 100 values"),
    ):
        assert said in " ".join(eventually(plane, "explain", field).split())


def eventually(plane: ControlPlane, *arguments: str) -> str:
    """What kubectl says: resources are discovered and described some time after they are served."""

    def said() -> str:
        done = plane.kubectl(*arguments, check=False)
        return "" if done.returncode else done.stdout

    return str(until(said, f"kubectl {arguments[0]} knows it"))
