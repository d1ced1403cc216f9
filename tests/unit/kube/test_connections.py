"""How connections are measured on while the Kubernetes API, or what it says, changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from etcdmaint.clock import SystemClock
from etcdmaint.etcd.endpoint import AddressMap
from etcdmaint.etcd.types import MemberStatus
from etcdmaint.kube.clusters import Clusters
from etcdmaint.kube.connections import ConnectionMonitor, Pace
from etcdmaint.kube.parts import Parts
from etcdmaint.kube.resources import ETCD_CONNECTIONS
from tests.unit.defrag.observations import member, status
from tests.unit.kube.fakes import FakeApi, FakeFence


class Cluster:
    """One member that always answers; notes where it was connected to."""

    cluster_id = 0xC1
    members = (member(1),)
    made: list[Cluster] = []  # noqa: RUF012  # made anew by the fixture

    def __init__(self, seeds: Any) -> None:
        self.seeds = [str(seed) for seed in seeds]
        self.asked = 0
        self.made.append(self)

    @classmethod
    async def connect(cls, seeds: Any, *_: Any, **__: Any) -> Cluster:
        return cls(seeds)

    async def statuses(self, timeout: float) -> dict[int, MemberStatus]:
        self.asked += 1
        return {1: status(1)}

    def client(self, member_id: int) -> Cluster:
        return self

    async def range(self, key: bytes, *, timeout: float | None = None) -> None:
        return None

    async def refresh(self) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    monkeypatch.setattr(Cluster, "made", [])
    monkeypatch.setattr("etcdmaint.kube.parts.ClusterClient", Cluster)
    return Cluster.made


def connection(url: str, generation: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "etcd",
            "namespace": "ns",
            "uid": "c",
            "generation": generation,
            "resourceVersion": str(generation),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"endpoints": [url], "tls": {"caSecretRef": {"name": "ca"}}},
    }


def parts(api: FakeApi) -> Parts:
    return Parts(
        api=api,  # type: ignore[arg-type]  # a stand-in of its shape
        clusters=Clusters(api, AddressMap()),  # type: ignore[arg-type]  # a stand-in of its shape
        events=None,  # type: ignore[arg-type]  # nothing is told but by the status
        fence=FakeFence(),
        clock=SystemClock(),
        observer=None,
    )


@contextlib.asynccontextmanager
async def measuring(
    monkeypatch: pytest.MonkeyPatch, *, reread_secrets: float
) -> AsyncIterator[tuple[FakeApi, Any]]:
    async def secret(*_: Any) -> None:
        await api.get(ETCD_CONNECTIONS, "ns", "etcd")

    api = FakeApi()
    api.put(ETCD_CONNECTIONS, connection("https://one:2379", 1))
    monkeypatch.setattr("etcdmaint.kube.clusters.read_secret", secret)
    monkeypatch.setattr("etcdmaint.kube.clusters.make_tls", lambda *_, **__: None)
    monitor = ConnectionMonitor(
        parts(api),
        pace=Pace(interval=0.005, retry=0.005, reread_secrets=reread_secrets),
    )
    monitor.seen(ETCD_CONNECTIONS, connection("https://one:2379", 1))
    running = asyncio.create_task(monitor.run())
    try:
        yield api, monitor
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def came(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # the monitor has no signal of its own
            await asyncio.sleep(0.001)


async def test_an_etcd_is_measured_on_while_the_api_server_is_away(
    monkeypatch: pytest.MonkeyPatch, made: list[Cluster]
) -> None:
    """Its own etcd may be why it is away: gauges that stand still then would lie."""
    async with measuring(monkeypatch, reread_secrets=0.0) as (api, _):
        await came(lambda: made and made[0].asked)
        api.outages = 10**6
        asked = made[0].asked
        await came(lambda: made[0].asked > asked + 5)
        assert len(made) == 1


async def test_a_changed_spec_is_followed_although_the_api_server_was_away_at_first(
    monkeypatch: pytest.MonkeyPatch, made: list[Cluster]
) -> None:
    """What it said before is another cluster's matter from then on."""
    async with measuring(monkeypatch, reread_secrets=600.0) as (api, monitor):
        await came(lambda: made and made[0].asked)
        api.outages = 10**6
        changed = api.put(ETCD_CONNECTIONS, connection("https://two:2379", 2))
        monitor.seen(ETCD_CONNECTIONS, changed)
        await came(lambda: api.outages < 10**6 - 5)
        asked = made[0].asked
        await came(lambda: api.outages < 10**6 - 10)
        assert made[0].asked == asked
        api.outages = 0
        await came(lambda: made[-1].seeds == ["https://two:2379"] and made[-1].asked)


def test_a_list_that_is_older_than_the_watch_neither_ends_nor_turns_back_anything() -> None:
    """What is really gone is missing twice."""
    api = FakeApi()
    monitor = ConnectionMonitor(parts(api))
    new = connection("https://two:2379", 2)
    monitor.seen(ETCD_CONNECTIONS, new)
    monitor.replace(ETCD_CONNECTIONS, [])
    assert [ref.name for ref, _ in monitor.measurements()] == ["etcd"]
    monitor.replace(ETCD_CONNECTIONS, [connection("https://one:2379", 1)])
    assert monitor.find("c").obj is new  # type: ignore[union-attr]  # known to be there
    monitor.replace(ETCD_CONNECTIONS, [])
    assert len(monitor.measurements()) == 1
    monitor.replace(ETCD_CONNECTIONS, [])
    assert monitor.measurements() == []
