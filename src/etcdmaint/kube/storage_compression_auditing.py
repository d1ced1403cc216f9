"""When the etcd behind a StorageCompressionConfiguration is audited, and when an audit is ended.

By the status's own lastAudit, so a restart audits nothing twice. One etcd at a time, so that memory does
not grow with the number of objects. This module must not know what an audit counts, nor what is said of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math

from etcdmaint.clock import Clock
from etcdmaint.errors import EtcdError, EtcdmaintError
from etcdmaint.etcd.client import RpcObserver
from etcdmaint.kube.storage_compression_audit import count_stored
from etcdmaint.kube.storage_compression_look import CompressionPace, Instrumentation
from etcdmaint.kube.storage_compression_subject import Subject

log = logging.getLogger(__name__)

# Seconds, between whoever audited last and this process.
_CLOCKS_DIFFER = 300.0


class Auditor:
    """Audits each subject that it is given, for as long as `keep` runs."""

    def __init__(
        self,
        clock: Clock,
        *,
        instrumentation: Instrumentation,
        observer: RpcObserver | None,
        pace: CompressionPace,
    ) -> None:
        self._clock = clock
        self._instrumentation = instrumentation
        self._observer = observer
        self._pace = pace
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
            return subject.failed_at + self._pace.audit_retry - self._clock.monotonic()
        last = subject.audit
        if last is None or last.completed_at is None or last.cluster_id != wish.cluster_id:
            return 0.0
        passed = (self._clock.now() - last.completed_at).total_seconds()
        # Clocks differ a little. What is said to be done in times to come was written by nobody here.
        return config.spec.audit.interval - passed if passed > -_CLOCKS_DIFFER else 0.0

    async def _audit(self, subject: Subject) -> None:
        wish, target = subject.counting_wish, subject.target
        if wish is None or target is None:
            return
        begun, result = self._clock.monotonic(), "failed"
        subject.counting = wish
        try:
            async with asyncio.timeout(None) as subject.underway:
                subject.audit = await count_stored(
                    target,
                    cluster_id=wish.cluster_id,
                    bytes_per_second=wish.bytes_per_second,
                    clock=self._clock,
                    timeout=2 * self._pace.rpc_timeout,
                    turn=self._turn,
                    observer=self._observer,
                    timing=self._pace.walk,
                )
            subject.failure = None
            result = "consistent" if subject.audit.consistent else "inconsistent"
        except EtcdmaintError as error:
            subject.failure, subject.failed_at = error, self._clock.monotonic()
            # Perhaps another etcd is there by now.
            subject.stood_at = -math.inf
        except Exception as error:  # the outermost shell of one audit: the next one may do better
            if isinstance(error, TimeoutError) and subject.underway and subject.underway.expired():
                log.info("an audit is not wanted any more", extra={"object": str(subject.ref)})
                return
            log.exception("a fault while auditing", extra={"object": str(subject.ref)})
            subject.failure = EtcdError("the audit failed by a fault of this program")
            subject.failed_at = self._clock.monotonic()
        finally:
            subject.underway = subject.counting = None
        seconds = self._clock.monotonic() - begun
        self._instrumentation.audited(result, seconds)
        log.info(
            "an audit is over",
            extra={"object": str(subject.ref), "result": result, "seconds": round(seconds, 1)},
        )
