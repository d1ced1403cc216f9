"""A pretended etcd, for the one thing that real etcd cannot be made to do: be left at every single await.

It is a fake, and knows only what the sweep asks of a cluster: a member blocks while it defragments, a
leader that blocks answers no keepalive, a lease expires, NOSPACE takes no put. What real etcd does in a
sweep is proven in tests/etcd. Time is that of a loop which never waits.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeVar

from etcdmaint.defrag.lock import SLOT_KEY, SlotValue
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import (
    MemberTurn,
    Outcome,
    RunGone,
    RunRequest,
    RunState,
    Severity,
    Target,
)
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.errors import (
    ConnectionLost,
    LeadershipLost,
    LeaseNotFound,
    MemberUnreachable,
    RPCTimeout,
    SpaceExceeded,
)
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.metrics import MemberMetrics
from etcdmaint.etcd.types import (
    Alarm,
    AlarmKind,
    Compare,
    Header,
    KeyValue,
    Member,
    MemberStatus,
    Op,
    PutOp,
    RangeResult,
    TxnResult,
)

MIB = 1 << 20
QUOTA = 2048 * MIB
CLUSTER_ID = 0xC1
LEASE_FREE_AFTER = 140.0
"""Seconds after which another replica leads, when the leader has died or stands still."""

T = TypeVar("T")


class _Instant(selectors.SelectSelector):
    """Instead of waiting it lets the time pass."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits for nothing")
            self.now += timeout
        return ready


class TimelessLoop(asyncio.SelectorEventLoop):
    """Sleeping takes no time."""

    def __init__(self) -> None:
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now

    def jump(self, seconds: float) -> None:
        """So long does the program stand still."""
        self._instant.now += seconds


def now() -> float:
    return asyncio.get_running_loop().time()


def timeless(work: Coroutine[Any, Any, T]) -> T:
    """Do the work in a loop of its own."""
    with asyncio.Runner(loop_factory=TimelessLoop) as runner:
        return runner.run(work)


class Fault(Enum):
    """What may happen at an await."""

    DIES_BEFORE = auto()
    DIES_AFTER = auto()
    STANDS_STILL_A_WHILE = auto()
    STANDS_STILL_FOR_LONG = auto()
    REQUEST_LOST = auto()
    ANSWER_LOST = auto()
    LEADER_CHANGES = auto()
    MEMBER_RESTARTS = auto()
    NOSPACE_COMES = auto()
    NOSPACE_GOES = auto()
    ASKED_TO_STOP = auto()


class Died(asyncio.CancelledError):
    """The process is not there any more. Whoever would tidy up gets it again, and again."""


@dataclass(eq=False)
class PretendedMember:
    id: int
    takes: float
    db_size: int = 600 * MIB
    in_use: int = 100 * MIB
    count: int = 0
    started: float = 0.0
    busy: asyncio.Event | None = None
    """Set when the defragmentation under way is over."""
    asked: int = 0
    broken_off: int = 0
    down: bool = False
    lags_until: float = 0.0
    version: str = "3.7.3"
    by_slot: bool = False
    sender: Process | None = None


