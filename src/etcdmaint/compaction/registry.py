"""One compactor for each etcd cluster, however many ask for it and by whatever name they reach it.

Clusters are told apart by etcd's own ID. Whoever wants one compacted holds on to it with an interval:
the shortest holds, and when its holder lets go, the next shortest. All read through the one compactor,
so a change of interval, connection or holder never freezes anybody's view. This module must not know
who the holders are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from etcdmaint.clock import Clock
from etcdmaint.compaction.compactor import Compactor, Pace
from etcdmaint.compaction.knowledge import Observer
from etcdmaint.compaction.line import Dial, Line
from etcdmaint.errors import EtcdmaintError, MemberUnreachable, WrongMember
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import format_id

log = logging.getLogger(__name__)

_AFTER_A_FAULT = 15.0


@dataclass(slots=True, eq=False)
class _Shared:
    """A compactor and those who hold it; whose way to connect is to be tried first is the last."""

    cluster_id: int
    line: Line
    compactor: Compactor
    holds: list[Hold] = field(default_factory=list)
    used: Hold | None = None
    """In whose way it is connected."""
    task: asyncio.Task[None] | None = None

    def settle(self) -> None:
        """The shortest interval asked for wins."""
        self.compactor.set_interval(min(hold.interval for hold in self.holds))


class Hold:
    """One holder's share in a compactor, made by `Registry.hold`."""

    def __init__(self, registry: Registry, shared: _Shared, dial: Dial, interval: float) -> None:
        """Only remembers."""
        self._registry = registry
        self._shared = shared
        self._dial = dial
        self.interval = interval
        self.astray = False
        """Its way leads to another cluster by now: time to let go and hold again."""

    @property
    def cluster_id(self) -> int:
        """Which cluster it is, by etcd's own ID."""
        return self._shared.cluster_id

    @property
    def compactor(self) -> Compactor:
        """The compactor, shared with the other holders."""
        return self._shared.compactor

    @property
    def used(self) -> Hold | None:
        """In whose way, of all holders, the cluster is connected."""
        return self._shared.used

    @property
    def compact_revision(self) -> int:
        """The newest revision that is compacted as far as known; it lives on after `release`."""
        return self._shared.compactor.compact_revision

    async def dial(self) -> ClusterClient:
        """Connect in this holder's way; notes when that leads to another cluster."""
        cluster = await self._dial()
        if cluster.cluster_id != self.cluster_id:
            self.astray = True
            found = format_id(cluster.cluster_id)
            await cluster.close()
            raise WrongMember(f"cluster {found} answered, not {format_id(self.cluster_id)}")
        return cluster

    def set_interval(self, interval: float) -> None:
        """Ask for another interval (seconds, more than 0)."""
        self.interval = interval
        if self in self._shared.holds:
            self._shared.settle()

    async def release(self) -> None:
        """Let go; the last one to do so ends the compactor. May be called again."""
        await self._registry.release(self, self._shared)


class Registry:
    """All compactors of one process; they work while `run` runs."""

    def __init__(self, clock: Clock, *, observer: Observer, pace: Pace | None = None) -> None:
        self._clock = clock
        self._observer = observer
        self._pace = pace or Pace()
        self._shared: dict[int, _Shared] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """For ever: what goes wrong with one cluster stays with it. Closes all at its end."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for shared in self._shared.values():
                    self._start(shared)
                await asyncio.Event().wait()
        finally:
            self._group = None
            for shared in tuple(self._shared.values()):
                await shared.line.close()

    def compactors(self) -> dict[int, Compactor]:
        """Every compactor by etcd's cluster ID."""
        return {cluster_id: shared.compactor for cluster_id, shared in self._shared.items()}

    async def hold(self, dial: Dial, interval: float) -> Hold:
        """Have the cluster at the other end of `dial` compacted every so many seconds, more than 0.

        Connects once, to learn which cluster it is; if that fails, its error is raised and nothing has
        changed. A cluster that has its compactor already goes on with the newest connection.
        """
        if interval <= 0:
            raise ValueError("an interval of 0 is for the caller: then nothing is held")
        cluster = await dial()
        shared = self._shared.get(cluster.cluster_id)
        if shared is None:
            shared = self._open(cluster, interval)
            self._shared[cluster.cluster_id] = shared
            shared.used = hold = Hold(self, shared, dial, interval)
            shared.holds.append(hold)
            self._start(shared)
            return hold
        hold = Hold(self, shared, dial, interval)
        shared.holds.append(hold)
        shared.settle()
        try:
            await shared.line.take(cluster)
        except BaseException:
            # Cancelled while it waited for its turn: nobody has this hold.
            await self.release(hold, shared)
            await cluster.close()
            raise
        shared.used = hold
        return hold

    async def release(self, hold: Hold, shared: _Shared) -> None:
        """See `Hold.release`."""
        if hold not in shared.holds:
            return
        shared.holds.remove(hold)
        if shared.holds:
            shared.settle()
            return
        del self._shared[shared.cluster_id]
        if shared.task is not None:
            shared.task.cancel()
            await asyncio.wait((shared.task,))
        await shared.line.close()

    def _open(self, cluster: ClusterClient, interval: float) -> _Shared:
        async def redial() -> ClusterClient:
            return await _dial_again(shared)

        line = Line(cluster, redial)
        compactor = Compactor(
            line,
            interval,
            self._clock,
            cluster=format_id(cluster.cluster_id),
            observer=self._observer,
            pace=self._pace,
        )
        shared = _Shared(cluster.cluster_id, line, compactor)
        return shared

    def _start(self, shared: _Shared) -> None:
        if self._group is not None:
            name = f"compact {format_id(shared.cluster_id)}"
            shared.task = self._group.create_task(self._keep_running(shared), name=name)

    async def _keep_running(self, shared: _Shared) -> None:
        while True:
            try:
                await shared.compactor.run()
            except Exception:
                # The outermost shell of one cluster: the others go on, and so does this one.
                log.exception(
                    "a fault while compacting", extra={"cluster": format_id(shared.cluster_id)}
                )
                await self._clock.sleep(_AFTER_A_FAULT)


async def _dial_again(shared: _Shared) -> ClusterClient:
    """A new connection in any holder's way, the newest first, but the one that was in use last.

    It may have failed for what only its own user may not do.
    """
    if shared.used in shared.holds:
        shared.holds.remove(shared.used)
        shared.holds.insert(0, shared.used)
    failure: EtcdmaintError | None = None
    for hold in tuple(reversed(shared.holds)):
        try:
            cluster = await hold.dial()
        except EtcdmaintError as error:
            failure = failure or error
        else:
            shared.used = hold
            return cluster
    raise failure or MemberUnreachable("nobody holds this cluster any more")
