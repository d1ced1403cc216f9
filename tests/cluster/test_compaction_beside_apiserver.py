"""Beside a real kube-apiserver, in one election: neither can tell the other from its own kind."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
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
from tests.etcd.compacting import QUICK, compacted_to, compacting, read_key, rpcs, until

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("beside-apiserver")]

THEIRS = 1.0
INTERVALS = 10
HICCUP = 1.0
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
    """Every version of the key, and when it came."""

    at: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.at)]


@asynccontextmanager
async def watching(member: Member) -> AsyncIterator[Seen]:
    seen = Seen()
    async with MemberClient(Endpoint.parse(member.client_url), Access()) as client:

        async def note() -> None:
            async with client.watch(KEY) as watch:
                async for batch in watch:
                    for event in batch.events:
                        seen.at.append(time.monotonic())
                        seen.versions.append(event.kv.version)
                        seen.values.append(int(event.kv.value))

        task = asyncio.create_task(note())
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


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
        await until(lambda: len(seen.at) >= 3, "the election goes on")
        begun, compacts = len(seen.at), rpcs(member, "Compact")
        first_round = len(counts.rounds)
        for number in range(INTERVALS):
            await asyncio.to_thread(write, beside, namespace, f"object-{number}")
            await until(lambda n=number: len(seen.at) >= begun + n + 1, "the next", 10)  # type: ignore[misc]
        elections = len(seen.at) - begun
        done = rpcs(member, "Compact") - compacts
        # One may just be between its swap and its compaction.
        assert abs(done - elections) <= 1
        assert seen.versions == list(range(seen.versions[0], seen.versions[0] + len(seen.at)))
        assert seen.values == sorted(set(seen.values)), "compacted to one revision twice"
        gaps = seen.gaps[begun:]
        # When a round is seen depends on how busy the machine is; two in one interval would show.
        assert min(gaps) > shorter * 0.6
        assert max(gaps) < shorter * 2 + HICCUP, gaps
        assert "error" not in counts.rounds[first_round:]
        await until(lambda: compactor.compact_revision == seen.values[-1], "both know", 5)
        await until(lambda: compacted_to(member) >= seen.values[-2], "etcd as well", 5)
        await until(lambda: kubectl.log_text().count("configmap/object-") >= INTERVALS, "told", 10)
        listed = await asyncio.to_thread(
            beside.api.request,
            "GET",
            f"/api/v1/namespaces/{namespace}/configmaps?resourceVersion=0",
        )
        assert sum("object-" in item["metadata"]["name"] for item in listed["items"]) == INTERVALS
        print(
            f"\n{name}: {elections} elections, {done} compactions, gaps {min(gaps):.2f} to "
            f"{max(gaps):.2f} s, ours {counts.rounds[first_round:].count('won')}"
        )
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
                await until(lambda: read_key(member).version >= 8, "eight rounds")
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
    for body in elections:
        txn = pb.TxnRequest.FromString(body)
        state = State(txn.compare[0].version, int(txn.success[0].request_put.value))
        assert txn_bytes(state) == body
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
    """C7: kill -9; the gap is longer than one interval and shorter than two."""
    interval = 1.5
    with EtcdCluster(tmp_path / "etcd", size=1) as etcd:
        (member,) = etcd.members
        plane = ControlPlane(tmp_path / "plane", etcd=etcd, compaction_interval=f"{interval:g}s")
        arguments = [sys.executable, "-m", "tests.etcd.contender", member.client_url, str(interval)]
        contender = Server("contender", arguments, tmp_path / "contender.log")
        try:
            # Whoever is there first wins on, as long as both wait equally long.
            first, second = (contender, plane.server)[:: 1 if victim == "ours" else -1]
            await asyncio.to_thread(plane.start if first is plane.server else contender.start)
            await until(lambda: read_key(member).version >= 2, "the first wins", 30)
            await asyncio.to_thread(plane.start if second is plane.server else contender.start)
            async with watching(member) as seen:
                await until(lambda: len(seen.at) >= 3, "both take part")
                first.kill()
                before = len(seen.at)
                await until(lambda: len(seen.at) >= before + 3, "the other goes on", 30)
            gaps = seen.gaps[before - 1 :]
            assert interval < gaps[0] < 2 * interval, gaps
            # When a round is seen depends on how busy the machine is; that none is missing or double does not.
            assert all(interval * 0.75 < gap < interval * 1.75 for gap in gaps[1:]), gaps
            if victim == "ours":
                assert complaints(plane) == []
        finally:
            contender.kill()
            await asyncio.to_thread(plane.stop)


async def test_three_more_contenders_and_none_is_lost(beside: ControlPlane) -> None:
    """C7: at one-second intervals, a quarter of a minute here; two minutes are in tests/bench."""
    (member,) = beside.etcd.members
    seconds = 15.0
    async with (
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, one),
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, two),
        compacting(beside.etcd, 1.0, pace=PATIENT) as (_, three),
        watching(member) as seen,
    ):
        await until(lambda: len(seen.at) >= 2, "the election goes on")
        begun, compacts, start = len(seen.at), rpcs(member, "Compact"), time.monotonic()
        await until(lambda: time.monotonic() - start > seconds, "time has passed", seconds + 5)
        elections, gaps = len(seen.at) - begun, seen.gaps[begun:]
        done = rpcs(member, "Compact") - compacts
    assert abs(done - elections) <= 1
    assert seen.versions == list(range(seen.versions[0], seen.versions[0] + len(seen.versions)))
    assert min(gaps) > 0.9
    assert max(gaps) < 2.0 + HICCUP
    assert seconds / 1.3 <= elections <= seconds + 1
    assert all("error" not in counts.rounds for counts in (one, two, three))
    assert complaints(beside) == []
