"""The rest of the fault matrix, on real etcd: credentials, names of elsewhere, leases, doubt.

test_sweep_faults.py has the members, the alarms and the deaths.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.defrag.lock import SLOT_KEY
from etcdmaint.defrag.run import Ending, LeaderTransfer, MemberTurn, Outcome, Phase
from etcdmaint.etcd.access import Access, Tls
from etcdmaint.etcd.client import MemberClient
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.gateway import UNANSWERED, text
from tests.controlplane.member import Member
from tests.controlplane.stalling import hold_snapshot
from tests.controlplane.tls import ClusterTls

from .dialling import Calls, logged_in, seeds, tls_of
from .sweeping import MIB, QUICK, World, counts, request, row, run, sweep, target

pytestmark = pytest.mark.etcd

VERSIONS = ("3.7", "3.6", "3.5")


@pytest.fixture
def tls(tmp_path: Path) -> ClusterTls:
    """Without client certificates: their names would be users."""
    return ClusterTls(tmp_path / "tls", client_certificates=False)


def fragmented(factory: EtcdClusterFactory, **options: object) -> EtcdCluster:
    cluster = factory(**options)
    cluster.fill(bytes_live=5 * MIB, bytes_deleted=10 * MIB)
    for member in cluster.members:
        assert member.id  # asked now, since a member in flight does not tell
    return cluster


async def eventually(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for a condition while the sweep goes on in the same loop."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - the condition is etcd's, not this loop's
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {timeout} s: {what}") from None


def by_name(cluster: EtcdCluster, name: str) -> Member:
    return next(member for member in cluster.members if member.name == name)


class TestCredentials:
    @pytest.mark.parametrize("version", ["3.7", "3.5"])
    async def test_a_token_that_expires_before_every_step_costs_a_login_and_nothing_else(
        self, etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
    ) -> None:
        """D50: in mid-sweep, and the Defragment that met it ran once."""
        cluster = fragmented(etcd_cluster_factory, tls=tls, version=version)
        cluster.enable_auth()
        root = {"name": "root", "password": "root"}
        door = cluster.leader().gateway
        world = World(target(cluster, access=logged_in(tls, "root", "root")))
        world.on_turn = lambda _: door.post("/v3/auth/user/changepw", root)  # type: ignore[assignment]
        calls = Calls()
        result = await run(world, observer=calls)
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]
        assert calls.count("Authenticate") >= 6
        assert calls.seen.count(("Defragment", "OK")) == 3

    @pytest.mark.parametrize("version", VERSIONS)
    async def test_each_way_of_not_being_let_in_has_its_own_word(
        self, etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls, version: str
    ) -> None:
        """D50: no user, wrong password, not root; only the last one ends a run by itself."""
        cluster = etcd_cluster_factory(tls=tls, version=version, size=1)
        cluster.enable_auth(users={"jane": ("jane's-secret", ["reader"])})
        for access, reason in (
            (Access(tls=Tls(tls.authority.certificate)), "AuthenticationRequired"),
            (logged_in(tls, "root", "not-her-secret"), "AuthenticationFailed"),
            (logged_in(tls, "jane", "jane's-secret"), "PermissionDenied"),
        ):
            patience = None if reason == "PermissionDenied" else 0.0
            world = World(target(cluster, access=access))
            async with asyncio.timeout(60):
                result = await run(
                    world, request(rule=replace(request().rule, all=True), patience=patience)
                )
            assert result.ending is Ending.FAILED
            assert result.state.phase is Phase.FAILED
            assert result.state.reason == reason
            told = str([*world.states, *world.events])
            assert "secret" not in told
        assert counts(cluster) == [0]
        assert not cluster.etcdctl("get", SLOT_KEY.decode()).stdout

    async def test_a_member_that_advertises_http_is_waited_for_and_never_dialled(
        self, etcd_cluster_factory: EtcdClusterFactory, tls: ClusterTls
    ) -> None:
        """D51: with TLS configured; the message has the URL that was advertised."""
        cluster = etcd_cluster_factory(
            tls=tls,
            advertise=lambda name, url: [url.replace("https", "http") if name == "etcd-2" else url],
        )
        world = World(target(cluster, access=Access(tls=tls_of(tls))))
        result = await run(world, request(patience=0.0))
        assert result.ending is Ending.DEFERRED
        assert cluster.members[2].client_url.replace("https", "http") in result.state.message
        assert counts(cluster) == [0, 0, 0]


class Application:
    """Writes all the time through every member, and keeps a lease alive: who asks the next after 1 s."""

    KEY = b"application/alive"

    def __init__(self, cluster: EtcdCluster, ttl: int) -> None:
        self._doors = [member.gateway for member in cluster.members]
        answer = self._doors[0].post("/v3/lease/grant", {"TTL": ttl})
        self.lease = int(answer["ID"])
        self._doors[0].put(self.KEY, b"yes", lease=self.lease)
        self.acknowledged: set[bytes] = set()
        self._end = threading.Event()
        # One writer a member: the one that is busy stops its own writer only.
        self._threads = [
            threading.Thread(target=self._write, args=(number,))
            for number in range(len(self._doors))
        ]
        self._threads.append(threading.Thread(target=self._keep))

    def _write(self, number: int) -> None:
        count = 0
        while not self._end.wait(0.02):
            key = b"application/%d/%d" % (number, count := count + 1)
            with contextlib.suppress(*UNANSWERED):
                body = {"key": text(key), "value": text(key)}
                self._doors[number].post("/v3/kv/put", body, 8.0)
                self.acknowledged.add(key)

    def _keep(self) -> None:
        door = 0
        while not self._end.wait(0.3):
            try:
                body = {"ID": str(self.lease)}
                self._doors[door].post("/v3/lease/keepalive", body, 1.0)
            except UNANSWERED:
                door = (door + 1) % len(self._doors)

    @property
    def alive(self) -> bool:
        return self._doors[0].get_value(self.KEY) is not None

    def lost(self) -> set[bytes]:
        """What was acknowledged and is not there."""
        return {key for key in self.acknowledged if self._doors[0].get_value(key) != key}

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in self._threads:
                thread.join()


class TestLeadership:
    @pytest.mark.parametrize(
        ("transfer", "survives"), [(LeaderTransfer.ALWAYS, True), (LeaderTransfer.NEVER, False)]
    )
    async def test_a_lease_outlives_the_leaders_turn_only_if_leadership_was_moved(
        self, etcd_cluster_factory: EtcdClusterFactory, transfer: LeaderTransfer, survives: bool
    ) -> None:
        """D31: a turn of 12 s, a lease of 6 s, and writes; nothing that was acknowledged is lost."""
        cluster = fragmented(etcd_cluster_factory)
        leader = cluster.leader()
        application = Application(cluster, ttl=6)
        world = World(target(cluster))
        with contextlib.ExitStack() as stalled:

            def stall(turn: MemberTurn) -> None:
                if turn.row.in_flight and turn.row.name == leader.name:
                    stalled.enter_context(hold_snapshot(leader))
                    timer = threading.Timer(12.0, stalled.close)
                    timer.start()

            world.on_turn = stall
            with application.at_work():
                result = await run(world, request(leader_transfer=transfer))
        assert result.ending is Ending.DONE, result.state.message
        assert counts(cluster) == [1, 1, 1]
        assert application.alive is survives
        assert len(application.acknowledged) > 100
        assert application.lost() == set()

    async def test_where_leadership_cannot_be_moved_the_leader_is_done_in_place(
        self, etcd_cluster_factory: EtcdClusterFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """D31: tried once; the member that was to lead dies just then, and comes back."""
        cluster = fragmented(etcd_cluster_factory)
        leader = cluster.leader()
        chosen: list[Member] = []
        move = MemberClient.move_leader

        async def moved(self: MemberClient, target_id: int, **how: Any) -> None:
            chosen.append(cluster.member_by_id(target_id))
            chosen[-1].kill()
            try:
                await move(self, target_id, **how)
            finally:
                await asyncio.to_thread(chosen[-1].start)

        monkeypatch.setattr(MemberClient, "move_leader", moved)
        world = World(replace(target(cluster), seeds=tuple(seeds(cluster))))
        result = await run(world, timing=replace(QUICK, transfer_timeout=1.0))
        assert result.ending is Ending.DONE, result.state.message
        assert len(chosen) == 1
        assert world.reasons.count("LeadershipTransferFailed") == 1
        assert "LeadershipTransferred" not in world.reasons
        assert cluster.leader() is leader
        assert world.turns[-1].row.name == leader.name
        assert f"could not be moved to {chosen[0].name}" in row(result, leader.name).message
        # The one that died counts anew; its log has both lives.
        finished = [member.log_text().count("finished defragmenting") for member in cluster.members]
        assert finished == [1, 1, 1]


class TestDoubt:
    async def test_a_process_that_takes_over_a_run_in_doubt_goes_on_waiting_and_touches_nobody(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D33, D36: the turn has timed out, its process has died, and the member is still at it."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=tuple(seeds(cluster))))
        first: list[Member] = []
        with contextlib.ExitStack() as stalled:

            def stall(turn: MemberTurn) -> None:
                if not first:
                    first.append(by_name(cluster, turn.row.name))
                    stalled.enter_context(hold_snapshot(first[0]))

            world.on_turn = stall
            timing = replace(QUICK, member_timeout=lambda _: 2.0, rpc_timeout=0.5)
            running = asyncio.create_task(run(world, timing=timing))
            await eventually(
                lambda: bool(world.states) and world.states[-1].reason == "WaitingForMember",
                "the run waits for the member",
            )
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            world.epoch = "2-second"
            left = world.states[-1]
            assert row_of(left, first[0]).reason == "RPCTimeout"
            heir = asyncio.create_task(sweep(world, timing=timing).run(left))
            await asyncio.sleep(2.0)
            assert not heir.done()
            assert first[0].defragmenting()
            others = [member for member in cluster.members if member is not first[0]]
            assert [member.defrag_count() for member in others] == [0, 0]
        result = await heir
        assert result.ending is Ending.FAILED
        assert (row(result, first[0].name).outcome, row(result, first[0].name).reason) == (
            Outcome.FAILED,
            "RPCTimeout",
        )
        assert first[0].defrag_count() == 1
        assert [member.defrag_count() for member in others] == [0, 0]
        assert not cluster.etcdctl("get", SLOT_KEY.decode()).stdout

    async def test_a_member_that_dies_in_its_turn_is_waited_for_until_it_is_back_and_idle(
        self, etcd_cluster_factory: EtcdClusterFactory
    ) -> None:
        """D33, D34: the outcome is unknown, so nobody else is touched and nothing is sent again."""
        cluster = fragmented(etcd_cluster_factory)
        world = World(replace(target(cluster), seeds=tuple(seeds(cluster))))
        first: list[Member] = []
        with contextlib.ExitStack() as stalled:

            def stall(turn: MemberTurn) -> None:
                if not first:
                    first.append(by_name(cluster, turn.row.name))
                    stalled.enter_context(hold_snapshot(first[0]))

            world.on_turn = stall
            running = asyncio.create_task(run(world, timing=replace(QUICK, rpc_timeout=0.5)))
            await eventually(lambda: bool(first) and first[0].defragmenting(), "it defragments")
            first[0].kill()
            await eventually(
                lambda: world.states[-1].reason == "WaitingForMember", "the run waits for it"
            )
        await asyncio.sleep(1.0)
        assert not running.done()
        others = [member for member in cluster.members if member is not first[0]]
        assert [member.defrag_count() for member in others] == [0, 0]
        await asyncio.to_thread(first[0].start)
        result = await running
        assert result.ending is Ending.FAILED
        lost = row(result, first[0].name)
        assert (lost.outcome, lost.reason) == (Outcome.FAILED, "ConnectionLost")
        assert counts(cluster) == [0, 0, 0]
        assert world.reasons.count("MemberFailed") == 1


def row_of(state: object, member: Member) -> object:
    return next(row for row in state.rows if row.name == member.name)
