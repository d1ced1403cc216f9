"""One round of the election: who compacts in this interval, and up to which revision.

The rules are kube-apiserver's (its compact.go), since both take part in one election: the version of the
key `compact_rev_key` is the clock, whoever moves it on by a compare-and-swap has won the interval, and
compacts to the revision that it saw one interval ago. `decide` is pure; `run_round` sends what follows
from it. This module must not know when rounds are held.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from etcdmaint.errors import (
    EtcdError,
    MemberUnreachable,
    PermissionDenied,
    RevisionCompacted,
    SpaceExceeded,
)
from etcdmaint.etcd.types import (
    Compare,
    Header,
    KeyValue,
    Op,
    PutOp,
    RangeOp,
    RangeResult,
    TxnResult,
)

KEY = b"compact_rev_key"
PHYSICAL_TIMEOUT = 300.0
"""Seconds that a physical compaction may take before its answer is not waited for any more."""
OTHERS_TIMEOUT = 60.0
"""… at a member that need not answer."""

_DECIMAL = re.compile(rb"[+-]?[0-9]{1,19}")


class Store(Protocol):
    """What a round asks of etcd; an `etcd.client.MemberClient` is one."""

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Op],
        failure: Sequence[Op] = (),
        *,
        timeout: float | None = None,
    ) -> TxnResult:
        """KV/Txn."""

    async def range(self, key: bytes, *, timeout: float | None = None) -> RangeResult:
        """KV/Range of one key, linearizable."""

    async def compact(
        self, revision: int, *, physical: bool = False, timeout: float | None = None
    ) -> Header:
        """KV/Compact."""


class Result(StrEnum):
    """How a round ended."""

    WON = "won"
    LOST = "lost"
    BOOTSTRAP = "bootstrap"
    """Won, but with nothing to compact to yet."""
    ALREADY_COMPACTED = "already_compacted"
    """Won (or under NOSPACE), and somebody had compacted as far or further."""
    RAW = "raw"
    """Under NOSPACE: compacted without the election, which etcd refuses then."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class State:
    """What one contender remembers from tick to tick.

    `version` of the key that it expects to find, 0 for no key; `revision` of the whole store that it saw
    at its last tick, 0 before the first. `barred`: etcd lets it write the key but not compact, so it
    must not win: nobody would compact then.
    """

    version: int = 0
    revision: int = 0
    barred: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """A round that is over, or has only its compaction before it.

    `revision`: compacted as far as this round can tell, 0 where it learned nothing. `swapped`: the key
    was written, so the election is won, whatever became of the compaction. `key_revision`: when the key
    got the version that `state` has, 0 where it was not seen. `new_world`: the store is younger than
    the one remembered, so everything remembered is void. `nospace`: etcd refused the election, since
    that alarm is armed.
    """

    result: Result
    state: State
    revision: int = 0
    swapped: bool = False
    key_revision: int = 0
    new_world: bool = False
    nospace: bool = False
    error: EtcdError | None = None


def request(state: State) -> tuple[list[Compare], list[Op], list[Op]]:
    """The Txn of a round: If, Then, Else, exactly as kube-apiserver sends them."""
    return (
        [Compare.version(KEY, state.version)],
        [PutOp(KEY, b"%d" % state.revision)],
        [RangeOp(KEY)],
    )


def decide(state: State, answer: TxnResult) -> Round:
    """What the answer means for a contender in this state: who has won has yet to compact."""
    head, swapped = answer.header.revision, answer.succeeded
    if head < state.revision:
        # Restored from a snapshot: neither the version nor the revision that we know are of this store.
        result = Result.BOOTSTRAP if swapped else Result.LOST
        return Round(result, State(), swapped=swapped, new_world=True)
    if swapped:
        result = Result.WON if state.revision else Result.BOOTSTRAP
        return Round(result, State(state.version + 1, head), swapped=True, key_revision=head)
    found = answer.responses[0] if answer.responses else None
    kv = found.kvs[0] if isinstance(found, RangeResult) and found.kvs else None
    # The key may have been deleted since we saw it: then the clock stands at 0 again.
    return replace(_found(Result.LOST, kv, head), revision=advertised(kv, head) or 0)


def _found(result: Result, kv: KeyValue | None, head: int) -> Round:
    return Round(
        result,
        State(kv.version if kv else 0, head),
        key_revision=kv.mod_revision if kv else head,
    )


def advertised(kv: KeyValue | None, head: int) -> int | None:
    """The revision that the key says is compacted: 0 for no key, None where it says nothing sensible.

    `head` is the revision of the store: beyond it nothing can have been compacted.
    """
    if kv is None:
        return 0
    if not _DECIMAL.fullmatch(kv.value):
        return None
    revision = int(kv.value)
    return revision if 0 <= revision <= head else None


