"""One round of the election: what is decided, what is sent, and what becomes of each answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compaction.election import (
    KEY,
    Result,
    Round,
    State,
    advertised,
    decide,
    request,
    run_round,
)
from etcdmaint.errors import (
    EtcdError,
    PermissionDenied,
    RevisionCompacted,
    RPCTimeout,
    SpaceExceeded,
)
from etcdmaint.etcd import messages
from etcdmaint.etcd.types import (
    Compare,
    Header,
    KeyValue,
    PutOp,
    RangeOp,
    RangeResult,
    TxnResult,
)

from .kv import InMemoryStore


async def rounds(store: InMemoryStore, state: State, count: int) -> list[Round]:
    held = []
    for _ in range(count):
        held.append(await run_round(store, state))
        state = held[-1].state
    return held


# What is sent


def test_the_request_is_one_txn_on_the_version_of_the_one_key() -> None:
    """C1, C2: If version, Then Put of the decimal revision, Else Get; no separate read."""
    condition, then, otherwise = request(State(version=7, revision=4815162342))
    assert condition == [Compare.version(b"compact_rev_key", 7)]
    assert then == [PutOp(b"compact_rev_key", b"4815162342")]
    assert otherwise == [RangeOp(b"compact_rev_key")]


@pytest.mark.parametrize(
    ("state", "wire"),
    [
        (
            State(),
            # The operand of a comparison is there also where it is 0: it is of a oneof.
            f"0a13 1a0f{KEY.hex()} 2000 1216 1214 0a0f{KEY.hex()} 120130 1a13 0a11 0a0f{KEY.hex()}",
        ),
        (
            State(3, 1200),
            f"0a131a0f{KEY.hex()}2003 12191217 0a0f{KEY.hex()}120431323030 1a130a11 0a0f{KEY.hex()}",
        ),
    ],
)
def test_the_request_on_the_wire(state: State, wire: str) -> None:
    """C1, C2: byte for byte; tests/cluster compares it with what a real kube-apiserver sends."""
    condition, then, otherwise = request(state)
    message = messages.txn_request(tuple(condition), tuple(then), tuple(otherwise))
    assert message.SerializeToString().hex() == wire.replace(" ", "")


# What is decided


async def test_the_first_caller_creates_the_key_and_compacts_nothing() -> None:
    """C3, C5, C18: version 0 is no key; "0" is written, the revision remembered; one write."""
    store = InMemoryStore(revision=41)
    held = await run_round(store, State())
    assert held == Round(Result.BOOTSTRAP, State(1, 42), swapped=True, key_revision=42)
    assert store.kv is not None
    assert (store.kv.value, store.version) == (b"0", 1)
    assert (store.revision, store.compactions) == (42, [])


async def test_the_winner_compacts_to_the_revision_of_its_tick_before() -> None:
    """C6: the sequence of the upstream test: put-1, put+1, put2+1."""
    store = InMemoryStore(revision=9)
    first = await run_round(store, State())
    store.write()
    put = store.revision
    second = await run_round(store, first.state)
    assert (second.result, second.revision) == (Result.WON, put - 1)
    assert second.state == State(2, put + 1)
    third = await run_round(store, second.state)
    assert third.revision == put + 1
    store.write()
    fourth = await run_round(store, third.state)
    assert fourth.revision == put + 2
    assert store.compactions == [(put - 1, False), (put + 1, False), (put + 2, False)]


async def test_compaction_is_logical() -> None:
    """C16: nobody waits for the space."""
    store = InMemoryStore()
    await rounds(store, State(), 3)
    assert [physical for _, physical in store.compactions] == [False, False]


async def test_a_round_of_an_idle_store_writes_one_revision() -> None:
    """C18: and nothing else."""
    store = InMemoryStore(revision=5)
    await rounds(store, State(), 4)
    assert store.revision == 9


async def test_the_swap_comes_before_the_compaction() -> None:
    """C8, C13: when it fails, the key says already what was not done; the next round does more."""
    store = InMemoryStore(revision=5)
    state = (await run_round(store, State())).state
    store.refuse = lambda rpc: RPCTimeout("late") if rpc == "compact" else None
    failed = await run_round(store, state)
    assert (failed.result, failed.revision, failed.swapped) == (Result.ERROR, 0, True)
    assert failed.state == State(2, 7)
    assert store.kv is not None
    assert store.kv.value == b"6"
    assert store.compacted == 0
    store.refuse = lambda _: None
    healed = await run_round(store, failed.state)
    assert (healed.result, healed.revision) == (Result.WON, 7)


async def test_a_loser_adopts_what_the_same_answer_tells() -> None:
    """C9: version and revision of the winner, its own head; no compaction and no error."""
    store = InMemoryStore(revision=10)
    winner = (await run_round(store, State())).state
    await run_round(store, winner)
    store.write(5)
    compactions = list(store.compactions)
    lost = await run_round(store, State())
    assert lost == Round(Result.LOST, State(2, store.revision), 11, key_revision=12)
    assert store.compactions == compactions


@pytest.mark.parametrize("value", [b"abc", b"", b"1 ", b"1_0", b"0x10", b"9" * 30, b"\xff"])
async def test_a_loser_takes_the_version_but_no_revision_from_rubbish(value: bytes) -> None:
    """C10."""
    store = InMemoryStore(revision=10)
    store.put(value)
    lost = await run_round(store, State())
    assert (lost.result, lost.state, lost.revision) == (Result.LOST, State(1, 11), 0)
    assert lost.error is None


async def test_a_key_that_was_deleted_is_version_0() -> None:
    """C11: etcd answers an empty range; the next round creates the key anew."""
    store = InMemoryStore(revision=10)
    state = (await rounds(store, State(), 3))[-1].state
    store.delete()
    lost = await run_round(store, state)
    assert (lost.result, lost.state) == (Result.LOST, State(0, store.revision))
    again = await run_round(store, lost.state)
    assert (again.result, again.revision) == (Result.WON, lost.state.revision)
    assert store.version == 1


@pytest.mark.parametrize("answer", [(), (RangeResult(Header(1, 1, 9)),)])
def test_no_shape_of_an_empty_answer_trips_a_loser(answer: tuple[RangeResult, ...]) -> None:
    """C11: nothing is indexed that may not be there."""
    verdict = decide(State(3, 5), TxnResult(Header(1, 1, 9), False, answer))
    assert (verdict.result, verdict.state) == (Result.LOST, State(0, 9))


async def test_a_txn_without_an_answer_changes_nothing() -> None:
    """C12: and where it had been carried out, the next swap loses and learns."""
    store = InMemoryStore(revision=10)
    state = (await run_round(store, State())).state
    store.refuse = lambda rpc: RPCTimeout("late") if rpc == "txn" else None
    failed = await run_round(store, state)
    assert (failed.result, failed.state, failed.swapped) == (Result.ERROR, state, False)
    store.refuse = lambda _: None
    store.put(b"11")  # our own, whose answer was lost
    lost = await run_round(store, failed.state)
    assert (lost.result, lost.state, lost.revision) == (Result.LOST, State(2, 12), 11)


async def test_somebody_else_has_compacted_as_far_already() -> None:
    """C14: benign, and recorded."""
    store = InMemoryStore(revision=10)
    state = (await run_round(store, State())).state
    store.compacted = store.revision
    held = await run_round(store, state)
    assert (held.result, held.revision) == (Result.ALREADY_COMPACTED, state.revision)
    assert held.error is None


async def test_a_stale_contender_whose_version_coincides_compacts_to_its_own_older_revision() -> (
    None
):
    """C17: the key was deleted and made anew meanwhile; the harm is bounded."""
    store = InMemoryStore(revision=10)
    stale = (await rounds(store, State(), 2))[-1].state
    store.delete()
    store.put(b"5")
    store.put(b"6")
    held = await run_round(store, stale)
    assert (held.result, held.revision) == (Result.WON, stale.revision)
    assert stale.revision < store.revision - 3


async def test_a_younger_store_makes_it_begin_anew() -> None:
    """C15, C17: restored from a snapshot: all that it remembers is void, so no future revision is asked."""
    store = InMemoryStore(revision=100)
    state = (await rounds(store, State(), 4))[-1].state
    store.revision, store.compacted, store.compactions = 60, 50, []
    store.kv = KeyValue(KEY, b"50", 2, 10, 52)
    lost = await run_round(store, state)
    assert (lost.result, lost.state, lost.new_world) == (Result.LOST, State(), True)
    held = await rounds(store, lost.state, 3)
    assert [one.result for one in held] == [Result.LOST, Result.WON, Result.WON]
    assert min(revision for revision, _ in store.compactions) >= 60


async def test_a_younger_store_whose_version_coincides_is_not_compacted_either() -> None:
    """C17: the swap goes through, and is all that happens."""
    store = InMemoryStore(revision=50)
    store.put(b"40")
    held = await run_round(store, State(version=1, revision=900))
    assert (held.result, held.state, held.new_world) == (Result.BOOTSTRAP, State(), True)
    assert store.compactions == []


# NOSPACE


async def test_under_nospace_it_compacts_physically_to_what_it_saw_one_interval_ago() -> None:
    """C14: the swap is refused, losing branch and all; the key follows once writes work again."""
    store = InMemoryStore(revision=10)
    state = (await rounds(store, State(), 2))[-1].state
    store.write(20)
    store.nospace = True
    raw = await run_round(store, state)
    assert (raw.result, raw.revision, raw.swapped) == (Result.RAW, state.revision, False)
    assert store.compactions[-1] == (state.revision, True)
    assert raw.state == State(2, store.revision)
    again = await run_round(store, raw.state)
    assert (again.result, again.revision) == (Result.RAW, raw.state.revision)
    idle = await run_round(store, again.state)
    assert idle.result is Result.ALREADY_COMPACTED
    assert (raw.nospace, again.nospace, idle.nospace) == (True, True, True)
    store.nospace = False
    published = await run_round(store, idle.state)
    assert (published.swapped, published.nospace) == (True, False)
    assert store.kv is not None
    assert int(store.kv.value) == idle.state.revision


async def test_under_nospace_each_member_is_made_to_wait_for_its_own_compaction() -> None:
    """C14, C16: the same revision is carried out once only; one that is away holds up nobody."""
    store, second, away = (InMemoryStore(revision=50, nospace=True) for _ in range(3))
    away.refuse = lambda _: RPCTimeout("away")
    held = await run_round(store, State(0, 40), others=[second, away])
    assert (held.result, held.revision) == (Result.RAW, 40)
    assert store.compactions == [(40, True)]
    assert second.compactions == [(38, True)]


async def test_under_nospace_a_newcomer_first_looks() -> None:
    """C4: never younger than one interval."""
    store = InMemoryStore(revision=10, nospace=True)
    store.kv = KeyValue(KEY, b"5", 4, 1, 7)
    first = await run_round(store, State())
    assert (first.result, first.state) == (Result.ERROR, State(4, 10))
    assert isinstance(first.error, SpaceExceeded)
    assert store.compactions == []
    second = await run_round(store, first.state)
    assert second.result is Result.RAW


async def test_a_younger_store_under_nospace_is_not_compacted() -> None:
    """C15: a restored cluster may be over its quota at once."""
    store = InMemoryStore(revision=10, nospace=True)
    held = await run_round(store, State(3, 400))
    assert (held.state, held.new_world, store.compactions) == (State(), True, [])


# Rights


async def test_who_may_not_compact_wins_no_second_time() -> None:
    """C8: else nobody would ever compact: it takes the interval and cannot use it."""
    store = InMemoryStore(revision=10)
    state = (await run_round(store, State())).state
    store.refuse = lambda rpc: PermissionDenied("no") if rpc == "compact" else None
    refused = await run_round(store, state)
    assert isinstance(refused.error, PermissionDenied)
    assert refused.state.barred
    version = store.version
    again = await run_round(store, refused.state)
    assert (again.result, again.state, store.version) == (Result.ERROR, refused.state, version)
    store.refuse = lambda _: None
    allowed = await run_round(store, again.state)
    assert (allowed.result, allowed.state.barred) == (Result.WON, False)
    assert store.version == version + 1


async def test_asking_for_the_right_to_compact_takes_no_history() -> None:
    store = InMemoryStore(revision=10)
    await run_round(store, State(0, 0, barred=True))
    assert store.compactions == [(1, False)]


# What the key says


@given(revision=st.integers(min_value=0, max_value=2**62))
def test_what_a_winner_writes_every_other_reads(revision: int) -> None:
    """C1."""
    _, (put,), _ = request(State(1, revision))
    assert isinstance(put, PutOp)
    kv = KeyValue(KEY, put.value, 1, 1, 1)
    assert advertised(kv, revision) == revision


@given(value=st.binary(max_size=40), head=st.integers(min_value=1, max_value=2**62))
def test_a_value_is_a_revision_of_this_store_or_nothing(value: bytes, head: int) -> None:
    """C10, C23."""
    said = advertised(KeyValue(KEY, value, 1, 1, 1), head)
    assert said is None or 0 <= said <= head


def test_a_revision_beyond_the_store_is_not_believed() -> None:
    """C30: nothing can have been compacted there; it would hold the view fast for ever."""
    assert advertised(KeyValue(KEY, b"9223372036854775807", 1, 1, 1), 100) is None
    assert advertised(None, 100) == 0


async def test_a_round_raises_nothing() -> None:
    """C12, C13: whatever the RPCs end with."""
    for rpc in ("txn", "range", "compact"):
        for nospace in (False, True):
            store = InMemoryStore(revision=10, nospace=nospace)
            store.refuse = lambda name, rpc=rpc: EtcdError("oh") if name == rpc else None
            held = await run_round(store, State(0, 5))
            assert held.result in (Result.ERROR, Result.RAW, Result.WON)
            assert not isinstance(held.error, RevisionCompacted)
