from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from etcdmaint.api.connection import CompactionStatus, ConnectionMember, EtcdConnectionStatus
from etcdmaint.api.defrag import EtcdDefragStatus, MemberRow, defrag_status, parse_defrag
from etcdmaint.api.fields import format_time, parse_time
from etcdmaint.api.metadata import allowed_unsafe_version, is_dry_run, is_paused, object_key
from etcdmaint.api.vocabulary import Outcome, Phase, Role
from etcdmaint.errors import InvalidInput
from tests.unit.api.cases import REF
from tests.unit.api.test_specs import METADATA, stored

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)

ROW = MemberRow(
    name="etcd-0",
    member_id=0x8E9E05C52164694D,
    role=Role.LEARNER,
    outcome=Outcome.PENDING,
    reason="InFlight",
    message="120Mi reclaimable",
    db_size_before=2,
    db_size_in_use_before=1,
    quota_bytes=2**31,
    db_size_after=3,
    reclaimed_bytes=-1,
    started_at=NOON,
    finished_at=NOON,
)
FULL = EtcdDefragStatus(
    phase=Phase.RUNNING,
    started_at=NOON,
    completed_at=NOON,
    defragmented=2,
    reclaimed_bytes=5 << 20,
    reclaimed="5Mi",
    members=(ROW,),
    conditions=({"type": "Progressing", "status": "True"},),
)
FULL_CONNECTION = EtcdConnectionStatus(
    cluster_id=0xCDF818194E3A8C32,
    measured_at=NOON,
    members=(
        ConnectionMember(
            member_id=1,
            name="etcd-0",
            endpoint="https://10.0.0.11:2379",
            role=Role.LEADER,
            version="3.7.3",
            db_size=2,
            db_size_in_use=1,
            quota=2**31,
        ),
    ),
    compaction=CompactionStatus(revision=7, clock=3, last_won_at=NOON, last_seen_at=NOON),
    conditions=({"type": "Reachable", "status": "True"},),
)


def test_a_row_is_written_in_the_words_of_the_api() -> None:
    """D32: the intent is in the row."""
    assert ROW.to_wire() == {
        "name": "etcd-0",
        "memberID": "8e9e05c52164694d",
        "role": "learner",
        "outcome": "Pending",
        "reason": "InFlight",
        "message": "120Mi reclaimable",
        "dbSizeBefore": 2,
        "dbSizeInUseBefore": 1,
        "quotaBytes": 2147483648,
        "dbSizeAfter": 3,
        "reclaimedBytes": -1,
        "startedAt": "2026-11-29T12:00:00Z",
        "finishedAt": "2026-11-29T12:00:00Z",
    }


def test_what_is_unknown_is_not_written() -> None:
    """D35: an unknown size stays absent."""
    assert MemberRow(name="etcd-0").to_wire() == {"name": "etcd-0"}
    assert EtcdDefragStatus().to_wire() == {"members": [], "conditions": []}


def test_a_status_is_read_back_as_it_was_written() -> None:
    """D2: a run goes on from its status."""
    assert defrag_status(stored({"clusterRef": REF}, FULL.to_wire())) == FULL
    wire = FULL_CONNECTION.to_wire()
    assert EtcdConnectionStatus.model_validate(wire) == FULL_CONNECTION
    assert wire["clusterID"] == "cdf818194e3a8c32"
    assert wire["members"][0]["memberID"] == "0000000000000001"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("memberID", value) for value in ("", "xyz", "1" * 17, "0x1", True, None, "8E9E")),
        *(("role", value) for value in ("king", "", 5, None, [])),
        *(("outcome", value) for value in ("Done", "pending", 5, None)),
        *(("dbSizeBefore", value) for value in ("5", 5.5, True, 2**63, None)),
        *(("startedAt", value) for value in ("now", "", 5, "2026-11-29", "2026-11-29T12:00:00")),
        ("reason", 5),
        ("message", {}),
    ],
)
def test_a_field_that_cannot_be_understood_counts_as_not_there(field: str, value: Any) -> None:
    """A status is writable by anybody."""
    (row,) = defrag_status({"status": {"members": [{"name": "etcd-0", field: value}]}}).members
    assert row == MemberRow(name="etcd-0")


