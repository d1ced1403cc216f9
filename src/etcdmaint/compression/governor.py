"""How fast to read an etcd that others are using.

A rate in bytes, and less of it while etcd answers others more slowly than it did before: what a
reader gains in minutes is not worth a second of an API server's. Asked after each chunk and told of
each probe. This module must not know what is read.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from etcdmaint.clock import Clock

# Below this, in seconds, an answer is quick, whatever it was before.
QUICK_SECONDS = 0.005
# The slowest that reading gets, as a share of the rate.
_LEAST = 1 / 32
_FASTER = 1.25


class Governor:
    """`bytes_per_second` None: no limit, and no slowing down either."""

    def __init__(self, bytes_per_second: float | None, clock: Clock) -> None:
        self.rate = bytes_per_second
        self.share = 1.0
        self._clock = clock
        self._baseline = 0.0
        self._due = clock.monotonic()

    @property
    def slowed(self) -> bool:
        """Whether etcd is slower than it was before."""
        return self.share < 1.0

    def calm(self, latencies: Sequence[float]) -> None:
        """What a small read took, in seconds, a few times over, before anything is read."""
        self._baseline = statistics.median(latencies)

    def observe(self, latency: float) -> None:
        """What it takes now: twice as long as before halves the rate, less lets it grow again."""
        if latency > max(2 * self._baseline, QUICK_SECONDS):
            self.share = max(self.share / 2, _LEAST)
        else:
            self.share = min(self.share * _FASTER, 1.0)

    async def spend(self, size: int) -> None:
        """Return when what came before is paid for; these bytes are paid for by whoever comes next."""
        if self.rate is None:
            return
        now = self._clock.monotonic()
        if self._due > now:
            await self._clock.sleep(self._due - now)
        # What was not used is not saved up.
        self._due = max(self._due, now) + size / (self.rate * self.share)
