"""Who is looked at, in which order, and what an object costs: without servers."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from etcdmaint.api.compression import AuditStatus
from etcdmaint.defrag.run import Severity, Target
from etcdmaint.errors import ClusterNotFound, ClusterNotReady, MemberUnreachable, WrongMember
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.kube import storage_compression_auditing, storage_compression_look
from etcdmaint.kube.client import Forbidden, NotFound
from etcdmaint.kube.resources import COMPRESSIONS, ObjectRef
from etcdmaint.kube.storage_compression import CompressionMonitor
from etcdmaint.kube.storage_compression_identity import Standing
from etcdmaint.kube.storage_compression_subject import (
    CompressionPace,
    CompressionParts,
    CountingWish,
)
from tests.unit.api.compression_cases import KEP_SAMPLE, entry
from tests.unit.kube.fakes import EPOCH, FakeClock, FakeFence
from tests.unit.kube.test_storage_compression_gate import V1_37
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


def target_at(host: str) -> Target:
    return Target(seeds=(Endpoint(host, 2379),))


class Etcds:
    """Clusters that can be: what a clusterRef leads to, who is there, and audits that tests end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets = {"etcd": target_at("a")}
        self.found: Standing | Exception = Standing(7, "")
        self.begun: list[tuple[int, int]] = []
        self.looks = self.ended = 0
        self.outcome: asyncio.Future[AuditStatus] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(storage_compression_look, "look_at", self._look_at)
        monkeypatch.setattr(storage_compression_auditing, "count_stored", self._count)

    async def find(self, namespace: str, ref: Any) -> Target:
        return self.targets[ref.name]

    async def _look_at(self, *_: Any, **__: Any) -> Standing:
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def _count(self, _: Any, __: Target, wish: CountingWish, ___: Any) -> AuditStatus:
        self.begun.append((wish.cluster_id, wish.bytes_per_second))
        try:
            return await asyncio.shield(self.outcome)
        except asyncio.CancelledError:
            self.ended += 1
            raise


class Counts:
    """Counts what is published and what is audited."""

    def __init__(self) -> None:
        self.results: list[str] = []
        self.audits: list[str] = []

    def published(self, result: str) -> None:
        self.results.append(result)

    def audited(self, result: str, seconds: float) -> None:
        self.audits.append(result)


