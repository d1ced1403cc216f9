"""What compaction costs, and what it does beside a kube-apiserver: `python -m tests.bench.bench_compaction`.

Counted on etcd's side where it can be. 200 etcds do not fit on one machine: a stand-in answers for them (see
`standin`), and eight real ones are measured beside it. All of it takes about a quarter of an hour; a name as
argument (`costs`, `time`, `beside`, `million`, `many`) runs one part.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from etcdmaint.compaction.election import KEY, State, request, run_round
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.cluster.objects import connect, install_crds, path_of
from tests.cluster.operators import OperatorProcess, grant_in
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.gateway import text
from tests.controlplane.member import Member
from tests.controlplane.processes import wait_until
from tests.etcd.compacting import QUICK, compacted_to, compacting, read_key, rpcs, until

from .bench_operator import cpu_seconds, resident, standins
from .page import table

ROUNDS = 200
BESIDE = 60.0
TOGETHER = 120.0
INTERVAL = 300.0
PATIENT = replace(QUICK, rpc_timeout=5.0)


def client_of(member: Member) -> MemberClient:
    return MemberClient(Endpoint.parse(member.client_url), Access())


async def costs(folder: Path) -> str:
    """RPCs of a round, by etcd's own count."""
    methods = ("Txn", "Compact", "Range", "Put")
    with EtcdCluster(folder, size=1) as cluster:
        (member,) = cluster.members
        async with client_of(member) as client:
            state = (await run_round(client, State())).state

            async def counted(what: str, begin: State, rounds: int) -> list[str]:
                before = [rpcs(member, method) for method in methods]
                held = begin
                for _ in range(rounds):
                    done = await run_round(client, held)
                    held = done.state if what == "won" else begin
                after = [rpcs(member, method) for method in methods]
                spent = [(b - a) / rounds for a, b in zip(before, after, strict=True)]
                return [what, *(f"{count:g}" for count in spent)]

            rows = [await counted("won", state, 20), await counted("lost", State(), 20)]
    return table(["round", *methods], rows)


async def round_time(folder: Path) -> str:
    """A round of the winner beside the two bare RPCs, taking turns."""
    with EtcdCluster(folder, size=3) as cluster:
        leader = cluster.leader()
        async with client_of(leader) as client:
            state = (await run_round(client, State())).state
            rounds, bare = [], []
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                state = (await run_round(client, state)).state
                rounds.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                answer = await client.txn(*request(state))
                await client.compact(state.revision)
                bare.append(time.perf_counter() - begun)
                state = State(state.version + 1, answer.header.revision)
    ours, theirs = (statistics.median(values) * 1000 for values in (rounds, bare))
    rows = [["a round that is won", f"{ours:.2f}"], ["Txn and Compact alone", f"{theirs:.2f}"]]
    return table(
        ["what", f"median of {ROUNDS}, ms"], [*rows, ["difference", f"{ours - theirs:.2f}"]]
    )


@asynccontextmanager
async def swaps(member: Member) -> AsyncIterator[list[float]]:
    """When each version of the key came."""
    at: list[float] = []

    async def note(client: MemberClient) -> None:
        async with client.watch(KEY) as watch:
            async for batch in watch:
                at.extend(time.monotonic() for _ in batch.events)

    async with client_of(member) as client, asyncio.TaskGroup() as group:
        task = group.create_task(note(client))
        yield at
        task.cancel()


async def beside(folder: Path) -> str:
    """One election with a real kube-apiserver: equal, twice, half; and three of ours at once."""
    rows = []
    with ControlPlane(folder, compaction_interval="1s") as plane:
        (member,) = plane.etcd.members
        for what, ours, count, seconds in (
            ("equal", 1.0, 1, BESIDE),
            ("ours twice as long", 2.0, 1, BESIDE),
            ("ours half as long", 0.5, 1, BESIDE),
            ("three of ours, all equal", 1.0, 3, TOGETHER),
        ):
            async with contextlib.AsyncExitStack() as stack:
                counts = [
                    (await stack.enter_async_context(compacting(plane.etcd, ours, pace=PATIENT)))[1]
                    for _ in range(count)
                ]
                at = await stack.enter_async_context(swaps(member))
                await asyncio.sleep(3)
                version, compacts = read_key(member).version, rpcs(member, "Compact")
                won, begun = sum(c.rounds.count("won") for c in counts), len(at)
                await asyncio.sleep(seconds)
                elections = read_key(member).version - version
                done = rpcs(member, "Compact") - compacts
                gaps = [b - a for a, b in itertools.pairwise(at[begun:])]
                errors = sum(c.rounds.count("error") for c in counts)
                ours_won = sum(c.rounds.count("won") for c in counts) - won
            behind = read_key(member).head - compacted_to(member)
            rows.append(
                [
                    what,
                    f"{seconds:.0f}",
                    str(elections),
                    str(done),
                    str(ours_won),
                    f"{min(gaps):.2f} to {max(gaps):.2f}",
                    str(errors),
                    str(behind),
                ]
            )
        complaints = plane.server.log_text().count("compact failed")
    head = ["beside a kube-apiserver at 1 s", "seconds", "elections", "Compact RPCs", "won by us"]
    head += ["gaps, s", "our errors", "revisions kept"]
    return table(head, rows) + f"\n\ncompaction errors in kube-apiserver's log: {complaints}"


