"""What `etcdmaint status` makes of the members' answers."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import pytest
import yaml

from etcdmaint.cli import output, status
from etcdmaint.cli.report import ClusterReport, Quota, as_document, build_report, quota_of
from etcdmaint.defrag.health import Observation
from etcdmaint.defrag.lock import SlotValue
from etcdmaint.errors import EtcdError, NoLeader, PermissionDenied, RPCTimeout
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import Header, Member, MemberStatus, RangeResult

LEADER = Member(1, "etcd-0", client_urls=("http://a:2379",))
FOLLOWER = Member(2, "etcd-1", client_urls=("http://b:2379",))
HANGING = RPCTimeout("Status at http://b:2379: no answer within 5 s")


def said(member_id: int, **changes: object) -> MemberStatus:
    """A member's status, healthy but for the changes."""
    healthy = MemberStatus(
        header=Header(cluster_id=0xC0FFEE, member_id=member_id, revision=7, raft_term=3),
        version="3.7.3",
        db_size=400,
        db_size_in_use=100,
        leader=1,
        raft_index=50,
        raft_applied_index=50,
        raft_term=3,
        db_size_quota=1000,
    )
    return replace(healthy, **changes)  # type: ignore[arg-type]


def report_of(
    statuses: Mapping[int, MemberStatus | EtcdError],
    *,
    members: tuple[Member, ...] = (FOLLOWER, LEADER),
    metrics: Mapping[int, MemberMetrics | None] | None = None,
    slot: SlotValue | None = None,
    slot_error: EtcdError | None = None,
) -> ClusterReport:
    """A report about these answers."""
    return build_report(
        cluster_id=0xC0FFEE,
        observation=Observation(members=members, statuses=statuses, metrics=metrics or {}),
        endpoints={member.id: member.client_urls[0] for member in members if member.started},
        slot=slot,
        slot_error=slot_error,
    )


def test_a_healthy_cluster_is_told_by_name_with_every_figure() -> None:
    report = report_of(
        {1: said(1), 2: said(2, raft_applied_index=42)},
        metrics={1: MemberMetrics(defrag_inflight=0), 2: MemberMetrics(defrag_inflight=0)},
    )
    lead, follower = report.members
    assert (lead.name, lead.role, lead.lag) == ("etcd-0", "leader", 0)
    assert (follower.name, follower.role, follower.lag) == ("etcd-1", "follower", 8)
    assert (lead.reclaimable, lead.reclaimable_percent) == (300, 75.0)
    assert lead.quota == Quota(size=1000, source="status")
    assert lead.defragmenting is False
    assert report.complete


@pytest.mark.parametrize(
    ("status", "metrics", "quota"),
    [
        (said(1), MemberMetrics(quota=5), Quota(size=1000, source="status")),
        (said(1, db_size_quota=-1), None, Quota(size=None, source="status")),
        (said(1, db_size_quota=0), MemberMetrics(quota=5), Quota(size=5, source="metrics")),
        (said(1, db_size_quota=0), MemberMetrics(quota=-1), Quota(size=None, source="metrics")),
        (said(1, db_size_quota=0), MemberMetrics(), Quota(size=2 << 30, source="default")),
        (said(1, db_size_quota=0), None, Quota(size=2 << 30, source="default")),
        (None, MemberMetrics(quota=5), Quota(size=5, source="metrics")),
        (None, None, None),
    ],
)
def test_a_quota_is_told_with_its_source(
    status: MemberStatus | None, metrics: MemberMetrics | None, quota: Quota | None
) -> None:
    """D21."""
    assert quota_of(status, metrics) == quota


def test_a_member_that_hangs_is_named_and_nothing_is_guessed_about_it() -> None:
    report = report_of({1: said(1), 2: HANGING})
    silent = report.members[1]
    assert silent.trouble == f"etcd-1 gives no status: {HANGING}"
    assert silent.quota is silent.lag is silent.reclaimable is silent.reclaimable_percent is None
    assert silent.role == ""
    assert not report.complete


def test_a_member_that_hangs_because_it_is_defragmented_is_told_so() -> None:
    """Status blocks for the whole defragmentation; /metrics does not."""
    report = report_of({1: said(1), 2: HANGING}, metrics={2: MemberMetrics(defrag_inflight=1)})
    assert "is being defragmented" in report.members[1].trouble
    assert report.members[1].defragmenting is True


def test_an_unstarted_member_and_a_learner_are_told_apart() -> None:
    unstarted, learner = Member(3, ""), Member(4, "z", client_urls=("u",), is_learner=True)
    report = report_of(
        {1: said(1), 3: EtcdError("member has not started yet"), 4: said(4, is_learner=True)},
        members=(LEADER, unstarted, learner),
    )
    roles = {member.member_id: member.role for member in report.members}
    assert roles == {1: "leader", 3: "unstarted", 4: "learner"}


def test_a_cluster_without_a_leader_has_no_lag_and_no_leader() -> None:
    report = report_of({1: said(1, leader=0), 2: said(2, leader=0)})
    assert {member.role for member in report.members} == {"follower"}
    assert {member.lag for member in report.members} == {None}


def test_alarms_are_told_of_the_member_that_raised_them() -> None:
    """D15."""
    alarms = ("memberID:2  alarm:NOSPACE", "alarm:CORRUPT ")
    report = report_of({1: said(1, errors=alarms), 2: said(2, errors=alarms)})
    assert [member.alarms for member in report.members] == [(), ("NOSPACE",)]
    assert report.cluster_alarms == ("CORRUPT",)
    assert as_document(report)["alarms"] == [
        {"memberID": "0000000000000002", "alarm": "NOSPACE"},
        {"memberID": None, "alarm": "CORRUPT"},
    ]


