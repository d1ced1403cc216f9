"""A clock that stands still until told, and a KMS plugin of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from tests.kms_plugin import KmsPlugin

_NUMBERS = itertools.count(1)


class StillClock:
    """Time moves by `pass_` and by sleeping."""

    def __init__(self) -> None:
        self._now = 1000.0

    def pass_(self, seconds: float) -> None:
        self._now += seconds

    def monotonic(self) -> float:
        return self._now

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def serve() -> Iterator[Callable[..., KmsPlugin]]:
    """Start plugins that end with the test."""
    started: list[KmsPlugin] = []

    def start(*keys: str, annotate: bool = False) -> KmsPlugin:
        plugin = KmsPlugin(f"@etcdmaint-{os.getpid()}-{next(_NUMBERS)}", keys, annotate=annotate)
        started.append(plugin)
        return plugin.start()

    yield start
    for plugin in started:
        plugin.stop()