class House:
    """A monitor with everything around it."""

    def __init__(self, etcds: Etcds | None = None, api: StoringApi | None = None) -> None:
        self.api, self.events, self.lost = api or StoringApi(), Events(), Lost()
        self.counts, self.clock = Counts(), FakeClock()
        self.monitor = CompressionMonitor(
            CompressionParts(
                api=self.api,  # type: ignore[arg-type]
                clusters=etcds or self.lost,  # type: ignore[arg-type]  # a stand-in of its shape
                events=self.events,  # type: ignore[arg-type]
                fence=FakeFence(),
                clock=self.clock,
                observer=None,
                instrumentation=self.counts,
                pace=CompressionPace(interval=0.01, retry=0.01, rpc_timeout=60.0),
            )
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

    def change(self, generation: int, spec: Any, **metadata: Any) -> None:
        """Another spec, of which the monitor hears."""
        before = self.api.objects[COMPRESSIONS.plural, "ns", "policy"]
        obj = self.put(spec=spec, generation=generation, uid=before["metadata"]["uid"], **metadata)
        obj["status"] = before.get("status", {})
        self.monitor.seen(COMPRESSIONS, obj)

    def start(self) -> None:
        self.monitor.replace(
            COMPRESSIONS,
            [
                obj
                for (plural, *_), obj in self.api.objects.items()
                if plural == COMPRESSIONS.plural
            ],
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


@contextlib.asynccontextmanager
async def running(made: House) -> AsyncIterator[House]:
    task = asyncio.create_task(made.monitor.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with running(House()) as made:
        yield made


@pytest.fixture
async def etcds(monkeypatch: pytest.MonkeyPatch) -> Etcds:
    return Etcds(monkeypatch)


@pytest.fixture
async def reaching(etcds: Etcds) -> AsyncIterator[House]:
    """A house whose etcd can be reached."""
    async with running(House(etcds)) as made:
        yield made


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  # there is nothing else to wait for
            await asyncio.sleep(0.005)


async def a_few_looks() -> None:
    """Long by the loop's timers, which the monitor's are among, and not by the clock of a busy machine."""
    for _ in range(20):
        await asyncio.sleep(0.004)


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
    house.monitor.seen(COMPRESSIONS, house.put())
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


async def test_an_end_that_nobody_has_heard_of_lets_the_younger_publish(house: House) -> None:
    """R127: a watch may miss it, and a list comes every ten minutes."""
    status = {"clusterID": f"{7:016x}", "observedGeneration": 1}
    for name, hour in (("older", 10), ("younger", 11)):
        obj = house.put(name, NOTHING | REF, creationTimestamp=f"2026-11-30T{hour}:00:00Z")
        obj["status"] = dict(status)
    house.start()
    await until(lambda: house.said("Published", "younger") == ("False", "Conflict"))
    house.put("older", NOTHING, uid="uid-of-another", creationTimestamp="2026-11-30T12:00:00Z")
    await until(lambda: house.said("Published", "younger") == ("True", "Published"))
    assert [ref.name for ref, _ in house.monitor.statuses()] == ["younger"]


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
    house.lost.error = ClusterNotFound("there is no EtcdConnection ns/etcd")
    await until(lambda: house.said("Audited") == ("False", "ClusterNotFound"))
    house.lost.error = Forbidden("get etcdconnections: no")
    await until(lambda: house.said("Audited") == ("False", "Forbidden"))
    house.lost.error = NotFound("list etcdmembers: no such kind")
    await until(lambda: house.said("Audited") == ("False", "NotFound"))
    assert house.maps == []


async def test_a_change_is_followed_and_a_fault_leaves_the_file_as_it_is(house: House) -> None:
    """R125; an earlier ConfigMap is left."""
    obj = house.put()
    house.start()
    await until(lambda: house.said("Published")[0] == "True")
    first = house.api.config_map["data"]
    obj = house.put(spec=entry(algorithm="None", minSize=63), generation=2, uid="uid-policy")
    house.monitor.seen(COMPRESSIONS, obj)
    await until(lambda: house.said("Valid") == ("False", "InvalidSpec"))
    assert house.said("Published") == ("False", "InvalidSpec")
    assert house.api.config_map["data"] == first
    obj = house.put(spec=entry(algorithm="None", minSize=64), generation=3, uid="uid-policy")
    house.monitor.seen(COMPRESSIONS, obj)
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
    again = House(api=house.api)
    again.start()
    async with running(again):
        await a_few_looks()
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


AUDITED = NOTHING | REF


def audit(cluster_id: int = 7, completed_at: datetime = EPOCH) -> AuditStatus:
    return AuditStatus(cluster_id=cluster_id, completed_at=completed_at, values=5, consistent=True)


async def test_an_audit_is_made_once_and_remembered(reaching: House, etcds: Etcds) -> None:
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: etcds.begun)
    assert reaching.said("Audited") == ("Unknown", "AuditPending")
    etcds.outcome.set_result(audit())
    await until(lambda: reaching.said("Audited") == ("True", "Consistent"))
    await a_few_looks()
    assert etcds.begun == [(7, 20 << 20)]
    assert reaching.counts.audits == ["consistent"]


@pytest.mark.parametrize(
    ("completed_at", "again"),
    [
        (EPOCH - timedelta(hours=23), False),
        (EPOCH + timedelta(seconds=200), False),
        (EPOCH - timedelta(hours=25), True),
        (EPOCH + timedelta(days=9000), True),
    ],
)
async def test_a_process_that_starts_audits_only_what_is_due(
    reaching: House, etcds: Etcds, completed_at: datetime, again: bool
) -> None:
    """By lastAudit; one of times to come would keep everybody from auditing for ever."""
    obj = reaching.put(spec=AUDITED)
    last = audit(completed_at=completed_at).to_wire()
    obj["status"] = {"clusterID": f"{7:016x}", "observedGeneration": 1, "lastAudit": last}
    reaching.start()
    await until(lambda: reaching.said("Audited") == ("True", "Consistent"))
    await a_few_looks()
    assert len(etcds.begun) == again


@pytest.mark.parametrize(
    ("changes", "ended", "begun"),
    [
        ({"spec": AUDITED | {"audit": {"interval": "0s"}}}, 1, []),
        ({"spec": AUDITED | {"audit": {"bytesPerSecond": "1Mi"}}}, 1, [(7, 1 << 20)]),
        ({"spec": NOTHING}, 1, []),
        ({"spec": AUDITED, "deletionTimestamp": "2026-11-30T12:00:00Z"}, 1, []),
        ({"spec": AUDITED | {"audit": {"interval": "1h"}}}, 0, []),
        ({"spec": entry() | REF}, 0, []),
    ],
)
async def test_an_audit_that_nobody_wants_any_more_ends(
    reaching: House, etcds: Etcds, changes: Any, ended: int, begun: Any
) -> None:
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: etcds.begun)
    reaching.change(generation=2, **changes)
    await until(lambda: etcds.ended >= ended)
    await a_few_looks()
    assert etcds.ended == ended
    assert etcds.begun == [(7, 20 << 20), *begun]
    assert reaching.counts.audits == []


async def test_an_object_that_goes_takes_its_audit_along(reaching: House, etcds: Etcds) -> None:
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: etcds.begun)
    reaching.monitor.gone("uid-policy")
    await until(lambda: etcds.ended == 1)


