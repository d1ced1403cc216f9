"""Whose release may load the file: R116 to R119, in words that a person understands."""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.compression.policy import Stage, problems
from etcdmaint.kube.storage_compression_gate import (
    ServerVersion,
    may_publish,
    read_version,
    supported,
)
from etcdmaint.kube.verdict import Verdict
from tests.unit.api.compression_cases import KEP_SAMPLE, entry
from tests.unit.kube.test_storage_compression_file import file_of

DOUBT = Verdict(None, "NotThisCluster", "it is another API server's etcd")
V1_37 = {
    "major": "1",
    "minor": "37",
    "emulationMajor": "1",
    "emulationMinor": "37",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "36",
    "gitVersion": "v1.37.2",
}
COMPRESSES = file_of(KEP_SAMPLE)
COMPRESSES_NOTHING = file_of(entry(algorithm="None"))
HAS_REWRITE = file_of(entry(rewrite="OnWrite", algorithm="None") | {"stage": "beta"})


def server(release: int, oldest: int | None, emulation: int | None = None) -> ServerVersion:
    """A 1.`release`."""
    return ServerVersion(
        f"v1.{release}.0",
        (1, release),
        (1, emulation or release),
        None if oldest is None else (1, oldest),
    )


def test_the_real_answer_of_1_37_is_read() -> None:
    """R118: the default is the release before the emulated one."""
    found = read_version(V1_37)
    assert found == ServerVersion("v1.37.2", (1, 37), (1, 37), (1, 36))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"major": "1", "minor": "29+"}, ServerVersion("v1.29", (1, 29))),
        (
            {"major": "1", "minor": "38", "gitVersion": "v1.38.1-gke.5+abc"},
            ServerVersion("v1.38.1-gke.5+abc", (1, 38)),
        ),
        ({"major": "1", "minor": "38", "gitVersion": "<b>"}, ServerVersion("v1.38", (1, 38))),
        ({**V1_37, "emulationMinor": 36}, ServerVersion("v1.37.2", (1, 37), None, (1, 36))),
        ({"major": "1"}, None),
        ({"major": 1, "minor": 38}, None),
        ({"major": "", "minor": ""}, None),
        ({"major": "one", "minor": "x"}, None),
        ({}, None),
    ],
)
def test_other_answers_are_read_or_are_none(answer: Any, found: ServerVersion | None) -> None:
    assert read_version(answer) == found


@pytest.mark.parametrize("oldest", range(34, 42))
def test_the_gate_agrees_with_the_reader_of_the_file(oldest: int) -> None:
    """R116: what is let through is what a process of that minimum compatibility version loads."""
    faults = problems(COMPRESSES.data, stage=Stage.ALPHA, min_compatibility_version=f"1.{oldest}")
    refusal = may_publish(COMPRESSES, server(oldest + 1, oldest), DOUBT)
    assert (refusal is None) == (not faults)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (server(37, 36), "MinCompatibilityTooLow"),
        (server(38, 37), "MinCompatibilityTooLow"),
        (server(38, 38), None),
        (server(39, 38), None),
        (server(39, 35), "MinCompatibilityTooLow"),
        (server(39, 36, emulation=37), "MinCompatibilityTooLow"),
        (server(30, None), "MinCompatibilityTooLow"),
        (server(39, None), "VersionUnknown"),
        (None, "NotThisCluster"),
    ],
)
def test_a_file_that_compresses_needs_a_minimum_compatibility_version(
    version: ServerVersion | None, reason: str | None
) -> None:
    """R116, R118."""
    refusal = may_publish(COMPRESSES, version, DOUBT)
    assert (refusal.reason if refusal else None) == reason
    if refusal is not None:
        assert refusal.status is (False if reason == "MinCompatibilityTooLow" else None)


@pytest.mark.parametrize("version", [server(29, 28), server(37, 36), server(39, None), None])
def test_a_file_that_compresses_nothing_starts_at_any_version(
    version: ServerVersion | None,
) -> None:
    """R117."""
    assert may_publish(COMPRESSES_NOTHING, version, DOUBT) is None


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (server(38, 38), "FieldTooNew"),
        (server(39, 37, emulation=38), "FieldTooNew"),
        (server(39, 38), None),
        (None, "NotThisCluster"),
    ],
)
def test_a_field_of_the_beta_needs_a_release_of_the_beta(
    version: ServerVersion | None, reason: str | None
) -> None:
    """A20, R176: whatever is emulated."""
    refusal = may_publish(HAS_REWRITE, version, DOUBT)
    assert (refusal.reason if refusal else None) == reason


def test_the_refusal_says_what_is_there_what_is_needed_and_where() -> None:
    """And that behind a load balancer it is one replica's answer."""
    refusal = may_publish(COMPRESSES, read_version(V1_37), DOUBT)
    assert refusal is not None
    for words in (
        "v1.37.2, minimum compatibility version 1.36",
        "spec.resources[1].algorithm compresses",
        "--min-compatibility-version=1.38",
        "Behind a load balancer other replicas may differ",
    ):
        assert words in refusal.message


def test_today_nothing_supports_it_and_later_that_is_not_taken_for_granted() -> None:
    today = supported(read_version(V1_37), DOUBT)
    assert (today.status, today.message) == (False, "this API server (v1.37.2) has no KEP-6264")
    assert supported(server(38, 37, emulation=37), DOUBT).status is False
    assert supported(server(38, 38), DOUBT).status is None
    assert supported(None, DOUBT) == DOUBT
