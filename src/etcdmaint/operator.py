"""The operator, put together: probes first, then the election, then kopf, and a way down.

Only composition: which part gets which other part, what starts before what, and what ends the process.
Whoever wants to know what the operator does looks into handlers/, kube/ and the domain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import kopf

import etcdmaint
from etcdmaint.clock import SystemClock
from etcdmaint.compaction.registry import Registry
from etcdmaint.defrag.queue import RunQueue
from etcdmaint.defrag.run import Fence
from etcdmaint.defrag.timing import Timing
from etcdmaint.errors import LeadershipLost
from etcdmaint.etcd.endpoint import AddressMap
from etcdmaint.handlers import defrag as defrag_handlers
from etcdmaint.handlers import following as following_handlers
from etcdmaint.handlers.framework import make_settings, register_login
from etcdmaint.handlers.snapshot import OperatorSnapshot
from etcdmaint.kube.access import ApiAccess, load_access
from etcdmaint.kube.client import KubeApi
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.compactions import CompactionKeeper
from etcdmaint.kube.connections import ConnectionMonitor, Pace
from etcdmaint.kube.events import EventSink
from etcdmaint.kube.inventory import RunInventory
from etcdmaint.kube.leases import Elector, LeaseTiming, own_identity
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import COMPRESSIONS, ETCD_CLUSTERS, ETCD_CONNECTIONS
from etcdmaint.kube.resync import Resync
from etcdmaint.kube.runs import Runner
from etcdmaint.kube.schema import DefragSchema
from etcdmaint.kube.storage_compression import CompressionMonitor
from etcdmaint.kube.storage_compression_subject import CompressionPace, CompressionParts
from etcdmaint.kube.surroundings import RunParts
from etcdmaint.observability.http import application, serving
from etcdmaint.observability.liveness import Checks, Freshness, beat
from etcdmaint.observability.logging import LogFormat, configure
from etcdmaint.observability.metrics import (
    Compactions,
    Defragmentations,
    EtcdRpcs,
    KubernetesRequests,
    ProcessState,
    StorageCompression,
    new_registry,
)
from etcdmaint.observability.state import StateCollector

log = logging.getLogger(__name__)

_LOOP_LIMIT = 30.0
_ORPHAN_LIMIT = 120.0
_KOPF_EXIT = 15.0
_FLUSH = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Every flag of `etcdmaint operator`; durations in seconds.

    The last four have no flag: tests shrink what runs, measuring and listing wait for.
    """

    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    listen_address: str = ":8080"
    log_format: str = "text"
    lease_namespace: str = "default"
    lease_name: str = "etcdmaint"
    lease_duration: float = 137.0
    renew_deadline: float = 107.0
    retry_period: float = 26.0
    max_concurrent_runs: int = 8
    active_deadline: float = 3600.0
    drain: float = 45.0
    etcd_address_map: Path | None = None
    take_over: bool = False
    accept_older_crd: bool = False
    timing: Timing | None = None
    pace: Pace = field(default_factory=Pace)
    compression_pace: CompressionPace = field(default_factory=CompressionPace)
    resync_interval: float = 600.0


async def run_operator(options: OperatorOptions) -> int:
    """Work until SIGTERM or SIGINT; the exit code: 0 for a clean stop, 1 when leadership was lost.

    Raises InvalidInput for an option that cannot be used.
    """
    configure(LogFormat(options.log_format))
    raise_file_limit()
    lease_timing = LeaseTiming(
        duration=options.lease_duration,
        renew_deadline=options.renew_deadline,
        retry_period=options.retry_period,
    )
    address_map = AddressMap()
    if options.etcd_address_map is not None:
        address_map = AddressMap.load(options.etcd_address_map, field="--etcd-address-map")
    access = await load_access(str(options.kubeconfig or ""))
    async with AsyncExitStack() as stack:
        operator = Operator(options, access, lease_timing, address_map)
        stack.push_async_callback(operator.close)
        app = application(operator.registry, operator.live, operator.ready)
        port = await stack.enter_async_context(serving(app, options.listen_address))
        log.info("serves probes and metrics", extra={"port": port, "version": _version()})
        return await operator.run()


