"""When a downgrade is verified, and everything for which it is not."""

from __future__ import annotations

import pytest

from etcdmaint.compression import census as census_module
from etcdmaint.compression.census import OTHERS, Census
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.verification import ApiServer, Finding, fleet_faults, judge
from etcdmaint.etcd.entries import Entry

from . import objects
from .objects import entry

GOOD = [
    entry(b"/registry/configmaps/a/1", objects.protobuf()),
    entry(b"/registry/configmaps/a/2", objects.protobuf()),
    entry(b"/registry/masterleases/1.2.3.4", objects.protobuf()),
    entry(b"/registry/strange/thing", b"x"),
]
LISTED = {"configmaps": 2}


def census(*more: Entry) -> Census:
    counted = Census(Keyspace())
    counted.add([*GOOD, *more])
    return counted


def faults(findings: tuple[Finding, ...]) -> dict[str, tuple[str, ...]]:
    return {finding.resource: finding.faults for finding in findings if finding.faults}


def test_what_was_seen_and_counted_alike_is_verified() -> None:
    """R141, R148, R150: by reading, never by counters; the API server's own stores are not listed."""
    findings = judge(census(), LISTED)
    assert faults(findings) == {}
    assert {finding.resource for finding in findings} == {
        "configmaps",
        "apiServerIPInfo",
        "/registry/strange/",
    }


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (objects.DEFLATED, "1 are frames"),
        (objects.STORED, "1 are frames"),
        (objects.DAMAGED_CHECKSUM, "1 cannot be read"),
        (objects.NEWER, "1 cannot be read"),
        (objects.MALFORMED, "1 cannot be read"),
        (b"", "1 cannot be read"),
        (b"k8s:enc:aesgcm:v1:k:x", "1 are encrypted and were not looked into"),
    ],
)
def test_one_value_that_is_no_plain_object_is_enough(value: bytes, fault: str) -> None:
    """R150: frames; anything undecryptable, unsupported or malformed."""
    found = judge(census(entry(b"/registry/configmaps/a/3", value)), {"configmaps": 3})
    assert faults(found) == {"configmaps": (fault,)}


@pytest.mark.parametrize("listed", [0, 1, 3])
def test_unequal_counts_are_not_verified(listed: int) -> None:
    """R150: the scanned count is the created count, in either direction."""
    assert faults(judge(census(), {"configmaps": listed})) == {
        "configmaps": (f"the API server lists {listed}",)
    }


def test_a_resource_that_is_not_served_is_not_verified() -> None:
    assert "serves no such resource" in faults(judge(census(), {}))["configmaps"][0]


def test_a_resource_that_cannot_be_listed_is_not_verified() -> None:
    """One value that it cannot read breaks a whole list."""
    found = judge(census(), {"configmaps": "500"})
    assert faults(found) == {"configmaps": ("the API server cannot list them (500)",)}


def test_an_empty_scan_proves_nothing() -> None:
    """R150: empty never passes, neither as a whole nor for a resource that was asked for."""
    assert faults(judge(Census(Keyspace()), {})) == {"all": ("nothing was found at all",)}
    found = judge(census(), LISTED, ["configmaps", "pods"])
    assert faults(found) == {"pods": ("nothing is stored: an empty scan proves nothing",)}


def test_a_frame_under_a_key_of_nobody_is_told() -> None:
    found = judge(census(entry(b"/registry/strange/other", objects.DEFLATED)), LISTED)
    assert faults(found) == {"/registry/strange/": ("1 are frames",)}


def test_what_is_encrypted_under_a_key_of_nobody_is_no_proof() -> None:
    """R150: a resource of a later release, say, which `*.*` encrypts: a frame may be inside."""
    value = b"k8s:enc:aesgcm:v1:k:x"
    found = judge(census(entry(b"/registry/strange/other", value)), LISTED)
    assert faults(found) == {"/registry/strange/": ("1 are encrypted and were not looked into",)}


def test_what_is_beyond_the_bound_of_a_count_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "_MOST_ROWS", 3)
    found = judge(census(entry(b"/registry/a.b/c/d/e", objects.JSON)), LISTED)
    assert faults(found) == {OTHERS: ("these are of more resources than are told apart",)}


def policy(algorithm: str) -> Policy:
    text = (
        "{apiVersion: apiserver.config.k8s.io/v1alpha1, kind: StorageCompressionConfiguration, "
        f"resources: [{{resources: [events], algorithm: {algorithm}}}]}}"
    )
    return Policy.load(text.encode(), stage=Stage.ALPHA, min_compatibility_version="1.38")


OFF, ON = policy("None"), policy("Deflate")
URL = "https://10.0.0.1:6443"
WRITER = ApiServer(URL, "v1.38.0", ON.hash)
FLEET = {
    "a release without the KEP": ([ApiServer(URL, "v1.37.2", "")], 1, [], [], ""),
    "… that does not even give metrics": ([ApiServer(URL, "v1.37.2", None)], 1, [], [], ""),
    "a release with it and no file": ([ApiServer(URL, "v1.38.0", "")], 1, [], [], ""),
    "a policy of None only": ([ApiServer(URL, "v1.39.1+k3s1", OFF.hash)], 1, [OFF], [], ""),
    "it compresses something": ([WRITER], 1, [ON], [], "still compresses something"),
    "it compresses this": ([WRITER], 1, [ON], [("", "events")], "still compresses events"),
    "it compresses another": ([WRITER], 1, [ON], [("", "pods")], ""),
    "a file that nobody knows": ([WRITER], 1, [OFF], [], "give the file with --policy"),
    "it gives no metrics": ([ApiServer(URL, "v1.38.0", None)], 1, [], [], "does not tell its policy"),
    "no release": ([ApiServer(URL, "", "")], 1, [], [], "release of https://10.0.0.1:6443 is not known"),
    "one of three asked": ([ApiServer(URL, "v1.37.2", "")], 3, [], [], "there are 3 API servers"),
    "the same one twice": ([ApiServer(URL, "v1.37.2", "")] * 2, 2, [], [], "there are 2 API servers"),
    "one process at two addresses": (
        [ApiServer(URL, "v1.37.2", "", "5"), ApiServer("https://vip", "v1.37.2", "", "5")],
        2, [], [], "there are 2 API servers and 1 was asked",
    ),
    "two processes": (
        [ApiServer(URL, "v1.37.2", "", "5"), ApiServer("https://other", "v1.37.2", "", "6")],
        2, [], [], "",
    ),
    "two of three": (
        [ApiServer(URL, "v1.37.2", ""), ApiServer("https://other", "v1.37.2", "")],
        3, [], [], "there are 3 API servers and 2 were asked",
    ),
    "nobody knows how many": ([ApiServer(URL, "v1.37.2", "")], None, [], [], "is not known"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("servers", "known", "policies", "resources", "fault"), FLEET.values(), ids=FLEET
)
def test_nobody_may_be_writing_frames(
    servers: list[ApiServer],
    known: int | None,
    policies: list[Policy],
    resources: list[tuple[str, str]],
    fault: str,
) -> None:
    """R139, R148, R149: refused while an API server selects the resource, or is not known."""
    found = fleet_faults(servers, known, policies, resources)
    assert bool(found) is bool(fault)
    assert fault in " ".join(found)
