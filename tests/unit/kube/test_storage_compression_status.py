"""What the status says of what is stored, and what it must not say (R138)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from etcdmaint.api.compression import AuditStatus, StorageCompressionStatus, compression_status
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.compression.audit import Audit
from etcdmaint.compression.census import Census
from etcdmaint.compression.frame import encode
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.walk import Progress
from etcdmaint.etcd.entries import Entry
from etcdmaint.kube.storage_compression_counts import damage, summarize
from etcdmaint.kube.storage_compression_verdicts import Findings, write_findings
from etcdmaint.kube.verdict import Verdict
from tests.unit.kube.test_storage_compression_identity import protobuf

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
BARE = protobuf()
FRAME = encode(BARE + b"x" * 4000)
STORED = encode(b"")


def counted(
    values: dict[str, bytes], revisions: tuple[int, ...] = (7,), finished: bool = True
) -> AuditStatus:
    """The summary of an audit of these keys below /registry/."""
    census = Census(Keyspace(), keep=0)
    census.add(
        Entry(f"/registry/{key}".encode("utf-8", "surrogateescape"), value, 1, 1, 7, 0)
        for key, value in sorted(values.items())
    )
    progress = Progress(revisions=list(revisions), keys=len(values), finished=finished)
    return summarize(Audit(census, progress), 0xAB, NOON, NOON + timedelta(seconds=5))


def of(kind: str, number: int, value: bytes = BARE, first: int = 0) -> dict[str, bytes]:
    """So many values of a resource."""
    return {f"{kind}/ns/{index:06}": value for index in range(first, first + number)}


def forms(audit: AuditStatus) -> dict[str, tuple[int, int | None]]:
    return {each.form: (each.values, each.bytes) for each in audit.forms}


def test_values_are_counted_by_resource_and_form() -> None:
    audit = counted(
        {**of("pods", 3), **of("pods", 2, FRAME, 3), **of("example.com/widgets", 1, b'{"a":1}')}
    )
    assert [(each.resource, each.values, each.forms) for each in audit.resources] == [
        ("pods", 5, {"deflate": 2, "protobuf": 3}),
        ("widgets.example.com", 1, {"json": 1}),
    ]
    assert audit.values == 6
    assert audit.cluster_id == 0xAB
    assert audit.consistent
    assert (audit.first_revision, audit.last_revision) == (7, 7)


def test_a_count_of_several_revisions_is_not_called_consistent() -> None:
    audit = counted(of("pods", 1), revisions=(7, 9))
    assert not audit.consistent
    assert (audit.first_revision, audit.last_revision) == (7, 9)
    assert not counted(of("pods", 1), finished=False).consistent


def test_bytes_are_summed_only_over_resources_with_a_hundred_values() -> None:
    """R138: and never given for a resource."""
    audit = counted({**of("pods", 100), **of("configmaps", 99), **of("leases", 120)})
    assert forms(audit) == {"protobuf": (319, 220 * len(BARE))}
    assert "bytes" not in json.dumps([each.to_wire() for each in audit.resources])


def test_bytes_of_few_values_are_not_told_even_among_many() -> None:
    """R138: the size of one frame among a hundred values says how well it compresses."""
    audit = counted({**of("pods", 200), **of("pods", 99, FRAME, 200)})
    assert forms(audit) == {"protobuf": (200, 200 * len(BARE)), "deflate": (99, None)}
    audit = counted({**of("pods", 200), **of("pods", 100, FRAME, 200)})
    assert forms(audit)["deflate"] == (100, 100 * len(FRAME))
    assert "bytes" not in {*audit.to_wire(), *audit.to_wire()["resources"][0]}


def test_no_key_and_no_name_of_an_object_is_told() -> None:
    """R138, A22: of a Secret least of all."""
    audit = counted(
        {"secrets/ns/hunter2-password": FRAME[:-1], **of("secrets", 3), "secrets/ns/x": b"rubbish"}
    )
    told = json.dumps(audit.to_wire()) + damage(audit).message
    assert "hunter2" not in told
    assert "ns/" not in told
    assert audit.damaged == 2


def test_a_prefix_that_is_too_long_does_not_make_names_into_resources() -> None:
    """R138, A22: below /registry/secrets/ns every key is the name of a Secret."""
    for prefix in (b"/registry/secrets/ns", b"/registry/secrets"):
        census = Census(Keyspace(prefix), keep=0)
        census.add(
            Entry(b"/registry/secrets/ns/" + name, BARE, 1, 1, 7, 0)
            for name in (b"hunter2", b"my.hunter2")
        )
        progress = Progress(revisions=[7], keys=2, finished=True)
        audit = summarize(Audit(census, progress), 0xAB, NOON, NOON)
        assert "hunter2" not in json.dumps(audit.to_wire())
        assert sum(each.values for each in audit.resources) == 2


def test_beyond_a_hundred_resources_the_rest_is_one_row() -> None:
    values: dict[str, bytes] = {}
    for index in range(150):
        values |= of(f"group{index:03}.example/things", 150 - index)
    audit = counted(values)
    assert len(audit.resources) == 101
    assert audit.resources[0].values == 150
    rest = audit.resources[-1]
    assert (rest.resource, rest.values) == ("(others)", sum(range(1, 51)))
    assert audit.values == sum(each.values for each in audit.resources)


def test_encrypted_values_are_counted_by_provider_and_key() -> None:
    values = {
        **of("secrets", 3, b"k8s:enc:aescbc:v1:key1:xxxx"),
        **of("configmaps", 2, b"k8s:enc:kms:v2:vault:xxxx"),
    }
    audit = counted(values)
    assert [(each.provider, each.key_name, each.values) for each in audit.encryption] == [
        ("aescbc", "key1", 3),
        ("kms:v2", "vault", 2),
    ]
    many = {f"pods/ns/{n:02}": b"k8s:enc:aescbc:v1:key%02d:x" % n for n in range(30)}
    audit = counted(many)
    assert len(audit.encryption) == 21
    assert audit.encryption[-1].values == 10


def test_hostile_keys_and_values_make_a_status_that_can_be_written() -> None:
    hostile = {
        "a.b\udcff/\x1b[31m/ns/x": BARE,
        "\n/x": b"k8s:enc:\xff\x00:\x1b:" + b"k" * 300 + b":x",
        "pods/ns/x": b"k8s:enc:aescbc:v1:\x1b[0m" + b"\xc3" * 200 + b":x",
        "x" * 70: b"",
    }
    audit = counted(hostile)
    wire = json.dumps(audit.to_wire())
    assert "\\u001b" not in wire
    assert "\\ud" not in wire
    assert all(len(each.resource) <= 253 for each in audit.resources)
    assert all(len(each.key_name) <= 253 for each in audit.encryption)
    assert compression_status({"status": {"lastAudit": audit.to_wire()}}).last_audit == audit


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        (of("pods", 3), False, "NoneFound"),
        (of("pods", 3, FRAME[:-1]), True, "DamagedValues"),
        ({**of("pods", 3), "ranges/serviceips": b"\x00"}, True, "DamagedValues"),
    ],
)
def test_damage_is_a_condition(values: dict[str, bytes], status: bool, reason: str) -> None:
    verdict = damage(counted(values))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert damage(None).status is None


def test_damage_names_resources_and_how_many() -> None:
    values: dict[str, bytes] = {}
    for index in range(7):
        values |= of(f"g{index}.example/things", 7 - index, FRAME[:-1])
    message = damage(counted(values)).message
    assert "28 of 28 values" in message
    assert "things.g0.example 7, things.g1.example 6" in message
    assert "and 2 more" in message


def findings(**changes: Any) -> Findings:
    verdicts = dict.fromkeys(CompressionCondition, Verdict(True, "Fine", "as it should be"))
    audit = counted({**of("pods", 2), **of("secrets", 1, b"k8s:enc:aescbc:v1:key1:x")})
    status = {"cluster_id": 1, "last_audit": audit, **changes}
    return Findings(verdicts, StorageCompressionStatus(**status))


def applied(obj: dict[str, Any], patch: Any) -> dict[str, Any]:
    """What the API server makes of a merge patch."""

    def merge(old: Any, new: Any) -> Any:
        if not isinstance(new, dict):
            return new
        old = old if isinstance(old, dict) else {}
        merged = {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}
        return {key: value for key, value in merged.items() if value is not None}

    return {**obj, "status": merge(obj.get("status") or {}, patch)}


def test_nothing_is_written_that_stands_there_already() -> None:
    """An unchanged object costs no write."""
    obj: dict[str, Any] = {"metadata": {"generation": 2}}
    patch = write_findings(obj, findings(), NOON)
    assert patch is not None
    written = applied(obj, patch)
    assert write_findings(written, findings(), NOON + timedelta(days=1)) is None
    assert len(written["status"]["conditions"]) == len(CompressionCondition)
    changed = findings(last_audit=counted(of("pods", 3)))
    again = write_findings(written, changed, NOON)
    assert again is not None
    assert "conditions" not in again
    written = applied(written, again)
    assert write_findings(written, changed, NOON) is None
    assert written["status"]["lastAudit"]["encryption"] == []


def test_what_is_no_longer_known_is_taken_out() -> None:
    obj: dict[str, Any] = {"metadata": {"generation": 2}}
    written = applied(obj, write_findings(obj, findings(hash="sha256:" + "0" * 64), NOON))
    nothing = findings(cluster_id=None, last_audit=None)
    written = applied(written, write_findings(written, nothing, NOON))
    assert set(written["status"]) == {"observedGeneration", "conditions"}
