"""A rate for calls to a KMS plugin: they go to somebody's bill, or to an HSM that others need too.

Synchronous, as the calls are; so time is asked of two functions and not of a `Clock`, whose sleep is
for coroutines. This module must not know what is being paced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """Lets one caller through every `1 / per_second` seconds; thread-safe. Call it before the work."""

    def __init__(
        self,
        per_second: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._interval = 1 / per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = 0.0

    def __call__(self) -> None:
        """Return when it is this caller's turn."""
        with self._lock:
            now = self._monotonic()
            turn = max(now, self._next)
            self._next = turn + self._interval
        if turn > now:
            self._sleep(turn - now)
