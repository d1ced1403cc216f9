"""Which replica may act: a Lease, held by one process at a time, and never on trust.

Modelled on client-go's leader election. A holder is judged by whether its Lease *changes*, measured on
this process's own monotonic clock: clocks of two machines are never compared. Whoever holds it must
renew well before others may take it, so `assert_held` refuses some time before anybody else acts.
Between the check and the act a process may still be stopped; what then keeps etcd safe is the slot.
This module must not know what the leader does.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from etcdmaint.clock import Clock
from etcdmaint.errors import InvalidInput, LeadershipLost
from etcdmaint.kube.client import Conflict, Json, KubeApi, KubeError, NotFound, format_micro_time
from etcdmaint.kube.resources import LEASES

log = logging.getLogger(__name__)

_JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Seconds. The defaults ride out 78 s without an API server, as Kubernetes' own controllers can."""

    duration: float = 137.0
    renew_deadline: float = 107.0
    retry_period: float = 26.0

    def __post_init__(self) -> None:
        if self.retry_period <= 0:
            raise InvalidInput("--retry-period", "must be longer than nothing")
        if self.renew_deadline <= self.retry_period * (1 + _JITTER):
            raise InvalidInput("--renew-deadline", "must be longer than 1.2 times --retry-period")
        if self.duration <= self.renew_deadline or self.duration < 1:
            raise InvalidInput("--lease-duration", "must be longer than --renew-deadline, and 1s")


