"""Measures every EtcdConnection for as long as it exists, and keeps its status true.

One Status RPC a member each time; the connection is kept in between. Secrets are read when it is made,
again after a failure, and every ten minutes. Which statuses are worth a write is `measurement`'s.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from etcdmaint.api.connection import parse_connection
from etcdmaint.api.metadata import generation_of
from etcdmaint.clock import Clock, came_within
from etcdmaint.compaction.probe import DEFAULT_KEY, Ask, Probe, key_below, voters
from etcdmaint.defrag.run import Target
from etcdmaint.errors import (
    ClusterNotHealthy,
    ClusterNotReady,
    CredentialsUnavailable,
    EtcdError,
    EtcdmaintError,
    InvalidInput,
    RPCTimeout,
)
from etcdmaint.etcd.cluster import ClusterClient
from etcdmaint.etcd.types import MemberStatus
from etcdmaint.kube.client import Json, KubeError
from etcdmaint.kube.following import Followed, Following
from etcdmaint.kube.measurement import Measurement, failed, measured, write_measurement
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ObjectRef

_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds."""

    interval: float = 30.0
    retry: float = 15.0
    """… after a failure: a Secret that is right again must show within 30 s."""
    reread_secrets: float = 600.0
    refresh_members: float = 300.0
    rpc_timeout: float = 5.0


@dataclass(slots=True, eq=False)
class _Watched(Followed):
    """One EtcdConnection and what is kept of it between two looks."""

    cluster: ClusterClient | None = None
    target: Target | None = None
    probe: Probe | None = None
    read_at: float = 0.0
    refreshed_at: float = 0.0
    measurement: Measurement | None = None


class ConnectionMonitor(Following[_Watched]):
    """Knows all EtcdConnections and measures each in a task of its own while `run` runs."""

    def __init__(self, parts: Parts, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        super().__init__(parts, self._pace.retry)
        self._turnstile = asyncio.Semaphore(_AT_ONCE)
        self._random = random.Random()  # noqa: S311  # to spread the load, not to keep a secret

    def measurements(self) -> list[tuple[ObjectRef, Measurement | None]]:
        """Every EtcdConnection and what was measured last."""
        return [(known.ref, known.measurement) for known in self]

    def _begin(self, ref: ObjectRef, obj: Json) -> _Watched:
        return _Watched(ref, obj)

    async def _tend(self, known: _Watched) -> None:
        first = True
        try:
            while True:
                known.changed.clear()
                pause = await self._contained(known, self._look(known)) or 0.0
                # Many that were found at once drift apart.
                pause *= self._random.uniform(0.5, 1.0) if first else 1.0
                first = False
                await came_within(self._parts.clock, pause, known.changed)
        finally:
            await self._disconnect(known)

    async def _look(self, known: _Watched) -> float:
        """One measurement and, where it is worth one, one write; the seconds until the next."""
        async with self._turnstile:
            known.measurement = await self._measure(known)
            await self._publish(known, known.measurement)
        return self._pace.interval if known.measurement.answered else self._pace.retry

    async def _measure(self, known: _Watched) -> Measurement:
        try:
            cluster = await self._connected(known)
            statuses = await cluster.statuses(self._pace.rpc_timeout)
        except InvalidInput as error:
            return failed(ClusterNotReady("InvalidSpec", str(error)))
        except (CredentialsUnavailable, ClusterNotHealthy, EtcdError) as error:
            known.read_at = known.refreshed_at = -math.inf
            return failed(error)
        if any(isinstance(status, EtcdError) for status in statuses.values()):
            # Looked for again, with Secrets read afresh, before the next time.
            known.read_at = known.refreshed_at = -math.inf
        assert known.target is not None
        assert known.probe is not None
        return measured(
            cluster.cluster_id,
            cluster.members,
            statuses,
            endpoints={m.id: m.client_urls[0] for m in cluster.members if m.client_urls},
            quota_bytes=known.target.quota_bytes,
            defragmenting=await self._defragmenting(cluster, statuses),
            trouble=await known.probe.check(),
        )

    async def _defragmenting(
        self, cluster: ClusterClient, statuses: Mapping[int, MemberStatus | EtcdError]
    ) -> set[int]:
        """The members that do not answer because it is their turn: only /metrics tells."""
        found = set()
        for member_id, status in statuses.items():
            if isinstance(status, RPCTimeout):
                metrics = await cluster.metrics(member_id, timeout=self._pace.rpc_timeout)
                if metrics is not None and metrics.defrag_inflight:
                    found.add(member_id)
        return found

    async def _connected(self, known: _Watched) -> ClusterClient:
        """The connection, made anew where spec or Secrets have changed."""
        now = self._parts.clock.monotonic()
        generation = generation_of(known.obj)
        stale = now - known.read_at >= self._pace.reread_secrets
        changed = generation != known.generation
        if known.cluster is None or known.target is None or stale or changed:
            try:
                target = await self._parts.clusters.target(parse_connection(known.obj))
                known.read_at = now
            except KubeError:
                if known.cluster is None or known.target is None or changed:
                    raise
                # The API server is away, and this etcd may be why: it is measured all the same.
                target = known.target
            except EtcdmaintError:
                known.generation = generation
                await self._disconnect(known)
                raise
            known.generation = generation
            if known.cluster is None or target != known.target:
                await self._disconnect(known)
                known.cluster = await self._parts.dial(target, timeout=self._pace.rpc_timeout)
                known.target, known.refreshed_at = target, now
                known.probe = await _probe(known.obj, known.cluster, self._parts.clock)
        if now - known.refreshed_at >= self._pace.refresh_members:
            known.refreshed_at = now
            await known.cluster.refresh()
        return known.cluster

    async def _disconnect(self, known: _Watched) -> None:
        cluster, known.cluster, known.target = known.cluster, None, None
        if cluster is not None:
            await cluster.close()

    async def _publish(self, known: _Watched, measurement: Measurement) -> None:
        def patch(obj: Json) -> Json | None:
            return write_measurement(obj, measurement, self._parts.clock.now())

        if patch(known.obj) is not None:
            await self._revise(known, known.generation, patch)


async def _probe(obj: Json, cluster: ClusterClient, clock: Clock) -> Probe:
    """The health probe of one connection, of the key that its API server probes as well."""
    storage = parse_connection(obj).spec.kubernetes_storage
    key = key_below(storage.prefix) if storage is not None else DEFAULT_KEY

    async def connect() -> Ask:
        return partial(voters, cluster)

    probe = Probe(connect, clock, key=key)
    await probe.connect()
    return probe