def test_an_empty_file_is_not_divided_by() -> None:
    report = report_of({1: said(1, db_size=0, db_size_in_use=0), 2: said(2, db_size_in_use=500)})
    assert [member.reclaimable_percent for member in report.members] == [0.0, 0.0]


def test_the_document_has_ids_as_etcd_prints_them_and_null_for_the_unknown() -> None:
    slot = SlotValue(holder="ops@host boot=b pidns=1 pid=7 start=9", epoch="secret-epoch", member=2)
    document = as_document(report_of({1: said(1), 2: HANGING}, slot=slot))
    assert document["clusterID"] == "0000000000c0ffee"
    known, unknown = document["members"]
    assert set(known) == set(unknown)
    assert known["error"] is None
    assert unknown["error"] == {"reason": "RPCTimeout", "message": known_trouble()}
    told = {key for key, value in unknown.items() if value not in (None, [])}
    assert told == {"name", "memberID", "endpoint", "error"}
    assert document["slot"]["memberID"] == "0000000000000002"
    assert "secret-epoch" not in json.dumps(document)


def known_trouble() -> str:
    return f"etcd-1 gives no status: {HANGING}"


def test_the_table_names_every_member_and_marks_the_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status.show(report_of({1: said(1, errors=("memberID:1 alarm:NOSPACE",)), 2: HANGING}))
    head, lead, silent, _, slot = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(status.COLUMNS).split()
    assert lead.split()[:5] == ["etcd-0", "0000000000000001", "http://a:2379", "3.7.3", "leader"]
    assert lead.split()[-7:] == ["(75%)", "1000", "(status)", "3", "0", "NOSPACE", "?"]
    assert silent.split()[3:] == ["?"] * 10
    assert slot == "Nobody holds this cluster."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slot": None}, "Nobody holds this cluster."),
        (
            {"slot": SlotValue(holder="ops@h boot=b pidns=1 pid=7 start=9", epoch="", member=2)},
            "Held by ops@h (process 7), at etcd-1.",
        ),
        (
            {"slot": SlotValue(holder="ns/lease/uid", epoch="", run="team-a/etcd-now")},
            "Held by ns/lease/uid for team-a/etcd-now.",
        ),
        ({"slot_error": NoLeader("no leader")}, "is not known: no leader"),
    ],
    ids=["nobody", "process", "operator", "unknown"],
)
def test_who_holds_the_slot_is_told(
    changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """D63."""
    status.show(report_of({1: said(1), 2: said(2)}, **changes))  # type: ignore[arg-type]
    assert words in capsys.readouterr().out


def test_a_name_from_etcd_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = Member(1, "e\x1b[2Jvil\nname", client_urls=("http://a:2379",))
    status.show(report_of({1: said(1)}, members=(evil,)))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "e?[2Jvil name" in out


def test_yaml_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    document = as_document(report_of({1: said(1), 2: HANGING}))
    output.print_document(document, output.JSON)
    told = json.loads(capsys.readouterr().out)
    output.print_document(document, output.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == told == document


class Voters:
    """A cluster whose members answer a read of the slot in the way they are told."""

    cluster_id = 1

    def __init__(self, *answers: EtcdError | None) -> None:
        self.members = tuple(Member(id=n, name=f"etcd-{n}") for n, _ in enumerate(answers, 1))
        self._answers = answers
        self.metrics_timeouts: list[float] = []

    def client(self, member_id: int) -> Self:
        self._asked = self._answers[member_id - 1]
        return self

    async def range(self, key: bytes, *, timeout: float) -> RangeResult:
        if (failure := self._asked) is not None:
            raise failure
        return RangeResult(Header(1, 1))

    async def statuses(self, timeout: float) -> dict[int, EtcdError]:
        return {member.id: HANGING for member in self.members}

    async def metrics(self, member_id: int, timeout: float) -> None:
        self.metrics_timeouts.append(timeout)

    def endpoint(self, member_id: int) -> Endpoint:
        return Endpoint("a")

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Opened:
    """A connection that is there already."""

    cluster: Voters
    command_timeout: float = 60.0

    async def open(self) -> Voters:
        return self.cluster


DENIED = PermissionDenied("denied")


@pytest.mark.parametrize(
    ("answers", "known", "read"),
    [
        ((HANGING, None), True, True),
        ((HANGING, HANGING), False, False),
        ((DENIED, HANGING), False, True),
        ((HANGING, DENIED), False, True),
    ],
)
async def test_one_linearizable_read_tells_of_the_slot_and_of_reads(
    answers: tuple[EtcdError | None, ...], known: bool, read: bool
) -> None:
    """H2, D60: whoever answers; and a refusal for lack of rights is an answer."""
    cluster = Voters(*answers)
    report = await status.survey(Opened(cluster))  # type: ignore[arg-type]  # a stand-in of its shape
    assert (report.slot_error is None) is known
    assert (report.read_error is None) is read
    assert cluster.metrics_timeouts == [2.0, 2.0]


@pytest.mark.parametrize("style", [output.JSON, output.YAML])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_document_can_be_read_back_whatever_the_terminal_can_show(
    style: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", stdout)
    output.print_document({"name": "\u00e9tcd \U0001f600"}, style)
    stdout.flush()
    text = written.getvalue().decode(encoding)
    read = json.loads if style == output.JSON else yaml.safe_load
    assert read(text) == {"name": "\u00e9tcd \U0001f600"}
