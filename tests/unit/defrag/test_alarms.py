"""When NOSPACE may be disarmed (D40, D41)."""

from __future__ import annotations

from dataclasses import replace

from etcdmaint.defrag.alarms import judge_alarms
from etcdmaint.errors import RPCTimeout
from etcdmaint.etcd.types import Alarm, AlarmKind

from .observations import MIB, member, observation, status, with_status

NOSPACE = Alarm(2, AlarmKind.NOSPACE)
QUOTAS: dict[int, int | None] = dict.fromkeys((1, 2, 3, 4), 1000 * MIB)


def test_every_alarm_is_disarmed_by_its_own_member_when_all_are_well_under_quota() -> None:
    """D40."""
    both = [NOSPACE, Alarm(1, AlarmKind.NOSPACE)]
    verdict = judge_alarms(both, observation(), QUOTAS)
    assert [alarm.member_id for alarm in verdict.disarm] == [1, 2]


def test_exactly_nine_tenths_is_enough_and_a_byte_more_is_not() -> None:
    """D40."""
    assert judge_alarms([NOSPACE], with_status(3, db_size=900 * MIB), QUOTAS).disarm
    verdict = judge_alarms([NOSPACE], with_status(3, db_size=900 * MIB + 1), QUOTAS)
    assert not verdict.disarm
    assert "m3" in verdict.kept


def test_the_reason_says_which_member_is_over_by_how_much() -> None:
    """D41."""
    kept = judge_alarms([NOSPACE], with_status(3, db_size=950 * MIB), QUOTAS).kept
    assert "m3" in kept
    assert "50Mi" in kept


def test_an_unreadable_voter_counts_as_over_an_unreadable_learner_does_not() -> None:
    """D40."""
    silent = RPCTimeout("no answer")
    voter = observation(statuses={**observation().statuses, 3: silent})
    assert not judge_alarms([NOSPACE], voter, QUOTAS).disarm
    learner = observation(
        members=(*observation().members, member(4, is_learner=True)),
        statuses={**observation().statuses, 4: silent},
    )
    assert judge_alarms([NOSPACE], learner, QUOTAS).disarm


def test_a_reachable_learner_over_its_quota_keeps_the_alarm() -> None:
    """D40."""
    seen = observation(
        members=(*observation().members, member(4, is_learner=True)),
        statuses={**observation().statuses, 4: status(4, db_size=950 * MIB, is_learner=True)},
    )
    assert not judge_alarms([NOSPACE], seen, QUOTAS).disarm


def test_nothing_is_disarmed_while_corrupt_is_armed() -> None:
    """D40: CORRUPT is never disarmed, and NOSPACE not beside it."""
    verdict = judge_alarms([NOSPACE, Alarm(3, AlarmKind.CORRUPT)], observation(), QUOTAS)
    assert not verdict.disarm
    assert "CORRUPT" in verdict.kept


def test_corrupt_counts_by_whoever_tells_of_it() -> None:
    """D40: the alarm RPC, or a member's Status."""
    seen = with_status(3, errors=("memberID:3 alarm:CORRUPT ",))
    assert not judge_alarms([NOSPACE], seen, QUOTAS).disarm


def test_a_member_without_a_quota_is_never_over() -> None:
    """D21, D40."""
    quotas = {**QUOTAS, 3: None}
    assert judge_alarms([NOSPACE], with_status(3, db_size=5000 * MIB), quotas).disarm


def test_no_alarm_is_nothing_to_do() -> None:
    verdict = judge_alarms([], replace(observation()), QUOTAS)
    assert (verdict.disarm, verdict.kept) == ((), "")
