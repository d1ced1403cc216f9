"""Counts what the etcd behind a StorageCompressionConfiguration keeps: when, how, and until when.

By the status's own lastAudit, so a restart audits nothing twice. One etcd at a time, so that memory does
not grow with the number of objects. An audit decrypts nothing, gives way to whoever holds the cluster's
slot, and keeps to a rate. This module must not know what is said of what it counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from contextlib import AbstractAsyncContextManager

from etcdmaint.api.compression import AuditStatus
from etcdmaint.compression.audit import Audit, audit
from etcdmaint.compression.census import Census
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.source import ClusterSource
from etcdmaint.compression.walk import Progress
from etcdmaint.defrag.courtesy import SlotCourtesy
from etcdmaint.defrag.run import Target
from etcdmaint.errors import EtcdError, EtcdmaintError, WrongMember
from etcdmaint.etcd.types import format_id, prefix_end
from etcdmaint.kube.storage_compression_counts import summarize
from etcdmaint.kube.storage_compression_subject import CompressionParts, CountingWish, Subject

log = logging.getLogger(__name__)

# Seconds, between whoever audited last and this process.
_CLOCKS_DIFFER = 300.0


class Auditor:
    """Audits each subject that it is given, for as long as `keep` runs."""

    def __init__(self, parts: CompressionParts) -> None:
        self._parts = parts
        self._turn = asyncio.Semaphore(1)

    async def keep(self, subject: Subject) -> None:
        """For ever: wait until an audit is due, make it, have it looked at."""
        while True:
            subject.looked.clear()
            wait = self._due(subject)
            if wait <= 0:
                await self._audit(subject)
                subject.looked.clear()
                subject.changed.set()
                # What was counted is judged by the look that comes now.
                wait = math.inf
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else wait):
                    await subject.looked.wait()

    def end_unwanted(self, subject: Subject) -> None:
        """End the audit that runs, unless it is for what the subject still asks for."""
        running = subject.underway
        if running is None or running.expired() or subject.counting == subject.counting_wish:
            return
        running.reschedule(0.0)

    def _due(self, subject: Subject) -> float:
        """Seconds until the next audit; infinite where something has to change before."""
        wish, config = subject.counting_wish, subject.reading.config if subject.reading else None
        if wish is None or config is None or subject.target is None or subject.standing.fault:
            return math.inf
        if subject.failure is not None:
            return subject.failed_at + self._parts.pace.audit_retry - self._parts.clock.monotonic()
        last = subject.audit
        if last is None or last.completed_at is None or last.cluster_id != wish.cluster_id:
            return 0.0
        passed = (self._parts.clock.now() - last.completed_at).total_seconds()
        # Clocks differ a little. What is said to be done in times to come was written by nobody here.
        return config.spec.audit.interval - passed if passed > -_CLOCKS_DIFFER else 0.0

    async def _audit(self, subject: Subject) -> None:
        wish, target = subject.counting_wish, subject.target
        if wish is None or target is None:
            return
        begun = self._parts.clock.monotonic()
        subject.counting, failure, result = wish, None, "failed"
        try:
            async with asyncio.timeout(None) as subject.underway:
                subject.audit = await count_stored(self._parts, target, wish, self._turn)
            result = "consistent" if subject.audit.consistent else "inconsistent"
        except EtcdmaintError as error:
            failure = error
            # Perhaps another etcd is there by now.
            subject.stood_at = -math.inf
        except Exception as error:  # the outermost shell of one audit: the next one may do better
            if isinstance(error, TimeoutError) and subject.underway and subject.underway.expired():
                log.info("an audit is not wanted any more", extra={"object": str(subject.ref)})
                return
            log.exception("a fault while auditing", extra={"object": str(subject.ref)})
            failure = EtcdError("the audit failed by a fault of this program")
        finally:
            subject.underway = subject.counting = None
        subject.failure, subject.failed_at = failure, self._parts.clock.monotonic()
        seconds = subject.failed_at - begun
        self._parts.instrumentation.audited(result, seconds)
        log.info(
            "an audit is over",
            extra={"object": str(subject.ref), "result": result, "seconds": round(seconds, 1)},
        )


async def count_stored(
    parts: CompressionParts,
    target: Target,
    wish: CountingWish,
    turn: AbstractAsyncContextManager[object],
) -> AuditStatus:
    """Count all that an API server keeps below the target's prefix.

    `turn` is entered once nobody holds the slot: a cluster that is being worked on keeps no other one's
    audit waiting. Raises WrongMember where another cluster than the wish's is there by now, EtcdError
    and ClusterNotHealthy when it cannot be carried to its end.
    """
    clock, timing, timeout = parts.clock, parts.pace.walk, 2 * parts.pace.rpc_timeout
    keyspace = Keyspace(target.kubernetes_prefix.encode())
    span = (keyspace.root, prefix_end(keyspace.root))
    async with await parts.dial(target, timeout=timeout) as cluster:
        if cluster.cluster_id != wish.cluster_id:
            found, known = format_id(cluster.cluster_id), format_id(wish.cluster_id)
            raise WrongMember(f"etcd cluster {found} is there now, and no longer {known}")
        courtesy = SlotCourtesy(cluster, timeout)
        while await courtesy.holder():
            await clock.sleep(timing.look)
        async with turn:
            started = clock.now()
            # Damaged keys are named by the command line, to whoever may read etcd.
            state = Audit(Census(keyspace, keep=0), Progress(spans=(span,)))
            await audit(
                state,
                ClusterSource(cluster, timeout=timeout, frugal=True),
                bytes_per_second=wish.bytes_per_second,
                clock=clock,
                courtesy=courtesy,
                timing=timing,
            )
            return summarize(state, cluster.cluster_id, started, clock.now())
