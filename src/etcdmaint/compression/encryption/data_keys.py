"""The data keys that KMS plugins have opened, each asked for once.

A refusal is remembered too, for a minute: a scan that meets ten thousand values of a key that is
gone must not ask ten thousand times. A plugin that does not answer is not remembered. This module
must not know what a data key is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from etcdmaint.clock import Clock
from etcdmaint.errors import KmsRefused

# As long as kube-apiserver keeps them.
KEPT_SECONDS = 24 * 3600.0
REFUSED_SECONDS = 60.0

Opened = TypeVar("Opened")


class DataKeys(Generic[Opened]):
    """At most `limit` opened keys, the least used one goes first; thread-safe."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Opened | KmsRefused]] = OrderedDict()
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def get(self, digest: bytes, ask: Callable[[], Opened]) -> Opened:
        """The key with this digest; `ask` is called for it by one thread at a time.

        Raises whatever `ask` raises, and KmsRefused again where it did so a short while ago.
        """
        found = self._find(digest)
        if found is None:
            with self._asking:
                found = self._find(digest)
                if found is None:
                    return self._ask(digest, ask)
        if isinstance(found, KmsRefused):
            raise KmsRefused(str(found), provider=found.provider, key_name=found.key_name)
        return found

    def put(self, digest: bytes, opened: Opened) -> None:
        """A key that need not be asked for."""
        self._keep(digest, opened, KEPT_SECONDS)

    def _ask(self, digest: bytes, ask: Callable[[], Opened]) -> Opened:
        try:
            opened = ask()
        except KmsRefused as refused:
            # Without its traceback, which would keep alive whatever the caller holds.
            again = KmsRefused(str(refused), provider=refused.provider, key_name=refused.key_name)
            self._keep(digest, again, REFUSED_SECONDS)
            raise
        self._keep(digest, opened, KEPT_SECONDS)
        return opened

    def _find(self, digest: bytes) -> Opened | KmsRefused | None:
        with self._lock:
            entry = self._known.get(digest)
            if entry is None or self._clock.monotonic() >= entry[0]:
                return None
            self._known.move_to_end(digest)
            return entry[1]

    def _keep(self, digest: bytes, opened: Opened | KmsRefused, seconds: float) -> None:
        with self._lock:
            self._known[digest] = (self._clock.monotonic() + seconds, opened)
            self._known.move_to_end(digest)
            while len(self._known) > max(self._limit, 0):
                self._known.popitem(last=False)