@dataclass(eq=False)
class World:
    """One etcd, the record of one run, and the faults to come."""

    takes: Sequence[float]
    faults: dict[int, Fault] = field(default_factory=dict)
    """What happens at which await, counted from the beginning."""
    strikes: dict[str, Fault] = field(default_factory=dict)
    """What happens at the first await of that name."""
    tells: bool = True
    """Whether /metrics can be read."""
    nospace: bool = False
    nospace_changed: float = -60.0
    members: dict[int, PretendedMember] = field(default_factory=dict)
    leader: int = 1
    term: int = 2
    revision: int = 10
    keys: dict[bytes, KeyValue] = field(default_factory=dict)
    leases: dict[int, tuple[float, float]] = field(default_factory=dict)
    longest_ttl: int = 0
    state: RunState = field(default_factory=RunState)
    awaits: int = 0
    stopping: bool = False
    trail: list[str] = field(default_factory=list)
    working: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = {i: PretendedMember(i, takes) for i, takes in enumerate(self.takes, start=1)}

    def fault(self, process: Process, what: str) -> Fault | None:
        """What happens at this await; what comes from outside has then happened."""
        fault = self.strikes.pop(what, None) or self.faults.get(self.awaits)
        self.awaits += 1
        if fault is None:
            return None
        self.trail.append(f"{now():.1f}: {process.epoch} {what}: {fault.name}")
        match fault:
            case Fault.LEADER_CHANGES:
                self.leader, self.term = self.leader % len(self.members) + 1, self.term + 1
            case Fault.MEMBER_RESTARTS:
                self.restart(self.members[self.awaits % len(self.members) + 1])
            case Fault.NOSPACE_COMES | Fault.NOSPACE_GOES:
                self.set_nospace(fault is Fault.NOSPACE_COMES)
            case Fault.ASKED_TO_STOP:
                self.stopping = True
        return fault

    def set_nospace(self, armed: bool) -> None:
        self.nospace = armed
        self.nospace_changed = now()

    @property
    def was_full(self) -> bool:
        """Whether etcd took no write, now or the moment before."""
        return self.nospace or now() - self.nospace_changed < 1.0

    def hold_slot(self, holder: str, *, lease: int = 99, seconds: float = 1e9) -> None:
        """Somebody else takes the slot."""
        self.leases[lease] = (seconds, now() + seconds)
        self.revision += 1
        value = SlotValue(holder=holder, epoch="theirs").encode()
        self.keys[SLOT_KEY] = KeyValue(SLOT_KEY, value, 1, self.revision, self.revision, lease)

    def restart(self, member: PretendedMember) -> None:
        member.count, member.started = 0, now()
        if member.busy is not None:
            member.broken_off += 1
            member.busy.set()
            member.busy = None

    def slot(self) -> SlotValue | None:
        """Who has the slot at this instant."""
        found = self.keys.get(SLOT_KEY)
        if found is not None and self.leases.get(found.lease, (0.0, 0.0))[1] <= now():
            del self.keys[SLOT_KEY]
            found = None
        return SlotValue.decode(found.value) if found else None

    def begin(self, process: Process, member: PretendedMember) -> asyncio.Event:
        """A Defragment arrives: what must never be is checked here."""
        self.trail.append(f"{now():.1f}: {process.epoch} defragments {member.id}")
        told = "\n".join(self.trail)
        assert process.leads, f"sent without the Lease\n{told}"
        for other in self.members.values():
            assert other.busy is None, f"{other.id} is still at it\n{told}"
            assert not other.down, f"{other.id} is down\n{told}"
            ours = other.sender is not None and other.sender.state is process.state
            assert not ours or other.lags_until <= now(), f"{other.id} lags\n{told}"
        slot = self.slot()
        assert slot is not None or self.was_full, f"sent without the slot\n{told}"
        if slot is not None:
            # Under NOSPACE the slot of our own predecessor cannot be rewritten; the Lease keeps it away.
            assert slot.holder == process.holder, f"sent under somebody else's slot\n{told}"
            assert slot.epoch == process.epoch or self.was_full, f"sent after a successor\n{told}"
            assert slot.member == member.id or self.was_full, f"sent unmarked\n{told}"
        assert not process.state.phase.terminal, f"sent when all was over\n{told}"
        row = next(row for row in process.state.rows if row.member_id == member.id)
        assert row.in_flight, f"sent before the intent was written\n{told}"
        member.asked += 1
        member.sender = process
        member.by_slot = slot is not None and slot.epoch == process.epoch
        over = member.busy = asyncio.Event()
        self.working.append(asyncio.create_task(self._work(member, over)))
        return over

    async def _work(self, member: PretendedMember, over: asyncio.Event) -> None:
        await asyncio.sleep(member.takes)
        if over.is_set():
            return
        sender = member.sender
        assert sender is not None
        # A leader that blocks for longer than the slot's TTL leaves nobody to renew it with.
        if sender.leads and not sender.state.phase.terminal and member.id != self.leader:
            kept = self.slot() is not None or not member.by_slot
            assert kept, "the slot was lost while its holder lived\n" + "\n".join(self.trail)
        member.db_size = member.in_use
        member.count += 1
        # Longer than a turn takes to begin, and no longer: each look at a lagging member is an await.
        member.lags_until = now() + 1.0
        member.busy = None
        over.set()

    def record(self, state: RunState) -> None:
        """The record is written: what must never change is checked here."""
        told = "\n".join(self.trail)
        assert not self.state.phase.terminal, f"written after its end\n{told}"
        for before, after in zip(self.state.rows, state.rows, strict=False):
            if before.outcome is not Outcome.PENDING:
                assert after == before, f"the outcome of {before.name} was changed\n{told}"
        self.state = state
        self.trail.append(f"{now():.1f}: recorded {state.phase} {state.reason}")


