"""The rate-limited probe: how seldom it asks, and which answer it gives in between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from etcdmaint.compaction.probe import DEFAULT_TIMEOUT, Ask, Probe, key_below, read_once
from etcdmaint.errors import (
    AuthenticationFailed,
    EtcdError,
    EtcdmaintError,
    MemberUnreachable,
    NoLeader,
    PermissionDenied,
    RPCTimeout,
)
from etcdmaint.etcd.types import Header, Member, MemberStatus, RangeResult
from etcdmaint.kube.measurement import Measurement, measured

from .stepped import SteppedClock, settle


@dataclass
class Voter:
    """Answers reads, or fails, when the test lets it."""

    answer: EtcdError | None = None
    asked: list[tuple[bytes, float | None]] = field(default_factory=list)
    slow: asyncio.Event | None = None

    async def range(self, key: bytes, *, timeout: float | None = None) -> RangeResult:
        self.asked.append((key, timeout))
        answer = self.answer
        if self.slow is not None:
            await self.slow.wait()
        if answer is not None:
            raise answer
        return RangeResult(Header(1, 1, 1))


async def probing(voter: Voter, clock: SteppedClock) -> Probe:
    async def connect() -> Ask:
        return lambda: [voter]

    probe = Probe(connect, clock)
    await probe.connect()
    return probe


async def test_until_it_is_connected_it_says_so_and_tries_each_second() -> None:
    """H1."""
    clock, voter = SteppedClock(), Voter()
    refused: list[EtcdmaintError] = [AuthenticationFailed("no"), NoLeader("no")]

    async def connect() -> Ask:
        if refused:
            raise refused.pop(0)
        return lambda: [voter]

    probe = Probe(connect, clock)
    answer = await probe.check()
    assert isinstance(answer, MemberUnreachable)
    assert "not yet established" in str(answer)
    connecting = asyncio.create_task(probe.connect())
    await settle()
    assert isinstance(await probe.check(), AuthenticationFailed)
    await clock.advance(1)
    assert isinstance(await probe.check(), NoLeader)
    await clock.advance(1)
    assert connecting.done()
    assert await probe.check() is None
    await connecting


async def test_it_is_a_linearizable_read_of_one_key() -> None:
    """H2: a Range that is not serializable; the key is kube-apiserver's, or etcdctl's."""
    voter = Voter()
    probe = await probing(voter, SteppedClock())
    await probe.check()
    assert voter.asked == [(b"health", DEFAULT_TIMEOUT)]
    assert key_below("/registry") == b"/registry/health"
    assert key_below("registry/") == b"/registry/health"


async def test_it_asks_once_in_half_a_timeout_and_else_gives_the_last_answer() -> None:
    """H3, H5: with the default of 2 s, a flapping etcd gets one probe a second at most."""
    clock, voter = SteppedClock(), Voter(answer=NoLeader("away"))
    probe = await probing(voter, clock)
    for _ in range(100):
        assert isinstance(await probe.check(), NoLeader)
        await clock.advance(0.01)
    assert len(voter.asked) <= 2
    voter.answer = None
    before = len(voter.asked)
    for _ in range(100):
        await probe.check()
        await clock.advance(0.1)
    assert len(voter.asked) - before == pytest.approx(10, abs=1)
    assert probe.last is None


async def test_a_slow_answer_does_not_bring_back_an_old_truth() -> None:
    """H4: by when the question was asked, not by when the answer came."""
    clock = SteppedClock()
    slow = Voter(answer=RPCTimeout("hangs"), slow=asyncio.Event())
    probe = await probing(slow, clock)
    first = asyncio.create_task(probe.check())
    await clock.advance(1.5)
    assert slow.slow is not None
    waiting, slow.slow, slow.answer = slow.slow, None, None
    assert await probe.check() is None
    waiting.set()
    assert isinstance(await first, RPCTimeout)
    assert probe.last is None
    assert await probe.check() is None


async def test_no_right_to_the_key_is_an_answer() -> None:
    """H2: whoever refuses is there."""
    probe = await probing(Voter(answer=PermissionDenied("no")), SteppedClock())
    assert await probe.check() is None


async def test_a_member_in_its_own_turn_does_not_make_the_cluster_unreachable() -> None:
    """H5: the next one is asked within the same time."""
    busy, free = Voter(answer=RPCTimeout("defragments")), Voter()
    await read_once([busy, free], b"health", 2.0)
    assert [timeout for _, timeout in (*busy.asked, *free.asked)] == [1.0, 1.0]
    free.answer = NoLeader("lost quorum")
    with pytest.raises(NoLeader):
        await read_once([busy, free], b"health", 2.0)
    with pytest.raises(MemberUnreachable):
        await read_once([], b"health", 2.0)


def measured_with(**told: Any) -> Measurement:
    header = Header(cluster_id=7, member_id=1, revision=5, raft_term=2)
    well = MemberStatus(header, "3.7.3", 100, 50, 1, 9, 9, 2)
    return measured(
        7,
        (Member(1, "a"), Member(2, "b")),
        {1: well, 2: RPCTimeout("no answer within 5 s")},
        endpoints={},
        quota_bytes=None,
        **told,
    )


def test_reachable_counts_no_member_out_that_is_in_its_own_turn() -> None:
    """H2, H5: its /metrics say that it defragments; and the cluster as a whole must answer a read."""
    assert measured_with().reachable.status is False
    busy = measured_with(defragmenting={2})
    assert busy.reachable.status is True
    cut_off = measured_with(defragmenting={2}, trouble=NoLeader("no leader"))
    assert (cut_off.reachable.status, cut_off.reachable.reason) == (False, "NoLeader")
    assert "linearizable read" in cut_off.reachable.message