def test_a_row_without_a_name_is_none_and_of_two_with_one_name_the_first_counts() -> None:
    members = [None, 5, [], {}, {"name": 5}, {"name": ""}, {"outcome": "Failed"}]
    twice = [{"name": "a", "outcome": "Failed"}, {"name": "a"}, {"name": "b"}]
    rows = defrag_status({"status": {"members": [*members, *twice]}}).members
    assert rows == (MemberRow(name="a", outcome=Outcome.FAILED), MemberRow(name="b"))


@pytest.mark.parametrize("phase", ["", "Started", "complete", 5, None, [], True])
def test_a_phase_that_is_none_is_no_phase(phase: Any) -> None:
    assert not defrag_status({"status": {"phase": phase}}).phase


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Complete", True), ("Failed", True)],
)
def test_the_last_two_phases_are_the_end(phase: str, finished: bool) -> None:
    """D1."""
    found = defrag_status({"status": {"phase": phase}}).phase
    assert found is not None
    assert found.terminal is finished


def test_the_status_of_an_object_without_a_spec_is_read() -> None:
    """D52."""
    assert defrag_status({"status": {"phase": "Failed"}}).phase is Phase.FAILED
    assert defrag_status({}) == defrag_status({"status": 5}) == EtcdDefragStatus()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-29T12:00:00Z", NOON),
        ("2026-11-29t12:00:00z", NOON),
        ("2026-11-29T14:00:00+02:00", NOON),
        ("2026-11-29T12:00:00.000000Z", NOON),
        ("2026-11-29T12:00:00.123456789Z", NOON.replace(microsecond=123456)),
    ],
)
def test_a_time_is_read_as_rfc_3339(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "now",
            "2026-11-29",
            "2026-11-29T12:00Z",
            "2026-11-29T12:00:00",
            "2026-11-31T12:00:00Z",
        ),
        *(
            "2026-11-29T25:00:00Z",
            "2026-11-29T12:00:00Z\n",
            " 2026-11-29T12:00:00Z",
            "20261129T120000Z",
        ),
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "\u0662026-11-29T12:00:00Z"),
        *(5, None, True, []),
    ],
)
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_time(text)


def test_a_time_is_written_in_utc_and_whole_seconds() -> None:
    east = timezone(timedelta(hours=2))
    assert (
        format_time(datetime(2026, 11, 29, 14, 0, 0, 999999, tzinfo=east)) == "2026-11-29T12:00:00Z"
    )


@pytest.mark.parametrize("switch", [is_paused, is_dry_run])
def test_a_switch_is_on_unless_it_says_false(switch: Any) -> None:
    """D8, D9: whoever writes `yes` on the stop button means it."""
    name = "etcdmaint.io/paused" if switch is is_paused else "etcdmaint.io/dry-run"
    for value in ("true", "True", "yes", "1", "", "please"):
        assert switch({name: value})
    for value in ("false", "False", " false "):
        assert not switch({name: value})
    for nothing in ({}, None, 5, [], {"other": "true"}):
        assert not switch(nothing)


def test_a_dry_run_is_asked_for_by_the_spec_or_by_the_annotation() -> None:
    """D8."""
    plain = {"clusterRef": REF}
    assert not parse_defrag(stored(plain)).dry_run
    assert parse_defrag(stored({**plain, "dryRun": True})).dry_run
    marked = stored(plain, annotations={"etcdmaint.io/dry-run": "true"})
    assert parse_defrag(marked).dry_run


def test_the_other_annotations_are_read() -> None:
    """D9, D17."""
    annotations = {"etcdmaint.io/allow-unsafe-version": " 3.5.0 ", "etcdmaint.io/paused": "true"}
    parsed = parse_defrag(stored({"clusterRef": REF}, annotations=annotations))
    assert parsed.allow_unsafe_version == "3.5.0"
    assert is_paused(parsed.metadata.annotations)
    assert allowed_unsafe_version({"etcdmaint.io/allow-unsafe-version": 5}) == ""


def test_the_metadata_is_read() -> None:
    parsed = parse_defrag(stored({"clusterRef": REF}, deletionTimestamp="2026-11-29T12:00:00Z"))
    assert (parsed.namespace, parsed.name, parsed.uid) == ("team-a", "etcd-now", "4b1f2a3c")
    assert parsed.created == datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
    assert parsed.deleting
    assert object_key({"metadata": METADATA}) == ("team-a", "etcd-now")
    assert object_key({}) == object_key({"metadata": {"name": 5}}) == ("", "")