async def run_round(
    store: Store,
    state: State,
    *,
    others: Sequence[Store] = (),
    timeout: float | None = None,
    physical_timeout: float = PHYSICAL_TIMEOUT,
) -> Round:
    """Hold one round, at least one interval after the state was made; raises nothing but cancellation.

    Costs one Txn, and one Compact for the winner; under NOSPACE a Range in between, and a Compact at
    each of the `others`. Timeouts are in seconds. An error leaves the state as it was, unless the Txn
    had been answered.
    """
    try:
        if state.barred:
            await _ask_for_rights(store, timeout)
            state = replace(state, barred=False)
        answer = await store.txn(*request(state), timeout=timeout)
    except SpaceExceeded as refusal:
        held = await _without_election(store, others, state, refusal, timeout, physical_timeout)
        return replace(held, nospace=True)
    except EtcdError as error:
        return Round(Result.ERROR, state, error=error)
    held = decide(state, answer)
    if held.result is not Result.WON:
        return held
    compaction = store.compact(state.revision, timeout=timeout)
    return await _carry_out(compaction, state.revision, held)


async def ask_until_sent(
    voters: Sequence[Store],
    state: State,
    *,
    timeout: float | None = None,
    physical_timeout: float = PHYSICAL_TIMEOUT,
    failed: Callable[[EtcdError], None] = lambda _: None,
) -> Round:
    """Hold a round with the first of these (at least one) to which it can be sent at all.

    `failed` is told of each to whom it could not. Otherwise as `run_round`.
    """
    for voter in voters:
        held = await run_round(
            voter,
            state,
            others=[other for other in voters if other is not voter],
            timeout=timeout,
            physical_timeout=physical_timeout,
        )
        if not isinstance(held.error, MemberUnreachable) or held.swapped:
            break
        failed(held.error)
    return held


async def compact_physically(
    store: Store,
    others: Sequence[Store],
    revision: int,
    timeout: float,
    *,
    others_timeout: float = OTHERS_TIMEOUT,
) -> None:
    """Compact to this revision, so that every member says at once what space it has.

    A member that writes nothing, as under NOSPACE, goes on telling the size in use of before, unless it
    was itself asked to wait for the physical compaction. It carries out each revision once only, so the
    others are asked for the revisions just below. Raises as the one Compact that counts, at `store`.
    """
    for behind, other in zip(range(len(others), 0, -1), others, strict=True):
        with contextlib.suppress(EtcdError):
            await other.compact(
                revision - behind, physical=True, timeout=min(timeout, others_timeout)
            )
    await store.compact(revision, physical=True, timeout=timeout)


async def _without_election(
    store: Store,
    others: Sequence[Store],
    state: State,
    refusal: SpaceExceeded,
    timeout: float | None,
    physical_timeout: float,
) -> Round:
    """Under NOSPACE even the losing branch is refused, so everybody's compaction is dead.

    The revision of one interval ago is what the winner would have compacted to; compacting twice to it
    is harmless. Physically, since the space is wanted now. The key follows with the next election.
    """
    try:
        found = await store.range(KEY, timeout=timeout)
    except EtcdError as error:
        return Round(Result.ERROR, state, error=error)
    head = found.header.revision
    if head < state.revision:
        return Round(Result.ERROR, State(), new_world=True, error=refusal)
    held = _found(Result.RAW, found.kvs[0] if found.kvs else None, head)
    if state.revision == 0:
        return replace(held, result=Result.ERROR, error=refusal)
    compaction = compact_physically(store, others, state.revision, physical_timeout)
    return await _carry_out(compaction, state.revision, held)


async def _carry_out(compaction: Awaitable[object], revision: int, held: Round) -> Round:
    """What becomes of the round by its compaction."""
    try:
        await compaction
    except RevisionCompacted:
        return replace(held, result=Result.ALREADY_COMPACTED, revision=revision)
    except PermissionDenied as error:
        return replace(
            held, result=Result.ERROR, state=replace(held.state, barred=True), error=error
        )
    except EtcdError as error:
        # Not tried again: the next round compacts to a newer revision.
        return replace(held, result=Result.ERROR, error=error)
    return replace(held, revision=revision)


async def _ask_for_rights(store: Store, timeout: float | None) -> None:
    """Raise PermissionDenied unless this user may compact by now.

    Revision 1 is the empty store: compacting to it takes nothing from anybody.
    """
    try:
        await store.compact(1, timeout=timeout)
    except RevisionCompacted:
        return