def raise_file_limit() -> None:
    """Allow this process as many open files as it may have.

    Three members are three connections, or six with compaction, and containers often start with a soft
    limit of 1024: a few hundred clusters would use it up. Programs in Go do the same.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems call unlimited what they do not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Operator:
    """One replica, from its first attempt to lead to its end."""

    def __init__(
        self,
        options: OperatorOptions,
        access: ApiAccess,
        lease_timing: LeaseTiming,
        address_map: AddressMap,
    ) -> None:
        self._options = options
        self._access = access
        self._clock = SystemClock()
        self._identity = own_identity()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stop_kopf = asyncio.Event()
        self.registry = new_registry()
        self._state = ProcessState(
            self.registry,
            version=_version(),
            revision=os.environ.get("ETCDMAINT_REVISION", ""),
            kopf_version=metadata.version("kopf"),
            lease_name=options.lease_name,
            max_concurrent_runs=options.max_concurrent_runs,
        )
        requests = KubernetesRequests(self.registry)
        self._api = KubeApi(access, observer=requests, clock=self._clock)
        # Connections of its own: a hundred requests that hang must not cost us the Lease.
        self._lease_api = KubeApi(access, observer=requests, clock=self._clock)
        self._elector = Elector(
            self._lease_api,
            namespace=options.lease_namespace,
            name=options.lease_name,
            identity=self._identity,
            timing=lease_timing,
            clock=self._clock,
            changed=self._state.leading,
        )
        self._build_parts(self._elector, address_map)
        self._build_probes()

    def _build_parts(self, fence: Fence, address_map: AddressMap) -> None:
        options, api, clock = self._options, self._api, self._clock
        self._events = EventSink(api, clock, instance=self._identity)
        self._inventory = RunInventory()
        queue = RunQueue(options.max_concurrent_runs)
        shared: dict[str, Any] = {
            "api": api,
            "clusters": Clusters(api, address_map, options.namespaces),
            "events": self._events,
            "fence": fence,
            "clock": clock,
            "observer": EtcdRpcs(self.registry),
        }
        self._connections = ConnectionMonitor(Parts(**shared), options.pace)
        self._runner = Runner(
            RunParts(
                **shared,
                schema=DefragSchema(api, clock),
                instrumentation=Defragmentations(self.registry),
                queue=queue,
                timing=options.timing or Timing(deadline_floor=options.active_deadline),
                take_over=options.take_over,
                accept_older_crd=options.accept_older_crd,
            )
        )
        counts = Compactions(self.registry)
        self._compactors = Registry(clock, observer=counts)
        self._compactions = CompactionKeeper(Parts(**shared), self._compactors, counts)
        self._compressions = CompressionMonitor(
            CompressionParts(
                **shared,
                instrumentation=StorageCompression(self.registry),
                pace=options.compression_pace,
            )
        )
        self._followers = {
            ETCD_CONNECTIONS: (self._connections, self._compactions),
            ETCD_CLUSTERS: (self._compactions,),
            COMPRESSIONS: (self._compressions,),
        }
        self._resync = Resync(
            api=api,
            inventory=self._inventory,
            followers=self._followers,
            fence=fence,
            clock=clock,
            active=lambda: self._runner.active,
            namespaces=options.namespaces,
            interval=options.resync_interval,
        )
        StateCollector(
            OperatorSnapshot(
                connections=self._connections,
                inventory=self._inventory,
                active=lambda: queue.running,
                orphans=lambda: self._resync.orphans,
                compressions=self._compressions,
            ),
            self.registry,
        )

    def _build_probes(self) -> None:
        self.live, self.ready = Checks(), Checks()
        self._heartbeat = Freshness("the event loop's beat", self._clock, limit=_LOOP_LIMIT)
        self.live.add("loop", self._heartbeat)
        self.live.add("runs", self._orphaned)
        self.ready.add("kubernetes", self._unreachable)

    def _orphaned(self) -> str | None:
        longest = max(self._resync.orphans.values(), default=0.0)
        if longest < _ORPHAN_LIMIT:
            return None
        return f"nothing works on an unfinished EtcdDefrag since {longest:.0f} s"

    def _unreachable(self) -> str | None:
        # Leader and standby ask for the Lease all the time, and for nothing else whatever happens.
        if self._lease_api.reachable:
            return None
        return "the Kubernetes API does not answer"

    async def close(self) -> None:
        """Close the connections to the Kubernetes API."""
        await self._api.close()
        await self._lease_api.close()

    async def run(self) -> int:
        """Stand by, lead, and end."""
        self._handle_signals()
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(
                beat(self._heartbeat, self._clock, self._state.loop_lag), name="heartbeat"
            )
            try:
                log.info("stands by", extra={"identity": self._identity})
                if await self._unless_stopped(self._elector.acquire()):
                    return await self._lead()
                await self._elector.release()  # it may have become ours at the same moment
                return 0
            finally:
                beating.cancel()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work was done before somebody asked to stop."""
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(work), group.create_task(self._stop.wait())}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        return not self._stop.is_set()

    async def _lead(self) -> int:
        # All of these begin before kopf does: it cancels at its end what began after it.
        tasks = [
            asyncio.create_task(self._events.run(), name="events"),
            asyncio.create_task(self._connections.run(), name="connections"),
            asyncio.create_task(self._compactors.run(), name="compactors"),
            asyncio.create_task(self._compactions.run(), name="compactions"),
            asyncio.create_task(self._compressions.run(), name="compressions"),
            asyncio.create_task(self._resync.run(), name="resync"),
        ]
        holding = asyncio.create_task(self._elector.hold(), name="lease")
        working = asyncio.create_task(self._run_kopf(), name="kopf")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        everything: list[asyncio.Task[Any]] = [*tasks, working, stopping, holding]
        self.live.add("kopf", lambda: "has ended" if working.done() else None)
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await self._drain(holding)
            clean = self._stop.is_set() and not holding.done()
            _explain([*tasks, working, holding])
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            await self._end_kopf(working)
            if clean:
                await self._events.flush(_FLUSH)
                holding.cancel()
                await asyncio.gather(holding, return_exceptions=True)
                await self._elector.release()
            return 0 if clean else 1
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _drain(self, holding: asyncio.Task[None]) -> None:
        """Let the members in flight finish, unless somebody is in a hurry or the Lease is lost."""
        log.info("stops: waits for members in flight", extra={"drain_seconds": self._options.drain})
        draining = asyncio.create_task(self._runner.drain(self._options.drain))
        hurrying = asyncio.create_task(self._hurry.wait())
        watched = [draining, hurrying, holding]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not (draining.done() and draining.result()):
            log.warning("leaves a run behind: whoever leads next waits its member out")
        for task in (draining, hurrying):
            task.cancel()

    async def _run_kopf(self) -> None:
        options = self._options
        registry = kopf.OperatorRegistry()
        register_login(registry, self._access)
        defrag_handlers.register(registry, self._runner, self._inventory)
        following_handlers.register(registry, self._followers, self._compressions)
        existing = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=make_settings(instance=self._identity, namespaces=options.namespaces),
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            standalone=True,
            stop_flag=self._stop_kopf,
        )
        # kopf has just put its own handlers in place, which would not wait for anything.
        self._handle_signals()
        await kopf.run_tasks(tasks, ignored=existing)

    async def _end_kopf(self, working: asyncio.Task[None]) -> None:
        self._stop_kopf.set()
        await asyncio.wait([working], timeout=_KOPF_EXIT)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()


def _explain(tasks: list[asyncio.Task[None]]) -> None:
    """Log what ended on its own: none of these ever should."""
    for task in tasks:
        if not task.done() or task.cancelled():
            continue
        error = task.exception()
        if isinstance(error, LeadershipLost):
            log.error(
                "leadership lost: ends at once, and touches nothing", extra={"why": str(error)}
            )
        elif error is not None:
            log.error(
                "a part of the operator has failed", exc_info=error, extra={"part": task.get_name()}
            )
        else:
            log.error("a part of the operator has ended", extra={"part": task.get_name()})


def _version() -> str:
    return str(etcdmaint.__version__)
