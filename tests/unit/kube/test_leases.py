"""The elector, on a clock that tests move and a Lease in memory."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from etcdmaint.errors import InvalidInput, LeadershipLost
from etcdmaint.kube.client import Conflict, NotFound, Unavailable
from etcdmaint.kube.leases import Elector, LeaseTiming, own_identity
from tests.unit.kube.fakes import FakeClock

TIMING = LeaseTiming(duration=15.0, renew_deadline=10.0, retry_period=2.0)


class Store:
    """A Lease with a version; `away` makes the next so many requests fail."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = 0
        self.uid = "uid-1"

    def _check(self) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("away")

    async def get(self, *_: Any, timeout: float) -> dict[str, Any]:
        self._check()
        if self.lease is None:
            raise NotFound("none")
        return copy.deepcopy(self.lease)

    async def create(self, *given: Any, timeout: float) -> dict[str, Any]:
        self._check()
        if self.lease is not None:
            raise Conflict("exists")
        made = copy.deepcopy(given[-1])
        made["metadata"]["uid"] = self.uid
        return self._store(made)

    async def replace(self, *given: Any, timeout: float) -> dict[str, Any]:
        lease = copy.deepcopy(given[-1])
        self._check()
        if self.lease is None:
            # A PUT may make a Lease, but not one with a UID.
            raise Conflict("the UID does not match")
        if self.lease["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        return self._store(lease)

    def _store(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = copy.deepcopy(lease)
        return copy.deepcopy(lease)


def elector(
    store: Store, clock: FakeClock, identity: str = "a", changes: list[bool] | None = None
) -> Elector:
    told = changes if changes is not None else []
    return Elector(
        store,  # type: ignore[arg-type]  # a stand-in of its shape
        namespace="ns",
        name="lease",
        identity=identity,
        timing=TIMING,
        clock=clock,
        changed=told.append,
    )


async def test_the_first_one_makes_the_lease_and_leads() -> None:
    store, clock, changes = Store(), FakeClock(), list[bool]()
    first = elector(store, clock, changes=changes)
    with pytest.raises(LeadershipLost):
        first.assert_held()
    await first.acquire()
    first.assert_held()
    assert changes == [True]
    assert store.lease is not None
    assert store.lease["spec"]["leaseDurationSeconds"] == 15
    assert first.holder == "ns/lease/uid-1"


async def test_a_lease_is_taken_over_a_duration_after_it_was_last_seen_to_change() -> None:
    """Clocks of two machines are never compared: this one's wall clock may say anything."""
    store, clock = Store(), FakeClock()
    await elector(store, clock, "a").acquire()
    assert store.lease is not None
    store.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    second = elector(store, clock, "b")
    await second.acquire()
    # It is taken at the moment it is free, and not a whole retry period later.
    assert 15.0 <= clock.seconds < 15.1
    assert store.lease["spec"]["holderIdentity"] == "b"
    assert store.lease["spec"]["leaseTransitions"] == 1
    assert second.epoch.startswith("1-")


async def test_as_long_as_the_lease_changes_nobody_takes_it() -> None:
    store, clock = Store(), FakeClock()
    await elector(store, clock, "a").acquire()
    rounds = 0

    class Renewing(FakeClock):
        async def sleep(self, seconds: float) -> None:
            nonlocal rounds
            rounds += 1
            self.seconds += seconds
            if rounds < 50:
                assert store.lease is not None
                store.lease["spec"]["renewTime"] = f"{rounds}"

    renewing = Renewing()
    await elector(store, renewing, "b").acquire()
    assert rounds > 50
    assert renewing.seconds > 100.0


async def test_holding_renews_through_errors_shorter_than_the_deadline() -> None:
    """No error of the API escapes the loop."""
    store, clock = Store(), FakeClock()
    first = elector(store, clock)
    await first.acquire()
    ends = clock.seconds + 300

    class Enough(Exception):
        pass

    async def sleep(seconds: float) -> None:
        clock.seconds += seconds
        if clock.seconds > ends:
            raise Enough
        if clock.seconds % 40 < 3:
            store.away = 3

    clock.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(Enough):
        await first.hold()


async def test_leadership_is_lost_before_anybody_else_may_take_it() -> None:
    """D37: refused some time before the others' count is over, and for good."""
    store, clock, changes = Store(), FakeClock(), list[bool]()
    first = elector(store, clock, changes=changes)
    await first.acquire()
    store.away = 10**6
    with pytest.raises(LeadershipLost):
        await first.hold()
    assert TIMING.renew_deadline <= clock.seconds < TIMING.duration - 2
    with pytest.raises(LeadershipLost):
        first.assert_held()
    assert changes == [True, False]


async def test_a_process_that_slept_refuses_to_act_when_it_wakes() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock)
    await first.acquire()
    clock.seconds += 10.0
    with pytest.raises(LeadershipLost):
        first.assert_held()


async def test_a_holder_that_slept_too_long_is_lost_though_nobody_else_came() -> None:
    """D2, D37: who asked meanwhile was refused and has left its run: only a new process takes it up."""
    store, clock, changes = Store(), FakeClock(), list[bool]()
    sleeper = elector(store, clock, changes=changes)
    await sleeper.acquire()
    version = store.version
    clock.seconds += 10.0
    with pytest.raises(LeadershipLost):
        sleeper.assert_held()
    with pytest.raises(LeadershipLost):
        await sleeper.hold()
    assert store.version == version
    assert changes == [True, False]


async def test_a_renewal_that_is_answered_after_the_deadline_does_not_bring_it_back() -> None:
    """It counts from when it was sent, so that for a moment in between nobody led."""

    class Slow(Store):
        async def replace(self, *given: Any, timeout: float) -> dict[str, Any]:
            written = await super().replace(*given, timeout=timeout)
            clock.seconds += 9.0
            return written

    clock = FakeClock()
    slow = elector(Slow(), clock)
    await slow.acquire()
    with pytest.raises(LeadershipLost, match="in time"):
        await slow.hold()
    with pytest.raises(LeadershipLost):
        slow.assert_held()


async def test_a_slow_renewal_counts_from_when_it_was_sent() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock)

    async def slow(*given: Any, timeout: float) -> dict[str, Any]:
        clock.seconds += 9.0
        return await Store.create(store, *given, timeout=timeout)

    store.create = slow  # type: ignore[method-assign]
    await first.acquire()
    first.assert_held()
    clock.seconds += 1.0
    with pytest.raises(LeadershipLost):
        first.assert_held()


