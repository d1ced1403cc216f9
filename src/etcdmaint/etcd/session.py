"""The token of a login: asked for once by however many calls need one at the same time.

It must not know how the question is put: a function is handed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from etcdmaint.errors import EtcdError


class Session:
    """Keeps the token of one login at one member."""

    def __init__(self, authenticate: Callable[[float], Awaitable[str]]) -> None:
        """`authenticate` takes a deadline (the event loop's time) and gives a new token."""
        self._authenticate = authenticate
        self._lock = asyncio.Lock()
        self._token: str | None = None
        self._failure: EtcdError | None = None
        self._attempts = 0

    async def token(self, deadline: float, *, stale: str | None = None) -> str:
        """A token that is not `stale`. Those who wait for an attempt share its failure as well.

        A wrong password costs etcd a slow hash, so a hundred waiting calls must not ask a hundred
        times.
        """
        if self._token is not None and self._token != stale:
            return self._token
        seen = self._attempts
        async with asyncio.timeout_at(deadline), self._lock:
            if self._token is not None and self._token != stale:
                return self._token
            if self._attempts != seen and self._failure is not None:
                raise self._failure
            try:
                self._token = await self._authenticate(deadline)
            except EtcdError as failure:
                self._failure = failure
                self._attempts += 1
                raise
            self._failure = None
            self._attempts += 1
            return self._token