def own_identity() -> str:
    """POD_NAME, so that a restarted container goes on as itself; else unique to this process."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{secrets.token_hex(4)}"


class Elector:
    """Acquires, renews and releases the Lease. Implements `defrag.run.Fence`.

    `changed` is told True when this process begins to lead and False when it ceases to.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming,
        clock: Clock,
        changed: Callable[[bool], None] = lambda leads: None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._lock_name = f"{namespace}/{name}"
        self._identity = identity
        self._timing = timing
        self._clock = clock
        self._changed = changed
        self._random = random.Random()  # noqa: S311  # to spread requests, not to keep a secret
        self._token = secrets.token_hex(4)
        self._lease: Json | None = None
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._transitions = 0
        self._uid = ""
        self._trouble = ""

    @property
    def holder(self) -> str:
        """The Lease's namespace, name and UID: all replicas of one operator are one holder (D62)."""
        return f"{self._lock_name}/{self._uid}"

    @property
    def epoch(self) -> str:
        """Tells this term of this process from every other (D62)."""
        return f"{self._transitions}-{self._token}"

    @property
    def leading(self) -> bool:
        """Whether this process may act at this instant."""
        if self._renewed_at is None:
            return False
        return self._clock.monotonic() - self._renewed_at < self._timing.renew_deadline

    def assert_held(self) -> None:
        """Raise LeadershipLost unless this process may act at this instant."""
        if not self.leading:
            raise LeadershipLost(f"the leader Lease {self._lock_name} is not held any more")

    async def acquire(self) -> None:
        """Return when this process leads; waits as long as it takes."""
        while not await self._try(self._claim):
            await self._clock.sleep(self._pause())
        log.info("leads", extra={"lease": self._lock_name, "holder": self._identity})
        self._changed(True)

    async def hold(self) -> None:
        """Renew for ever. Raises LeadershipLost as soon as others may take over, whether any does or not."""
        try:
            while True:
                await self._clock.sleep(self._timing.retry_period)
                while not await self._renew():
                    await self._clock.sleep(min(1.0, self._timing.retry_period / 4))
        finally:
            self._changed(False)

    async def _renew(self) -> bool:
        """Once lost stays lost: who was refused by `assert_held` meanwhile has left its work for good."""
        self.assert_held()
        before = self._renewed_at
        renewed = await self._try(lambda: self._rewrite({}))
        if before is None or self._clock.monotonic() - before >= self._timing.renew_deadline:
            self._lost("was not renewed in time")
        return renewed

    async def release(self) -> None:
        """Let the next one in at once; does nothing unless the Lease is ours."""
        held, self._renewed_at = self.leading, None
        if not held:
            return
        given_up = {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            released = await self._try(lambda: self._rewrite(given_up))
        except LeadershipLost:
            return
        self._renewed_at = None
        if released:
            log.info("released", extra={"lease": self._lock_name})

    async def _try(self, step: Callable[[], Any]) -> bool:
        """One attempt; no error of the API's escapes. Whether the Lease was written by us."""
        started = self._clock.monotonic()
        try:
            written = await step()
        except Conflict:
            return False
        except KubeError as error:
            # Said once for each kind of trouble, not at each of many attempts.
            if self._trouble != error.reason:
                log.warning("cannot reach the leader Lease", extra={"error": str(error)})
            self._trouble = error.reason
            return False
        if self._trouble:
            log.info("reaches the leader Lease again")
            self._trouble = ""
        if written:
            # From before the request: others count from when it was carried out, which was later.
            self._renewed_at = started
        return bool(written)

    async def _claim(self) -> bool:
        try:
            lease = await self._read()
        except NotFound:
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec(0),
            }
            made = await self._api.create(
                LEASES, self._namespace, body, timeout=self._request_timeout
            )
            self._take(made)
            return True
        self._observe(lease)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and self._until_free(spec) > 0:
            return False
        transitions = int(spec.get("leaseTransitions") or 0)
        if holder == self._identity:
            return await self._write(lease, {})
        return await self._write(lease, self._spec(transitions + 1))

    async def _rewrite(self, changes: Json) -> bool:
        """Write our own Lease: a conflict may be with a write of ours whose answer was lost."""
        if self._lease is None:
            self._lost("was never held")
        try:
            return await self._write(self._lease, changes)
        except Conflict:
            # Also the answer for a Lease that is gone: its UID is not that of one to be made.
            lease = await self._found()
        except NotFound:
            self._lost("was deleted")
        if (lease.get("spec") or {}).get("holderIdentity") != self._identity:
            self._lost("was taken by somebody else")
        if lease["metadata"].get("uid") != self._uid:
            # Another Lease makes us another holder: the slots in etcd would not be ours any more.
            self._lost("was replaced")
        return await self._write(lease, changes)

    async def _found(self) -> Json:
        try:
            return await self._read()
        except NotFound:
            self._lost("was deleted")

    def _lost(self, how: str) -> NoReturn:
        self._renewed_at = None
        raise LeadershipLost(f"the leader Lease {self._lock_name} {how}")

    async def _write(self, lease: Json, changes: Json) -> bool:
        spec = {
            **(lease.get("spec") or {}),
            "leaseDurationSeconds": round(self._timing.duration),
            "renewTime": format_micro_time(self._clock.now()),
            **changes,
        }
        body = {**lease, "spec": spec}
        self._take(
            await self._api.replace(LEASES, self._namespace, body, timeout=self._request_timeout)
        )
        return True

    async def _read(self) -> Json:
        return await self._api.get(
            LEASES, self._namespace, self._name, timeout=self._request_timeout
        )

    def _take(self, lease: Json) -> None:
        self._lease = lease
        self._uid = str(lease["metadata"].get("uid") or "")
        self._transitions = int(lease["spec"].get("leaseTransitions") or 0)

    def _spec(self, transitions: int) -> Json:
        now = format_micro_time(self._clock.now())
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._timing.duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _observe(self, lease: Json) -> None:
        spec = lease.get("spec") or {}
        seen = (lease["metadata"].get("uid"), spec.get("holderIdentity"), spec.get("renewTime"))
        if seen != self._seen:
            self._seen = seen
            self._seen_at = self._clock.monotonic()
        self._lease = lease

    def _until_free(self, spec: Json) -> float:
        """Seconds until its holder may be passed over, going by when we last saw it change."""
        duration = float(spec.get("leaseDurationSeconds") or self._timing.duration)
        return self._seen_at + duration - self._clock.monotonic()

    def _pause(self) -> float:
        """Until the next attempt: jittered, but never later than the moment the Lease is free."""
        pause = self._timing.retry_period * (1 + _JITTER * self._random.random())
        if self._lease is None or not self._seen:
            return pause
        until_free = self._until_free(self._lease.get("spec") or {})
        return min(pause, until_free + 0.01) if until_free > 0 else pause

    @property
    def _request_timeout(self) -> float:
        return max(1.0, min(10.0, self._timing.renew_deadline / 4))