async def million(folder: Path) -> str:
    """A million revisions, and the compaction of them while rounds go on every half second."""
    with EtcdCluster(folder, size=1) as cluster:
        (member,) = cluster.members

        def write() -> None:
            puts = [
                {"requestPut": {"key": text(b"k%d" % n), "value": text(b"v" * 20)}}
                for n in range(125)
            ]
            for _ in range(8000):
                member.gateway.post("/v3/kv/txn", {"success": puts})

        await asyncio.to_thread(write)
        head = read_key(member).head
        async with (
            compacting(cluster, 0.5, pace=PATIENT) as (compactor, counts),
            swaps(member) as at,
        ):
            begun = time.monotonic()
            await until(lambda: compactor.compact_revision >= head, "the key says so", 60)
            advertised = time.monotonic() - begun
            finished = "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_sum"
            keys = "etcd_debugging_mvcc_db_compaction_keys_total"
            await until(lambda: member.metric(keys) >= 999_000, "carried out", 300)
            done = time.monotonic() - begun
            gaps = [b - a for a, b in itertools.pairwise(at)]
        rows = [
            ["compacted by the key after", f"{advertised:.1f} s"],
            ["carried out by etcd after", f"{done:.1f} s"],
            ["revisions dropped", f"{member.metric(keys):.0f}"],
            ["etcd's time for it", f"{member.metric(finished) / 1000:.1f} s"],
            ["rounds meanwhile, errors", f"{len(counts.rounds)}, {counts.rounds.count('error')}"],
            ["longest gap between rounds", f"{max(gaps):.2f} s"],
        ]
    return table(["a million revisions", ""], rows)


async def many(folder: Path) -> str:
    """200 clusters every five minutes: an operator that compacts them beside one that does not."""
    rows = []
    with ExitStack() as stack:
        real = []
        for number in range(8):
            cluster = EtcdCluster(folder / f"etcd-{number}", size=1)
            cluster.folder.mkdir()
            stack.enter_context(cluster)
            real += cluster.client_urls
        plane = stack.enter_context(ControlPlane(folder / "plane"))
        install_crds(plane)
        for what, count in (("8 real etcds", 0), ("200 stand-ins", 200)):
            with ExitStack() as inner:
                urls = inner.enter_context(standins(count)) if count else real
                rows += await asyncio.to_thread(two_operators, plane, folder, urls, what, inner)
    return table(["clusters", "compacted", "resident MiB", f"CPU %, over {INTERVAL:.0f} s"], rows)


def two_operators(
    plane: ControlPlane, folder: Path, urls: list[str], what: str, stack: ExitStack
) -> list[list[str]]:
    """The same clusters, connected twice: by one operator that compacts and by one that does not."""
    operators = {}
    for name, spec in (("no", {}), ("5m", {"compaction": {"interval": "5m"}})):
        namespace = f"bench-{len(urls)}-{name}"
        plane.api.create_namespace(namespace)
        grant_in(plane, namespace, namespace)
        for number, url in enumerate(urls):
            connect(plane, namespace, [url], name=f"etcd-{number}", **spec)
        operator = OperatorProcess(
            folder,
            plane,
            user=namespace,
            lease_namespace=namespace,
            namespaces=[namespace],
            # A busy machine must not cost anybody the Lease in the middle.
            lease_duration=137.0,
            renew_deadline=107.0,
            retry_period=26.0,
        )
        stack.callback(operator.kill)
        operator.start()
        operator.wait_leading(120.0)
        operators[name] = operator

        def measured(namespace: str = namespace, name: str = name) -> bool:
            items = plane.api.request("GET", path_of("etcdconnections", namespace))["items"]
            wanted = {"Reachable"} if name == "no" else {"Reachable", "Compacting"}
            return all(
                wanted <= {c["type"] for c in item.get("status", {}).get("conditions", ())}
                for item in items
            )

        wait_until(measured, "every connection is measured", timeout=300.0, pause=1.0)
    before = {name: cpu_seconds(operator.server.pid) for name, operator in operators.items()}
    # One interval has exactly one round of each cluster in it.
    time.sleep(INTERVAL)
    return [
        [
            what,
            name,
            f"{resident(operator.server.pid):.0f}",
            f"{(cpu_seconds(operator.server.pid) - before[name]) / INTERVAL * 100:.2f}",
        ]
        for name, operator in operators.items()
    ]


PARTS: dict[str, Callable[[Path], Coroutine[Any, Any, str]]] = {
    "costs": costs,
    "time": round_time,
    "beside": beside,
    "million": million,
    "many": many,
}


def main() -> None:
    """Print the tables."""
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(PARTS[name](Path(folder))), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
