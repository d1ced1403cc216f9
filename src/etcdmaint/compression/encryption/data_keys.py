"""The data keys that KMS plugins have opened, each asked for once.

A refusal is remembered too, for a while: a scan that meets ten thousand values of a key that is gone
must not ask ten thousand times. A plugin that does not answer is not remembered, but whoever waited
for that answer shares the outcome: a plugin that hangs costs each thread one timeout, not one for
every thread before it. This module must not know what a data key is.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from etcdmaint.clock import Clock
from etcdmaint.errors import EncryptionError, KmsRefused, KmsUnavailable

# As long as kube-apiserver keeps them.
KEPT_SECONDS = 24 * 3600.0
# Not for long: plugins tell an outage behind them as they tell a key that is gone.
REFUSED_SECONDS = 10.0

Opened = TypeVar("Opened")


class DataKeys(Generic[Opened]):
    """At most `limit` opened keys, the least used one goes first; thread-safe."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Opened | KmsRefused]] = OrderedDict()
        self._asking: dict[bytes, Future[Opened]] = {}
        self._lock = threading.Lock()

    def get(self, digest: bytes, ask: Callable[[], Opened]) -> Opened:
        """The key with this digest; of the threads that want it at once, one calls `ask`.

        Raises whatever `ask` raises, and KmsRefused again where it did so a short while ago.
        """
        with self._lock:
            found = self._find(digest)
            others = self._asking.get(digest)
            if found is None and others is None:
                own = self._asking[digest] = Future()
        if isinstance(found, KmsRefused):
            # A new one each time: whoever catches it may add to what it says.
            raise copy.copy(found)
        if found is not None:
            return found
        if others is None:
            return self._ask(digest, ask, own)
        try:
            return others.result()
        except EncryptionError as error:
            shared = copy.copy(error)
        raise shared

    def put(self, digest: bytes, opened: Opened) -> None:
        """A key that need not be asked for."""
        with self._lock:
            self._keep(digest, opened, KEPT_SECONDS)

    def _ask(self, digest: bytes, ask: Callable[[], Opened], outcome: Future[Opened]) -> Opened:
        try:
            opened = ask()
        except BaseException as error:
            with self._lock:
                del self._asking[digest]
                if isinstance(error, KmsRefused):
                    # Without its traceback, which would keep alive whatever the caller holds.
                    self._keep(digest, copy.copy(error), REFUSED_SECONDS)
            # An interruption is this thread's own.
            told = isinstance(error, EncryptionError)
            outcome.set_exception(
                copy.copy(error)
                if told
                else KmsUnavailable("the KMS plugin was not asked to the end")
            )
            raise
        with self._lock:
            del self._asking[digest]
            self._keep(digest, opened, KEPT_SECONDS)
        outcome.set_result(opened)
        return opened

    def _find(self, digest: bytes) -> Opened | KmsRefused | None:
        entry = self._known.get(digest)
        if entry is None or self._clock.monotonic() >= entry[0]:
            return None
        self._known.move_to_end(digest)
        return entry[1]

    def _keep(self, digest: bytes, opened: Opened | KmsRefused, seconds: float) -> None:
        self._known[digest] = (self._clock.monotonic() + seconds, opened)
        self._known.move_to_end(digest)
        while len(self._known) > max(self._limit, 0):
            self._known.popitem(last=False)
