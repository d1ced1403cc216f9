"""Beside a real kube-apiserver, in one election: neither can tell the other from its own kind."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from etcdmaint.compaction.election import KEY, Result, State, request, run_round
from etcdmaint.etcd import messages
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.proto import etcd_pb2 as pb
from tests.cluster.recording import recording
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.member import Member
from tests.controlplane.processes import Server
from tests.etcd.compacting import QUICK, compacted_to, compacting, read_key, until

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("beside-apiserver")]

THEIRS = 1.0
INTERVALS = 10
HICCUP = 5.0
"""What a busy machine may add to a gap; an election that is lost would add a whole interval to many."""
PATIENT = replace(QUICK, rpc_timeout=5.0)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server that compacts its own etcd every second."""
    folder = tmp_path_factory.mktemp("beside")
    with ControlPlane(folder, compaction_interval=f"{THEIRS:g}s") as plane:
        yield plane


@dataclass
class Seen:
    """Every version of the key, and its value."""

    versions: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    @property
    def number(self) -> int:
        """How many elections were seen."""
        return len(self.versions)


@asynccontextmanager
async def watching(member: Member) -> AsyncIterator[Seen]:
    seen = Seen()
    async with MemberClient(Endpoint.parse(member.client_url), Access()) as client:

        async def note() -> None:
            async with client.watch(KEY) as watch:
                async for batch in watch:
                    for event in batch.events:
                        seen.versions.append(event.kv.version)
                        seen.values.append(int(event.kv.value))

        task = asyncio.create_task(note())
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def compactions(member: Member) -> list[tuple[int, float]]:
    """Every compaction that etcd has carried out, and when in seconds, by its own log."""
    lines = member.log_text().split("\n")[:-1]
    entries = [json.loads(line) for line in lines if '"finished scheduled compaction"' in line]
    return [(e["compact-revision"], datetime.fromisoformat(e["ts"]).timestamp()) for e in entries]


async def carried_out(member: Member, elections: Sequence[int]) -> list[float]:
    """When etcd compacted for each of these elections, told by their values: once for each."""
    first, last = elections[0], elections[-1]
    await until(lambda: last in dict(compactions(member)), "the last is carried out", 30)
    done = [(revision, at) for revision, at in compactions(member) if first <= revision <= last]
    assert [revision for revision, _ in done] == list(elections)
    return [at for _, at in done]


def check_regular(times: Sequence[float], interval: float) -> None:
    """None is lost, and there are no two in one interval."""
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # kube-apiserver's ticks keep to the clock: one that comes late makes the next gap shorter, by as much.
    hurried = [
        gap
        for before, gap in itertools.pairwise(gaps)
        if gap <= interval * 0.6 and before + gap <= interval * 1.9
    ]
    assert hurried == [], gaps
    assert statistics.median(gaps) < max(interval, THEIRS) * 1.8, gaps
    assert max(gaps) < interval * 2 + HICCUP, gaps


def complaints(plane: ControlPlane) -> list[str]:
    return [
        line
        for line in plane.server.log_text().splitlines()
        if "compact failed" in line or "failed to parse compact revision" in line
    ]


@asynccontextmanager
async def kubectl_watches(plane: ControlPlane, namespace: str) -> AsyncIterator[Server]:
    """`kubectl get --watch` for as long as the `with` lasts."""
    command = plane.kubectl_command(
        "get", "configmaps", "--namespace", namespace, "--watch", "--output=name"
    )
    server = Server("kubectl", command, plane.folder / f"{namespace}.log")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def write(plane: ControlPlane, namespace: str, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)


@pytest.mark.parametrize(("ours", "name"), [(1.0, "equal"), (2.0, "twice"), (0.5, "half")])
async def test_exactly_one_compaction_in_each_interval_of_the_shorter(
    beside: ControlPlane, ours: float, name: str
) -> None:
    """C6, C7, C9, C30: whoever wins; kube-apiserver's cache and kubectl's watch go on through it."""
    (member,) = beside.etcd.members
    shorter = min(ours, THEIRS)
    namespace = f"beside-{name}"
    await asyncio.to_thread(beside.api.create_namespace, namespace)
    async with (
        compacting(beside.etcd, ours, pace=PATIENT) as (compactor, counts),
        watching(member) as seen,
        kubectl_watches(beside, namespace) as kubectl,
    ):
        await until(lambda: seen.number >= 3, "the election goes on")
        begun, first_round = seen.number, len(counts.rounds)
        for number in range(INTERVALS):
            await asyncio.to_thread(write, beside, namespace, f"object-{number}")
            await until(lambda n=number: seen.number >= begun + n + 1, "the next", 30)
        versions, values = tuple(seen.versions), tuple(seen.values)
        # None of our rounds finds that nobody has won since the last one.
        assert len(counts.rounds) - first_round <= len(values) - begun + 2
        assert versions == tuple(range(versions[0], versions[0] + len(versions)))
        assert list(values) == sorted(set(values)), "compacted to one revision twice"
        check_regular(await carried_out(member, values[begun - 2 :]), shorter)
        assert not {"error", "already_compacted"} & set(counts.rounds[first_round:])
        await until(lambda: compactor.compact_revision == seen.values[-1], "both know", 30)
        await until(lambda: compacted_to(member) >= seen.values[-2], "etcd as well", 30)
        await until(lambda: kubectl.log_text().count("configmap/object-") >= INTERVALS, "told", 60)
        listed = await asyncio.to_thread(
            beside.api.request,
            "GET",
            f"/api/v1/namespaces/{namespace}/configmaps?resourceVersion=0",
        )
        assert sum("object-" in item["metadata"]["name"] for item in listed["items"]) == INTERVALS
    assert complaints(beside) == []


