"""Who is looked at, in which order, and what an object costs: without servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from etcdmaint.defrag.run import Severity
from etcdmaint.errors import ClusterNotFound, ClusterNotReady
from etcdmaint.kube.client import Forbidden
from etcdmaint.kube.resources import COMPRESSIONS, ObjectRef
from etcdmaint.kube.storage_compression import CompressionMonitor
from etcdmaint.kube.storage_compression_look import CompressionPace
from tests.unit.api.compression_cases import KEP_SAMPLE, entry
from tests.unit.kube.fakes import FakeClock, FakeFence
from tests.unit.kube.test_storage_compression_publishing import StoringApi

REF = {"clusterRef": {"name": "etcd", "kind": "EtcdConnection"}}
NOTHING = entry(algorithm="None")


class Events:
    """Remembers Events."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str]] = []

    def post(self, ref: ObjectRef, severity: Severity, reason: str, message: str) -> None:
        self.posted.append((ref.name, reason))


class Lost:
    """Clusters that cannot be dialled."""

    error: Exception = ClusterNotReady("Bootstrapping", "EtcdConnection etcd is being made")

    async def find(self, namespace: str, ref: Any) -> Any:
        raise self.error


class Counts:
    """Counts what is published."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def published(self, result: str) -> None:
        self.results.append(result)

    def audited(self, result: str, seconds: float) -> None:
        raise AssertionError("nothing is audited here")


class House:
    """A monitor with everything around it."""

    def __init__(self) -> None:
        self.api, self.events, self.clusters = StoringApi(), Events(), Lost()
        self.counts = Counts()
        self.monitor = CompressionMonitor(
            self.api,  # type: ignore[arg-type]
            self.clusters,  # type: ignore[arg-type]
            self.events,  # type: ignore[arg-type]
            FakeFence(),
            FakeClock(),
            instrumentation=self.counts,
            pace=CompressionPace(interval=0.01, retry=0.01, rpc_timeout=0.05),
        )

    def put(self, name: str = "policy", spec: Any = NOTHING, **metadata: Any) -> dict[str, Any]:
        obj = {
            "apiVersion": COMPRESSIONS.api_version,
            "kind": COMPRESSIONS.kind,
            "metadata": {
                "name": name,
                "generation": 1,
                "creationTimestamp": "2026-11-30T10:00:00Z",
                **metadata,
            },
            "spec": spec,
        }
        return self.api.put(COMPRESSIONS, obj)

    def start(self) -> None:
        self.monitor.replace(
            [obj for (plural, *_), obj in self.api.objects.items() if plural == COMPRESSIONS.plural]
        )

    def said(self, kind: str, name: str = "policy") -> tuple[str, str]:
        conditions = self.api.objects[COMPRESSIONS.plural, "ns", name].get("status", {})
        for each in conditions.get("conditions", ()):
            if each["type"] == kind:
                return each["status"], each["reason"]
        return "", ""

    @property
    def maps(self) -> list[str]:
        """The ConfigMaps there are."""
        return sorted(name for plural, _, name in self.api.objects if plural == "configmaps")


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    running = asyncio.create_task(made.monitor.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # there is nothing else to wait for
            await asyncio.sleep(0.005)


async def a_few_looks() -> None:
    await asyncio.sleep(0.08)


async def test_a_policy_without_compression_is_published_and_then_costs_nothing(
    house: House,
) -> None:
    """R117; an unchanged object costs no write."""
    house.put()
    house.start()
    await until(lambda: house.said("Published") == ("True", "Published"))
    writes = list(house.api.writes)
    assert [(verb, name) for verb, name, _ in writes] == [
        ("create", "policy-storage-compression"),
        ("patch", "policy"),
    ]
    await a_few_looks()
    assert house.api.writes == writes
    assert house.events.posted == [("policy", "Published")]
    assert house.counts.results == ["created"]


async def test_nothing_begins_before_it_is_known_what_there_is(house: House) -> None:
    """R127: else the younger of two could publish first."""
    house.monitor.seen(house.put())
    await a_few_looks()
    assert house.api.writes == []
    house.start()
    await until(lambda: house.said("Published")[0] == "True")


async def test_of_two_for_one_etcd_the_older_publishes_whichever_is_heard_of_first(
    house: House,
) -> None:
    """R127: both are valid; when the older goes, the younger may."""
    status = {"clusterID": f"{7:016x}", "observedGeneration": 1}
    for name, hour in (("younger", 11), ("older", 10), ("youngest", 12)):
        obj = house.put(name, NOTHING | REF, creationTimestamp=f"2026-11-30T{hour}:00:00Z")
        obj["status"] = dict(status)
    house.start()
    await until(lambda: house.said("Published", "younger") == ("False", "Conflict"))
    await until(lambda: house.said("Published", "youngest") == ("False", "Conflict"))
    await until(lambda: house.said("Published", "older") == ("True", "Published"))
    assert house.maps == ["older-storage-compression"]
    assert house.said("Valid", "younger")[0] == "True"
    del house.api.objects[COMPRESSIONS.plural, "ns", "older"]
    house.monitor.gone("uid-older")
    await until(lambda: house.said("Published", "younger") == ("True", "Published"))
    assert house.said("Published", "youngest") == ("False", "Conflict")


async def test_two_that_are_not_for_one_etcd_do_not_meet(house: House) -> None:
    for number, name in enumerate(("one", "two")):
        obj = house.put(name, NOTHING | REF)
        obj["status"] = {"clusterID": f"{number:016x}", "observedGeneration": 1}
    house.put("three")
    house.start()
    await until(
        lambda: all(house.said("Published", n)[0] == "True" for n in ("one", "two", "three"))
    )


async def test_an_etcd_that_was_never_reached_is_told_and_nothing_is_written(house: House) -> None:
    house.put(spec=KEP_SAMPLE | REF)
    house.start()
    await until(lambda: house.said("Published") == ("Unknown", "Bootstrapping"))
    assert house.said("Audited") == ("False", "Bootstrapping")
    house.clusters.error = ClusterNotFound("there is no EtcdConnection ns/etcd")
    await until(lambda: house.said("Audited") == ("False", "ClusterNotFound"))
    house.clusters.error = Forbidden("get etcdconnections: no")
    await until(lambda: house.said("Audited") == ("False", "Forbidden"))
    assert house.maps == []


async def test_a_change_is_followed_and_a_fault_leaves_the_file_as_it_is(house: House) -> None:
    """R125; an earlier ConfigMap is left."""
    obj = house.put()
    house.start()
    await until(lambda: house.said("Published")[0] == "True")
    first = house.api.config_map["data"]
    obj = house.put(spec=entry(algorithm="None", minSize=63), generation=2, uid="uid-policy")
    house.monitor.seen(obj)
    await until(lambda: house.said("Valid") == ("False", "InvalidSpec"))
    assert house.said("Published") == ("False", "InvalidSpec")
    assert house.api.config_map["data"] == first
    obj = house.put(spec=entry(algorithm="None", minSize=64), generation=3, uid="uid-policy")
    house.monitor.seen(obj)
    await until(lambda: house.said("Valid") == ("True", "Valid"))
    assert house.api.config_map["data"] != first
    assert ("policy", "InvalidSpec") in house.events.posted


async def test_what_somebody_changed_is_put_right_and_told(house: House) -> None:
    house.put()
    house.start()
    await until(lambda: house.said("Published")[0] == "True")
    right = dict(house.api.config_map["data"])
    house.api.config_map["data"] = {"storage-compression.yaml": "resources: []"}
    await until(lambda: ("policy", "ConfigMapRestored") in house.events.posted)
    assert house.api.config_map["data"] == right
    assert house.counts.results == ["created", "restored"]


async def test_secrets_are_warned_of_by_one_event_also_across_a_restart(house: House) -> None:
    """R121."""
    house.put(spec=entry(resources=["secrets"]))
    house.start()
    await until(lambda: house.said("Valid") == ("True", "SecretsSelected"))
    await a_few_looks()
    assert house.events.posted.count(("policy", "SecretsSelected")) == 1
    again = House()
    again.api = house.api
    again.monitor = CompressionMonitor(
        again.api,  # type: ignore[arg-type]
        again.clusters,  # type: ignore[arg-type]
        again.events,  # type: ignore[arg-type]
        FakeFence(),
        FakeClock(),
        instrumentation=again.counts,
        pace=CompressionPace(interval=0.01, retry=0.01),
    )
    again.start()
    running = asyncio.create_task(again.monitor.run())
    await a_few_looks()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert again.events.posted == []


async def test_an_api_that_is_away_takes_nothing_and_is_caught_up_with(house: House) -> None:
    house.api.outages = 25
    house.put()
    house.start()
    await until(lambda: house.said("Published")[0] == "True")
    assert house.events.posted == [("policy", "Published")]


async def test_one_that_is_being_deleted_is_left_to_the_garbage_collector(house: House) -> None:
    """Its ConfigMap may be gone already, and is not made again."""
    house.put(deletionTimestamp="2026-11-30T12:00:00Z")
    house.start()
    await a_few_looks()
    assert house.api.writes == []


async def test_what_was_found_out_of_an_older_spec_is_not_said_of_a_newer(house: House) -> None:
    house.put()

    def change() -> None:
        house.api.disturb = lambda: None
        house.put(spec=entry(minSize=63), generation=2, uid="uid-policy")

    house.api.disturb = change
    house.start()
    await until(lambda: house.said("Valid")[0])
    assert house.said("Valid") == ("False", "InvalidSpec")
    assert [verb for verb, _, _ in house.api.writes] == ["create", "patch"]
