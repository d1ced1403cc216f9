"""The token of a login: asked for once by however many calls need one at the same time.

It must not know how the question is put: a function is handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from etcdmaint.errors import EtcdError, RPCTimeout


class Session:
    """Keeps the token of one login at one member."""

    def __init__(self, authenticate: Callable[[float], Awaitable[str]], where: str) -> None:
        """`authenticate` takes a deadline (the event loop's time) and gives a new token.

        `where` is whom it asks, for the error when there is no answer.
        """
        self._authenticate = authenticate
        self._where = where
        self._lock = asyncio.Lock()
        self._token: str | None = None
        self._refusal: EtcdError | None = None
        self._refusals = 0

    async def token(self, deadline: float, *, stale: str | None = None) -> str:
        """A token that is not `stale`; `deadline` is the event loop's time.

        Those who wait while a log-in is refused are refused with it: a wrong password costs etcd a
        slow hash, so a hundred waiting calls must not ask a hundred times.
        """
        if self._token is not None and self._token != stale:
            return self._token
        seen = self._refusals
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                return await self._fresh(deadline, stale, seen)
        except TimeoutError:
            raise RPCTimeout(
                f"no answer in time to the log-in at {self._where}", code="DEADLINE_EXCEEDED"
            ) from None

    async def _fresh(self, deadline: float, stale: str | None, seen: int) -> str:
        if self._token is not None and self._token != stale:
            return self._token
        if self._refusals != seen and self._refusal is not None:
            raise self._refusal
        try:
            self._token = await self._authenticate(deadline)
        except EtcdError as failure:
            if not failure.retryable:
                self._refusal = failure
                self._refusals += 1
            raise
        return self._token