async def test_both_say_the_same_bytes(tmp_path: Path) -> None:
    """C1, C2, C16: every Txn and Compact of kube-apiserver's compactor, as it went over the wire."""
    with EtcdCluster(tmp_path / "etcd", size=1) as etcd:
        (member,) = etcd.members
        async with recording(member.client_url) as theirs, recording(member.client_url) as ours:
            behind = cast(EtcdCluster, SimpleNamespace(client_urls=[theirs.url], tls=None))
            plane = ControlPlane(tmp_path / "plane", etcd=behind, compaction_interval="200ms")
            try:
                await asyncio.to_thread(plane.start)
                await until(lambda: read_key(member).version >= 8, "eight rounds", 60)
            finally:
                await asyncio.to_thread(plane.stop)
            async with MemberClient(Endpoint.parse(ours.url), Access()) as client:
                key = read_key(member)
                held = await run_round(client, State(key.version, key.head))
                assert held.result is Result.WON
                lost = await run_round(client, State(1, 1))
                assert lost.result is Result.LOST

    said = theirs.messages()
    elections = [body for body in said if KEY in body and body[:1] == b"\x0a" and len(body) > 50]
    assert len(elections) >= 8
    states = {}
    for body in elections:
        txn = pb.TxnRequest.FromString(body)
        state = State(txn.compare[0].version, int(txn.success[0].request_put.value))
        assert txn_bytes(state) == body
        states[state.version] = state
    # With the last of them, it may have been ended before it could ask for the compaction.
    del states[max(states)]
    for state in states.values():
        if state.revision:
            assert pb.CompactionRequest(revision=state.revision).SerializeToString() in said
    # Ours, in the order in which they went over the wire: the swap, the compaction, the lost swap.
    assert ours.messages() == [
        txn_bytes(State(key.version, key.head)),
        pb.CompactionRequest(revision=key.head).SerializeToString(),
        txn_bytes(State(1, 1)),
    ]


def txn_bytes(state: State) -> bytes:
    condition, then, otherwise = request(state)
    message = messages.txn_request(tuple(condition), tuple(then), tuple(otherwise))
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("victim", ["ours", "theirs"])
async def test_when_the_last_winner_is_killed_the_other_goes_on(
    tmp_path: Path, victim: str
) -> None:
    """C7: kill -9; the other loses no more than the one round in which it learns of the last winner."""
    interval = 1.5
    with EtcdCluster(tmp_path / "etcd", size=1) as etcd:
        (member,) = etcd.members
        plane = ControlPlane(tmp_path / "plane", etcd=etcd, compaction_interval=f"{interval:g}s")
        arguments = [sys.executable, "-m", "tests.etcd.contender", member.client_url, str(interval)]
        contender = Server("contender", arguments, tmp_path / "contender.log")
        # Whoever is there first wins on, as long as both wait equally long.
        first = contender if victim == "ours" else plane.server
        rounds: list[str] = []
        try:
            async with AsyncExitStack() as stack:
                await asyncio.to_thread(contender.start if victim == "ours" else plane.start)
                await until(lambda: read_key(member).version >= 2, "the first wins", 60)
                if victim == "ours":
                    await asyncio.to_thread(plane.start)
                else:
                    us = compacting(etcd, interval, pace=PATIENT)
                    rounds = (await stack.enter_async_context(us))[1].rounds
                seen = await stack.enter_async_context(watching(member))
                await until(lambda: seen.number >= 3, "both take part", 60)
                if victim == "theirs":
                    await until(lambda: rounds, "so do we", 60)
                await asyncio.to_thread(first.kill)
                before, held = seen.number, len(rounds)
                await until(lambda: seen.number >= before + 3, "the other goes on", 60)
                values = tuple(seen.values)
                await until(lambda: values[-1] in dict(compactions(member)), "carried out", 60)
                after = rounds[held:]
            # Whoever was killed may not have come to its last compaction.
            times = [at for revision, at in compactions(member) if revision >= values[before - 1]]
            # The gap is longer than one interval and shorter than two, but for what a machine adds.
            assert interval * 0.75 < times[1] - times[0] < interval * 2 + HICCUP
            check_regular(times[1:], interval)
            if victim == "ours":
                assert complaints(plane) == []
            else:
                assert after[after.index("won") :].count("won") == len(after) - after.index("won")
                assert after.count("lost") <= 1
        finally:
            contender.kill()
            await asyncio.to_thread(plane.stop)


async def test_three_more_contenders_and_none_is_lost(beside: ControlPlane) -> None:
    """C7: at one-second intervals, a quarter of a minute here; two minutes are in tests/bench."""
    (member,) = beside.etcd.members
    async with (
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, one),
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, two),
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, three),
        watching(member) as seen,
    ):
        await until(lambda: seen.number >= 3, "the election goes on", 30)
        begun, first_rounds = seen.number, [len(each.rounds) for each in (one, two, three)]
        await until(lambda: seen.number >= begun + 15, "a quarter of a minute", 120)
        versions, values = tuple(seen.versions), tuple(seen.values)
        for each, first_round in zip((one, two, three), first_rounds, strict=True):
            assert len(each.rounds) - first_round <= len(values) - begun + 2
        times = await carried_out(member, values[begun - 2 :])
    assert versions == tuple(range(versions[0], versions[0] + len(versions)))
    check_regular(times, THEIRS)
    assert all("error" not in counts.rounds for counts in (one, two, three))
    assert complaints(beside) == []
