"""NOSPACE by hand, for when the Kubernetes API itself can write nothing and no operator can help.

Two sweeps with a compaction in between: what can be given back at once, then the history, then whatever
that freed. Each step is seen to be done before the next, and all of it may be begun again at any point.
How to compact is handed in; who is asked, and how it looks, is the command line's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Protocol

from etcdmaint.clock import Clock
from etcdmaint.defrag.health import observe
from etcdmaint.defrag.link import Connect, Link
from etcdmaint.defrag.lock import age, blocked_by, read_slot
from etcdmaint.defrag.prefixes import Prefix, largest_prefixes
from etcdmaint.defrag.process import shown
from etcdmaint.defrag.rule import Rule
from etcdmaint.defrag.run import Ending, Fence, MemberRow, RunRequest, RunResult, Surroundings
from etcdmaint.defrag.sweep import Sweep
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import AlarmKind
from etcdmaint.quantities import format_duration


class History(Protocol):
    """How history is cut; `compaction.by_hand` knows."""

    async def compacted(self, member: MemberClient) -> int:
        """The revision to which it is cut by now."""

    async def compact(self, members: Sequence[MemberClient], revision: int) -> None:
        """Cut it there on every member, the first of them to answer for it; seen to be done."""

    async def is_told(self, member: MemberClient, revision: int) -> bool:
        """Whether the other compactors know that it is cut there; also where there are none."""

    async def publish(self, member: MemberClient, revision: int) -> bool:
        """Tell them, once writes work; whether they had to be told."""


class Witness(Protocol):
    """Who is told what happens between the sweeps, and sleeps in between."""

    def say(self, text: str) -> None:
        """One sentence for each step."""

    async def count_down(self, seconds: float, what: str) -> None:
        """Let so many seconds pass, fewer once somebody asks to stop."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was seen, before anything is done.

    `refusal`: why nothing can be done, by a gate's words, with its ending. `full`: the members whose
    NOSPACE alarm is armed. `holder`: who has the cluster's slot, which is to be broken. `untold`: the
    last step of an earlier rescue is missing.
    """

    ending: Ending
    refusal: str = ""
    rows: tuple[MemberRow, ...] = ()
    full: tuple[str, ...] = ()
    holder: str = ""
    head: int = 0
    compacted: int = 0
    untold: bool = False


@dataclass(frozen=True, slots=True)
class Rescued:
    """How it ended; `sweeps` in their order, `compacted` 0 where no history was cut."""

    ending: Ending
    message: str
    sweeps: tuple[RunResult, ...] = ()
    compacted: int = 0
    prefixes: tuple[Prefix, ...] = ()


SweepMaker = Callable[[RunRequest, bool], Sweep]
"""Makes a sweep that has never run; with True it breaks the lock of whoever holds the cluster."""


class _Over(Exception):
    """Ends the rescue before its end; caught in `carry_out` only."""

    def __init__(self, ending: Ending, message: str) -> None:
        super().__init__(message)
        self.ending = ending


@dataclass(slots=True)
class Rescue:
    """One rescue: `look`, ask whoever must be asked, `carry_out`."""

    request: RunRequest
    """With the rule of the first sweep."""
    make_sweep: SweepMaker
    _: KW_ONLY
    surroundings: Surroundings
    fence: Fence
    history: History
    witness: Witness
    clock: Clock
    timing: Timing
    break_lock: bool = False
    connect: Connect = ClusterClient.connect
    _sweeps: list[RunResult] = field(default_factory=list, init=False)
    _compacted: int = field(default=0, init=False)

    async def look(self) -> Findings:
        """The gate, the alarms and what the rule says of each member; touches nothing.

        Raises EtcdError when nobody can be asked.
        """
        asked = replace(self.request, dry_run=True, patience=0.0)
        rehearsal = await self.make_sweep(asked, False).run()
        if rehearsal.ending is not Ending.DONE:
            return Findings(rehearsal.ending, rehearsal.state.message)
        async with Link(self.timing.dial_timeout, None, self.connect) as link:
            cluster = await link.follow(await self.surroundings.look())
            observation = await observe(cluster, timeout=self.timing.rpc_timeout)
            client = link.client(prefer=observation.leader)
            full = sorted(
                observation.name(alarm.member_id) if alarm.member_id else "the cluster"
                for alarm in observation.alarms
                if alarm.kind is AlarmKind.NOSPACE
            )
            holder = await self._holder(client) if full else ""
            if holder and not self.break_lock:
                return Findings(Ending.HELD, f"the cluster is held by {holder}")
            compacted = await self.history.compacted(client)
            return Findings(
                Ending.DONE,
                rows=rehearsal.state.rows,
                full=tuple(full),
                holder=holder,
                head=(await client.range(b"\0", timeout=self.timing.rpc_timeout)).header.revision,
                compacted=compacted,
                untold=not await self.history.is_told(client, compacted),
            )

    async def carry_out(self, keep: float) -> Rescued:
        """Heal it. `keep` is how many seconds of history are spared if history has to go.

        Raises EtcdError where a step failed: what was done before stands, and it can be run again.
        """
        async with Link(self.timing.dial_timeout, None, self.connect) as link:
            try:
                await link.follow(await self.surroundings.look())
                return await self._heal(link, keep)
            except _Over as stopped:
                return self._ended(stopped.ending, str(stopped))

    async def _heal(self, link: Link, keep: float) -> Rescued:
        if await self._armed(link):
            await self._sweep("what can be given back at once", self.request.rule)
        if await self._armed(link) and await self._cut_history(link, keep):
            await self._sweep("every member, for what the history took", Rule(all=True))
        if still := await self._armed(link):
            notes = [note for result in self._sweeps[-1:] for note in result.state.notes]
            told = "; ".join(notes) or f"NOSPACE is still armed for {still}"
            return self._ended(Ending.ALARM_LEFT, told)
        client = link.client()
        compacted = await self.history.compacted(client)
        if compacted and await self.history.publish(client, compacted):
            self.witness.say(f"compact_rev_key says {compacted} now, as etcd does")
        rescued = self._ended(Ending.DONE, "NOSPACE is disarmed, etcd takes writes again")
        self.witness.say("reading every key, to tell what fills the database")
        try:
            prefixes = await largest_prefixes(
                client,
                timeout=self.timing.answer_limit,
                stopping=lambda: self.surroundings.stopping,
            )
        except EtcdError as error:
            # It is healed all the same.
            self.witness.say(f"what fills the database could not be read: {error}")
            return rescued
        return replace(rescued, prefixes=tuple(prefixes))

    async def _cut_history(self, link: Link, keep: float) -> bool:
        """Note the head, wait, compact to it on every member; False where it has become needless."""
        client = link.client()
        head = (await client.range(b"\0", timeout=self.timing.rpc_timeout)).header.revision
        if await self.history.compacted(client) >= head:
            self.witness.say(f"history is cut at revision {head} already")
            self._compacted = head
            return True
        if keep:
            self.witness.say(
                f"that was not enough: history up to revision {head} will be dropped in "
                f"{format_duration(keep)}"
            )
            await self.witness.count_down(keep, f"history up to revision {head} is dropped")
            if not await self._armed(link):
                self.witness.say("somebody has disarmed NOSPACE meanwhile: no history is dropped")
                return False
        if self.surroundings.stopping:
            raise _Over(Ending.STOPPED, "stopped before any history was dropped")
        self.witness.say(f"compacting to revision {head}, on every member")
        cluster = link.cluster
        voters = [cluster.client(m.id) for m in cluster.members if not m.is_learner]
        await self.history.compact(voters, head)
        self._compacted = head
        return True

    async def _sweep(self, what: str, rule: Rule) -> None:
        self.witness.say(f"defragmenting {what}")
        number = len(self._sweeps) + 1
        asked = replace(self.request, rule=rule, uid=f"{self.request.uid}-{number}")
        # What is broken is the lock that was shown, not that of whoever comes later.
        break_lock, self.break_lock = self.break_lock, False
        result = await self.make_sweep(asked, break_lock).run()
        self._sweeps.append(result)
        if result.ending not in (Ending.DONE, Ending.ALARM_LEFT):
            raise _Over(result.ending, result.state.message or result.ending.value)

    async def _armed(self, link: Link) -> str:
        """For whom NOSPACE is armed, by etcd's own list; "" for nobody."""
        await link.cluster.refresh()
        alarms = await link.client().alarms(timeout=self.timing.rpc_timeout)
        names = {member.id: str(member) for member in link.cluster.members}
        return ", ".join(
            names.get(alarm.member_id, "the cluster")
            for alarm in alarms
            if alarm.kind is AlarmKind.NOSPACE
        )

    async def _holder(self, client: MemberClient) -> str:
        """Who else has the cluster's slot, and since when (D61, D64); nothing is taken here."""
        slot = await read_slot(client, timeout=self.timing.rpc_timeout)
        held = blocked_by(slot, self.fence.holder)
        return f"{shown(held.holder)}{age(held.since, self.clock.now())}" if held else ""

    def _ended(self, ending: Ending, message: str) -> Rescued:
        return Rescued(ending, message, tuple(self._sweeps), self._compacted)