async def test_a_lease_taken_by_somebody_else_is_lost_at_once() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock)
    await first.acquire()
    assert store.lease is not None
    thief = copy.deepcopy(store.lease)
    thief["spec"]["holderIdentity"] = "b"
    await store.replace(thief, timeout=1.0)
    with pytest.raises(LeadershipLost, match="somebody else"):
        await first.hold()
    assert clock.seconds == TIMING.retry_period


async def test_a_lease_that_was_deleted_is_lost_at_once() -> None:
    """A standby makes another one as soon as it looks: there must be no two that lead meanwhile."""
    store, clock = Store(), FakeClock()
    first = elector(store, clock)
    await first.acquire()
    store.lease = None
    with pytest.raises(LeadershipLost, match="was deleted"):
        await first.hold()
    assert clock.seconds == TIMING.retry_period
    assert not first.leading


async def test_a_lease_that_was_made_anew_is_lost_since_it_names_another_holder() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock)
    await first.acquire()
    assert store.lease is not None
    store.lease["metadata"]["uid"] = "uid-2"
    store.lease["metadata"]["resourceVersion"] = "99"
    with pytest.raises(LeadershipLost, match="replaced"):
        await first.hold()


async def test_a_clean_stop_lets_the_next_one_in_at_once() -> None:
    store, clock, changes = Store(), FakeClock(), list[bool]()
    first = elector(store, clock, "a", changes)
    await first.acquire()
    await first.release()
    with pytest.raises(LeadershipLost):
        first.assert_held()
    second = elector(store, clock, "b")
    await second.acquire()
    assert clock.seconds == 0.0


async def test_it_is_released_also_when_the_answer_to_the_last_renewal_was_lost() -> None:
    """A renewal that was under way at the stop may have been carried out: a conflict with ourselves."""
    store, clock = Store(), FakeClock()
    first = elector(store, clock, "a")
    await first.acquire()
    assert store.lease is not None
    await store.replace(store.lease, timeout=1.0)
    await first.release()
    await elector(store, clock, "b").acquire()
    assert clock.seconds == 0.0


async def test_releasing_takes_nothing_from_whoever_has_it_now() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock, "a")
    await first.acquire()
    assert store.lease is not None
    thief = copy.deepcopy(store.lease)
    thief["spec"]["holderIdentity"] = "b"
    await store.replace(thief, timeout=1.0)
    await first.release()
    assert store.lease["spec"]["holderIdentity"] == "b"


async def test_who_does_not_hold_it_releases_nothing() -> None:
    store, clock = Store(), FakeClock()
    await elector(store, clock, "a").acquire()
    before = store.version
    await elector(store, clock, "b").release()
    assert store.version == before


async def test_two_that_see_a_free_lease_do_not_both_get_it() -> None:
    store, clock = Store(), FakeClock()
    first = elector(store, clock, "a")
    await first.acquire()
    await first.release()
    one, two = elector(store, clock, "b"), elector(store, clock, "c")
    tasks = [asyncio.create_task(each.acquire()) for each in (one, two)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert sum(each.leading for each in (one, two)) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_restarted_container_is_the_same_holder_with_another_epoch() -> None:
    """D62: it goes on at once, and its predecessor's writes are told apart."""
    store, clock = Store(), FakeClock()
    before = elector(store, clock, "pod-0")
    await before.acquire()
    after = elector(store, clock, "pod-0")
    await after.acquire()
    assert clock.seconds == 0.0
    assert before.holder == after.holder
    assert before.epoch != after.epoch


@pytest.mark.parametrize(
    ("duration", "deadline", "retry", "flag"),
    [
        (15, 15, 2, "--lease-duration"),
        (15, 2, 2, "--renew-deadline"),
        (15, 10, 0, "--retry-period"),
    ],
)
def test_timings_that_cannot_work_are_refused(
    duration: float, deadline: float, retry: float, flag: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        LeaseTiming(duration=duration, renew_deadline=deadline, retry_period=retry)
    assert refused.value.field == flag


def test_the_identity_is_the_pods_name_and_else_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "etcdmaint-7")
    assert own_identity() == own_identity() == "etcdmaint-7"
    monkeypatch.delenv("POD_NAME")
    assert own_identity() != own_identity()