async def test_another_etcd_at_the_same_address_is_found_out_and_counted_once(
    reaching: House, etcds: Etcds
) -> None:
    """The audit tells before the proof of identity is looked at again."""
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: etcds.begun)
    etcds.found = Standing(8, "")
    failed, etcds.outcome = etcds.outcome, asyncio.get_running_loop().create_future()
    failed.set_exception(WrongMember("etcd cluster 8 is there now, and no longer 7"))
    await until(lambda: len(etcds.begun) == 2)
    assert etcds.begun[1][0] == 8
    etcds.outcome.set_result(audit(8))
    await until(lambda: reaching.said("Audited") == ("True", "Consistent"))
    await a_few_looks()
    assert len(etcds.begun) == 2
    assert reaching.counts.audits == ["failed", "consistent"]


async def test_what_failed_at_one_etcd_does_not_keep_another_waiting(
    reaching: House, etcds: Etcds
) -> None:
    """Nor is it said of it."""
    etcds.targets["other"] = target_at("b")
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: etcds.begun)
    failed, etcds.outcome = etcds.outcome, asyncio.get_running_loop().create_future()
    failed.set_exception(MemberUnreachable("away"))
    await until(lambda: reaching.said("Audited") == ("False", "MemberUnreachable"))
    await a_few_looks()
    assert len(etcds.begun) == 1
    etcds.targets["etcd"] = target_at("c")
    await until(lambda: len(etcds.begun) == 2)
    failed, etcds.outcome = etcds.outcome, asyncio.get_running_loop().create_future()
    failed.set_exception(MemberUnreachable("away"))
    await until(lambda: reaching.counts.audits == ["failed"] * 2)
    other = {"clusterRef": {"name": "other", "kind": "EtcdConnection"}}
    reaching.change(2, NOTHING | other)
    await until(lambda: len(etcds.begun) == 3)


async def test_a_proof_of_one_etcd_publishes_nothing_for_another(
    reaching: House, etcds: Etcds
) -> None:
    """R116: what is there now cannot be asked, so nobody knows whose it is."""
    reaching.api.version = {
        **V1_37,
        "minor": "38",
        "emulationMinor": "38",
        "minCompatibilityMinor": "38",
    }
    reaching.put(spec=entry() | REF)
    reaching.start()
    await until(lambda: reaching.said("Published") == ("True", "Published"))
    first = dict(reaching.api.config_map["data"])
    etcds.found = MemberUnreachable("away")
    etcds.targets["etcd"] = target_at("b")
    await until(lambda: reaching.said("Supported") == ("Unknown", "MemberUnreachable"))
    assert reaching.said("Published") == ("True", "Published")
    reaching.change(2, entry(minSize=64) | REF)
    await until(lambda: reaching.said("Published") == ("Unknown", "MemberUnreachable"))
    assert reaching.api.config_map["data"] == first
    etcds.found = Standing(7, "")
    await until(lambda: reaching.said("Published") == ("True", "Published"))
    assert reaching.api.config_map["data"] != first


