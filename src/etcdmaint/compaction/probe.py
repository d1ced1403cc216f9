"""Whether a cluster answers, asked as seldom as it must be.

kube-apiserver's health probe (its factory/etcd3.go): a linearizable read, at most one each half of its
timeout, so that a flapping etcd does not turn whoever watches it into a load; in between, the last
answer is given again. This module must not know who asks, nor how often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from etcdmaint.clock import Clock
from etcdmaint.errors import EtcdError, EtcdmaintError, MemberUnreachable, PermissionDenied
from etcdmaint.etcd.cluster import ClusterClient, voters_of
from etcdmaint.etcd.types import RangeResult

DEFAULT_TIMEOUT = 2.0
CONNECT_AGAIN = 1.0
DEFAULT_KEY = b"health"
"""What etcdctl reads for `endpoint health`."""


class Readable(Protocol):
    """What can be read; an `etcd.client.MemberClient` is one."""

    async def range(self, key: bytes, *, timeout: float | None = None) -> RangeResult:
        """KV/Range of one key, linearizable."""


Ask = Callable[[], Sequence[Readable]]
"""Gives whom to ask by now, or raises EtcdError."""

Connect = Callable[[], Awaitable[Ask]]
"""Connects, or raises EtcdmaintError."""


def key_below(prefix: str) -> bytes:
    """The key that a kube-apiserver with this `--etcd-prefix` probes."""
    return f"/{prefix.strip('/')}/health".encode()


def voters(cluster: ClusterClient) -> Sequence[Readable]:
    """Everybody who may be asked; raises EtcdError when nobody is connected."""
    return list(voters_of(cluster).values())


async def read_once(asked: Sequence[Readable], key: bytes, timeout: float) -> None:
    """One probe: the first of these who answers will do; raises an EtcdError when none does.

    Together they have `timeout` seconds: a member in its own defragmentation answers nobody, and the
    cluster is not away because of it. A refusal for lack of rights is an answer.
    """
    failure: EtcdError = MemberUnreachable("there is nobody to ask")
    for client in asked:
        try:
            await client.range(key, timeout=timeout / len(asked))
        except PermissionDenied:
            return
        except EtcdError as error:
            failure = error
        else:
            return
    raise failure


class Probe:
    """The rate-limited probe of one cluster; `timeout` in seconds."""

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        *,
        key: bytes = DEFAULT_KEY,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._key = key
        self._timeout = timeout
        self._ask: Ask | None = None
        self._checked_at: float | None = None
        self._stored_at: float | None = None
        self._stored: EtcdmaintError | None = MemberUnreachable(
            "the connection to etcd is not yet established"
        )

    @property
    def last(self) -> EtcdmaintError | None:
        """What was wrong by the last answer, None for nothing; asks nobody."""
        return self._stored

    async def connect(self) -> None:
        """Connect, again each second until it works; until then `check` says why not."""
        while self._ask is None:
            try:
                self._ask = await self._connect()
            except EtcdmaintError as error:
                self._stored = error
                await self._clock.sleep(CONNECT_AGAIN)

    async def check(self) -> EtcdmaintError | None:
        """What is wrong, None for nothing; asks only if nobody did so in the last half timeout."""
        now = self._clock.monotonic()
        limited = self._checked_at is not None and now - self._checked_at < self._timeout / 2
        if limited or self._ask is None:
            return self._stored
        self._checked_at = now
        answer: EtcdmaintError | None = None
        try:
            await read_once(self._ask(), self._key, self._timeout)
        except EtcdError as error:
            answer = error
        # A slow answer must not bring back an old truth.
        if self._stored_at is None or now > self._stored_at:
            self._stored, self._stored_at = answer, now
        return answer