@dataclass(eq=False)
class Process:
    """One process of the operator: Surroundings, Journal, Fence, Audience and Clock of its sweep."""

    world: World
    epoch: str
    holder: str = "ns/etcdmaint/uid"
    target: Target = field(default_factory=lambda: Target(seeds=(Endpoint("pretended", 2379),)))
    cluster: Callable[[Process], PretendedCluster] = field(default_factory=lambda: PretendedCluster)
    alive: bool = True
    replaced: bool = False
    vanished: bool = False
    """Its object is not there any more."""
    still_until: float = 0.0
    active: set[str] = field(default_factory=set)
    on_turn: Callable[[MemberTurn], None] | None = None
    on_record: Callable[[RunState], None] | None = None
    events: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has died, or stands still for so long that another replica leads."""

    @property
    def leads(self) -> bool:
        return self.alive and not self.replaced

    @property
    def state(self) -> RunState:
        """The record of its run."""
        return self.world.state

    async def at(self, what: str, effect: Callable[[], T], *, sent: bool = False) -> T:
        """An await: `effect` is what it does to the world. `sent`: it may be lost on the way."""
        await self._awake()
        fault = self.world.fault(self, what)
        if fault is Fault.DIES_BEFORE:
            self._die()
        if fault is Fault.REQUEST_LOST and sent:
            await self.sleep(5.0)
            raise RPCTimeout(f"{what}: the request was lost")
        result = effect()
        if fault is Fault.DIES_AFTER:
            self._die()
        if fault is Fault.STANDS_STILL_A_WHILE:
            self.still_until = now() + 20.0
        if fault is Fault.STANDS_STILL_FOR_LONG:
            self.still_until = now() + 300.0
            self.replaced = True
            self.gone.set()
        await self.sleep(0.001)
        if fault is Fault.ANSWER_LOST and sent:
            raise ConnectionLost(f"{what}: the answer was lost")
        return result

    async def _awake(self) -> None:
        while self.still_until > now():  # noqa: ASYNC110 - the time itself is waited for
            await asyncio.sleep(self.still_until - now())
        if not self.alive:
            raise Died

    def _die(self) -> None:
        self.alive = False
        self.gone.set()
        raise Died

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._awake()

    def monotonic(self) -> float:
        return now()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=now())

    def assert_held(self) -> None:
        if not self.leads:
            raise LeadershipLost("another replica leads")

    async def look(self) -> Target:
        if self.vanished:
            raise RunGone("deleted by force")
        return await self.at("look", lambda: self.target)

    async def is_active(self, run: str, uid: str) -> bool:
        return uid in self.active

    @property
    def stopping(self) -> bool:
        return self.world.stopping

    async def nap(self, seconds: float) -> None:
        await self.sleep(seconds)

    async def record(self, state: RunState) -> None:
        self.assert_held()
        if self.vanished:
            raise RunGone("deleted by force")
        await self.at("record", lambda: self.world.record(state))
        if self.on_record is not None:
            self.on_record(state)

    def event(self, severity: Severity, reason: str, message: str) -> None:
        self.events.append(reason)

    def turn(self, turn: MemberTurn) -> None:
        if self.on_turn is not None:
            self.on_turn(turn)

    def sweep(self, **changes: Any) -> Sweep:
        """A sweep of this process."""
        parts = {name: changes.pop(name) for name in ("queue", "break_lock") if name in changes}
        asked = RunRequest(name="a/run", uid="uid", rule=Rule())
        return Sweep(
            replace(asked, **changes),
            surroundings=self,
            journal=self,
            fence=self,
            audience=self,
            clock=self,
            connect=self.connect,  # type: ignore[arg-type]
            **parts,
        )

    async def connect(self, *_: object, **__: object) -> PretendedCluster:
        return self.cluster(self)


@dataclass(eq=False)
class Rival(Process):
    """Another operator, or a person at a terminal, with a run and a record of its own."""

    own: RunState = field(default_factory=RunState)

    @property
    def state(self) -> RunState:
        return self.own

    async def record(self, state: RunState) -> None:
        self.own = state


class PretendedCluster:
    """Stands for a ClusterClient."""

    cluster_id = CLUSTER_ID

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(Member(i, f"m{i}", (), (f"http://m{i}:2379",)) for i in self._world.members)

    def client(self, member_id: int) -> PretendedClient:
        if member_id not in self._world.members:
            raise MemberUnreachable("no such member")
        return PretendedClient(self._process, self._world.members[member_id])

    def endpoint(self, member_id: int) -> Endpoint:
        return Endpoint(f"m{member_id}", 2379)

    async def statuses(self, timeout: float) -> dict[int, MemberStatus | Exception]:
        found: dict[int, MemberStatus | Exception] = {}
        for member_id in self._world.members:
            try:
                found[member_id] = await self.client(member_id).status(timeout=timeout)
            except (RPCTimeout, ConnectionLost) as error:
                found[member_id] = error
        return found

    async def metrics(self, member_id: int, timeout: float) -> MemberMetrics | None:
        member = self._world.members.get(member_id)
        if member is None:
            return None
        return await self._process.at(
            "metrics",
            lambda: (
                MemberMetrics(
                    defrag_count=member.count,
                    defrag_inflight=int(member.busy is not None),
                    process_start=member.started,
                    server_id=member_id,
                )
                if self._world.tells
                else None
            ),
        )

    async def refresh(self) -> None:
        await self._process.at("refresh", lambda: None)

    async def close(self) -> None:
        pass


class PretendedClient:
    """Stands for a MemberClient."""

    def __init__(self, process: Process, member: PretendedMember) -> None:
        self._process = process
        self._world = process.world
        self._member = member

    async def _free(self, timeout: float, *, leader_too: bool = False) -> None:
        """Return once the member's backend, and perhaps the leader's, does not block."""
        deadline = now() + timeout
        if self._member.down:
            await self._process.sleep(timeout)
            raise RPCTimeout("the member is down")
        while any(
            (blocking := member).busy is not None
            for member in (
                self._member,
                self._world.members[self._world.leader] if leader_too else self._member,
            )
        ):
            busy = blocking.busy
            assert busy is not None
            try:
                async with asyncio.timeout_at(deadline):
                    await busy.wait()
            except TimeoutError:
                await self._process.sleep(0)
                raise RPCTimeout("the member blocks") from None

    async def status(self, *, timeout: float) -> MemberStatus:
        await self._free(timeout)
        world, member = self._world, self._member
        alarm = ("memberID:1 alarm:NOSPACE ",) if world.nospace else ()
        return await self._process.at(
            "status",
            lambda: MemberStatus(
                header=Header(CLUSTER_ID, member.id, world.revision, world.term),
                version=member.version,
                db_size=member.db_size,
                db_size_in_use=member.in_use,
                leader=world.leader,
                raft_index=1000,
                raft_applied_index=500 if member.lags_until > now() else 1000,
                raft_term=world.term,
                errors=alarm,
                db_size_quota=QUOTA,
            ),
            sent=True,
        )

    async def defragment(self, timeout: float, *, last_check: Callable[[], None]) -> None:
        await self._process.at("confirm", lambda: None)
        last_check()
        over = await self._process.at(
            "defragment", lambda: self._world.begin(self._process, self._member), sent=True
        )
        broken_off = self._member.broken_off
        try:
            async with asyncio.timeout(timeout):
                await over.wait()
        except TimeoutError:
            await self._process.sleep(0)
            raise RPCTimeout("no answer") from None
        await self._process.at("defragmented", lambda: None, sent=True)
        if self._member.broken_off > broken_off:
            raise ConnectionLost("the member has restarted")

    async def move_leader(
        self, target: int, *, timeout: float, last_check: Callable[[], None]
    ) -> None:
        def move() -> None:
            self._world.leader, self._world.term = target, self._world.term + 1

        await self._process.at("confirm", lambda: None)
        last_check()
        await self._process.at("move leader", move, sent=True)

    async def alarms(self, *, timeout: float) -> tuple[Alarm, ...]:
        await self._free(timeout)
        armed = (Alarm(1, AlarmKind.NOSPACE),)
        return await self._process.at(
            "alarms", lambda: armed if self._world.nospace else (), sent=True
        )

    async def disarm(self, member_id: int, kind: AlarmKind, *, timeout: float) -> None:
        def disarm() -> None:
            self._world.set_nospace(False)

        await self._process.at("disarm", disarm, sent=True)

    async def range(self, key: bytes, *, serializable: bool = False, timeout: float) -> RangeResult:
        await self._free(timeout)

        def read() -> RangeResult:
            self._world.slot()
            found = self._world.keys.get(key)
            header = Header(CLUSTER_ID, 1, self._world.revision)
            return RangeResult(header, (found,) if found else ())

        return await self._process.at("range", read, sent=True)

    async def txn(
        self, compare: Sequence[Compare], success: Sequence[Op], *, timeout: float
    ) -> TxnResult:
        await self._free(timeout)
        world = self._world
        (condition,) = compare
        (act,) = success

        def carry_out() -> TxnResult:
            if world.nospace and isinstance(act, PutOp):
                raise SpaceExceeded("NOSPACE")
            world.slot()
            found = world.keys.get(condition.key)
            if (found.mod_revision if found else 0) != condition.operand:
                return TxnResult(Header(CLUSTER_ID, 1), succeeded=False)
            world.revision += 1
            if isinstance(act, PutOp):
                if act.lease not in world.leases:
                    raise LeaseNotFound("no such lease")
                world.keys[act.key] = KeyValue(
                    act.key, act.value, 1, world.revision, world.revision, act.lease
                )
            else:
                world.keys.pop(condition.key, None)
            return TxnResult(Header(CLUSTER_ID, 1), succeeded=True)

        return await self._process.at("txn", carry_out, sent=True)

    async def lease_grant(self, ttl: int, *, timeout: float) -> tuple[int, int]:
        await self._free(timeout)

        def grant() -> tuple[int, int]:
            if self._world.nospace:
                raise SpaceExceeded("NOSPACE")
            lease = len(self._world.leases) + 1
            self._world.leases[lease] = (ttl, now() + ttl)
            self._world.longest_ttl = max(ttl, self._world.longest_ttl)
            return lease, ttl

        return await self._process.at("grant", grant, sent=True)

    async def lease_revoke(self, lease: int, *, timeout: float) -> None:
        await self._free(timeout)

        def revoke() -> None:
            self._world.leases[lease] = (0.0, 0.0)

        await self._process.at("revoke", revoke, sent=True)

    async def lease_keep_alive(self, lease: int, *, timeout: float) -> int:
        await self._free(timeout, leader_too=True)

        def renew() -> int:
            ttl, until = self._world.leases.get(lease, (0.0, 0.0))
            if until <= now():
                raise LeaseNotFound("expired")
            self._world.leases[lease] = (ttl, now() + ttl)
            return int(ttl)

        return await self._process.at("keepalive", renew, sent=True)
