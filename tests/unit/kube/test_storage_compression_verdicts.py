"""What is refused, and in which order: what is not known is never taken for good."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from etcdmaint.api.compression import AuditStatus
from etcdmaint.api.vocabulary import CompressionCondition
from etcdmaint.errors import ClusterNotFound, EtcdmaintError, MemberUnreachable
from etcdmaint.kube.storage_compression_file import read_configuration
from etcdmaint.kube.storage_compression_identity import Standing
from etcdmaint.kube.storage_compression_verdicts import Situation, refusal, verdicts
from etcdmaint.kube.verdict import Verdict
from tests.unit.api.compression_cases import KEP_SAMPLE, entry
from tests.unit.api.test_specs import stored
from tests.unit.kube.test_storage_compression_gate import server

DOUBT = Verdict(None, "NotThisCluster", "another API server's etcd")
REF = {"clusterRef": {"name": "etcd", "kind": "EtcdConnection"}}
OWN = Standing(1, "")
FOREIGN = Standing(1, "another API server's etcd")
AWAY = MemberUnreachable("no member answers")
NONE = entry(algorithm="None") | REF
DEFLATE = KEP_SAMPLE | REF
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
AUDIT = AuditStatus(
    cluster_id=1, completed_at=NOON, values=5, consistent=True, last_revision=9, damaged=0
)


def situation(spec: Any = DEFLATE, **changes: Any) -> Situation:
    """All is well on a 1.38 but for the changes."""
    usual: dict[str, Any] = {
        "reading": read_configuration(stored(spec)),
        "standing": OWN,
        "server": server(38, 38),
        "doubt": DOUBT,
        "elder": "",
        "published": "",
        "audit": AUDIT,
        "failure": None,
    }
    return Situation(**{**usual, **changes})


def hash_of(spec: Any) -> str:
    file = read_configuration(stored(spec)).file
    assert file is not None
    return file.hash


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (situation(), None, None),
        (situation(NONE), None, None),
        (situation(entry(minSize=63)), False, "InvalidSpec"),
        (situation(elder="ns/older"), False, "Conflict"),
        (situation(NONE, elder="ns/older"), False, "Conflict"),
        (situation(server=server(37, 36)), False, "MinCompatibilityTooLow"),
        (situation(standing=FOREIGN, server=None), None, "NotThisCluster"),
        (situation(NONE, standing=FOREIGN, server=None), None, None),
        (
            situation(NONE, standing=Standing(None, "x", AWAY), server=None),
            None,
            "MemberUnreachable",
        ),
        (situation(standing=Standing(None, "x", AWAY), server=None), None, "MemberUnreachable"),
        (situation(NONE, standing=Standing(1, "x", AWAY), server=None), None, None),
        (situation(standing=Standing(1, "", AWAY)), None, "MemberUnreachable"),
        (
            situation(standing=Standing(1, "", AWAY), published=hash_of(NONE)),
            None,
            "MemberUnreachable",
        ),
        (
            situation(standing=Standing(None, "x", AWAY), server=None, published=hash_of(DEFLATE)),
            None,
            "MemberUnreachable",
        ),
        (
            situation(standing=Standing(1, "x", AWAY), server=None, published=hash_of(DEFLATE)),
            None,
            None,
        ),
        (
            situation(standing=FOREIGN, server=None, published=hash_of(DEFLATE)),
            None,
            "NotThisCluster",
        ),
        (
            situation(
                elder="ns/older", standing=Standing(1, "x", AWAY), published=hash_of(DEFLATE)
            ),
            False,
            "Conflict",
        ),
    ],
)
def test_what_is_refused_and_why(given: Situation, status: bool | None, reason: str | None) -> None:
    """R116, R117, R125, R127; an etcd that is away takes nothing back that was written rightly.

    It lets nothing new pass either, and what was right for one etcd is not said to be for another.
    """
    found = refusal(given)
    assert (found.reason if found else None) == reason
    if found is not None:
        assert found.status is status


def said(given: Situation, kind: CompressionCondition) -> Verdict:
    return verdicts(given, Verdict(True, "Published", "x"))[kind]


def test_nothing_converges_while_no_api_server_has_the_file() -> None:
    """R127, R139, R141: no counter and no audit is taken for a proof."""
    found = said(situation(), CompressionCondition.CONVERGED)
    assert (found.status, found.reason) == (None, "NotInForce")


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (situation(), True, "Consistent"),
        (situation(audit=AUDIT.model_copy(update={"consistent": False})), True, "SeveralRevisions"),
        (situation(audit=None), None, "AuditPending"),
        (situation(KEP_SAMPLE), None, "NoClusterRef"),
        (situation(DEFLATE | {"audit": {"interval": "0s"}}), None, "AuditOff"),
        (situation(failure=AWAY), False, "MemberUnreachable"),
        (situation(DEFLATE | {"audit": {"interval": "0s"}}, failure=AWAY), None, "AuditOff"),
        (situation(standing=Standing(1, "", ClusterNotFound("none"))), False, "ClusterNotFound"),
    ],
)
def test_an_audit_is_told_with_what_it_is_worth(
    given: Situation, status: bool | None, reason: str
) -> None:
    found = said(given, CompressionCondition.AUDITED)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize("fault", [AWAY, ClusterNotFound("there is no EtcdConnection ns/etcd")])
def test_an_etcd_that_is_away_is_told_and_the_last_count_is_kept(fault: EtcdmaintError) -> None:
    found = said(situation(standing=Standing(1, "", fault)), CompressionCondition.AUDITED)
    assert str(fault) in found.message
    assert "the count of 2026-11-30T12:00:00Z is kept" in found.message


def test_whose_etcd_was_counted_is_told_where_it_is_not_proven() -> None:
    message = said(situation(standing=FOREIGN), CompressionCondition.AUDITED).message
    assert "5 values at revision 9" in message
    assert "another API server's etcd" in message


def test_the_version_is_in_the_status_only_where_it_counts() -> None:
    told = situation(server=server(38, 37)).api_server
    assert told is not None
    assert told.to_wire() == {"version": "v1.38.0", "emulation": "1.38", "minCompatibility": "1.37"}
    assert situation(server=None).api_server is None