async def test_a_file_is_not_said_to_be_for_an_etcd_that_nobody_has_reached(
    reaching: House, etcds: Etcds
) -> None:
    etcds.targets["other"] = target_at("b")
    reaching.put(spec=AUDITED)
    reaching.start()
    await until(lambda: reaching.said("Published") == ("True", "Published"))
    etcds.found = MemberUnreachable("away")
    reaching.change(2, NOTHING | {"clusterRef": {"name": "other", "kind": "EtcdConnection"}})
    await until(lambda: reaching.said("Published") == ("Unknown", "MemberUnreachable"))
    assert reaching.maps == ["policy-storage-compression"]


async def test_a_watch_that_is_late_does_not_bring_an_older_file_back(house: House) -> None:
    """R116: a status that could not be written shows a newer spec before the watch does."""
    house.start()
    older = copy.deepcopy(house.put(spec=entry(algorithm="None", minSize=64)))
    house.monitor.seen(COMPRESSIONS, copy.deepcopy(older))
    await until(lambda: house.said("Published")[0] == "True")
    newer = house.put(spec=entry(algorithm="None", minSize=65), generation=2, uid="uid-policy")
    house.monitor.seen(COMPRESSIONS, newer)
    await until(lambda: house.said("Published")[0] == "True")
    written = list(house.api.writes)
    house.monitor.seen(COMPRESSIONS, older)
    await a_few_looks()
    assert house.api.writes == written


async def test_a_list_that_is_older_than_the_watch_takes_nothing_away(house: House) -> None:
    """The API is asked; whoever is really gone is found out without a list."""
    house.start()
    house.monitor.seen(COMPRESSIONS, house.put())
    await until(lambda: house.said("Published")[0] == "True")
    house.monitor.replace(COMPRESSIONS, [])
    await a_few_looks()
    assert len(house.monitor.statuses()) == 1
    house.monitor.seen(
        COMPRESSIONS, house.put(generation=2, deletionTimestamp="2026-11-30T12:00:00Z")
    )
    del house.api.objects[COMPRESSIONS.plural, "ns", "policy"]
    house.monitor.replace(COMPRESSIONS, [])
    await until(lambda: not house.monitor.statuses())


async def test_a_list_that_is_older_than_the_watch_brings_nothing_back(house: House) -> None:
    """No ConfigMap for what is gone, and no older spec."""
    house.start()
    gone = house.put("gone")
    del house.api.objects[COMPRESSIONS.plural, "ns", "gone"]
    older = copy.deepcopy(house.put())
    house.monitor.seen(
        COMPRESSIONS, house.put(generation=2, spec=entry(algorithm="None", minSize=64))
    )
    await until(lambda: house.said("Published")[0] == "True")
    house.monitor.replace(COMPRESSIONS, [gone, older])
    await until(lambda: len(house.monitor.statuses()) == 1)
    await a_few_looks()
    assert house.maps == ["policy-storage-compression"]
    assert house.counts.results == ["created"]


async def test_an_answer_that_is_older_than_the_watch_hides_no_change(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes the spec between the write of the status and its answer."""
    patch = house.api.patch_status

    async def slow(*given: Any) -> Any:
        answer = await patch(*given)
        monkeypatch.undo()
        house.change(2, entry(minSize=63))
        return answer

    monkeypatch.setattr(house.api, "patch_status", slow)
    house.put()
    house.start()
    await until(lambda: house.said("Valid") == ("False", "InvalidSpec"))


async def test_a_status_that_may_not_be_written_is_no_secret(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def forbid() -> None:
        if house.maps:
            raise Forbidden("patch storagecompressionconfigurations/status: no")

    house.api.disturb = forbid
    house.put()
    house.start()
    with caplog.at_level(logging.WARNING):
        await until(lambda: any("not looked after" in each.message for each in caplog.records))
