"""All members of one cluster, each over a verified channel of its own.

Where to start is a hint: the member list says who belongs to the cluster, and every address has to
prove whose it is before anything else is asked there. This module must not know what the members
are asked, and never lets one member answer for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

from etcdmaint.errors import EtcdError, InvalidInput, MemberUnreachable
from etcdmaint.etcd import discovery
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import Identity, MemberClient, RpcObserver
from etcdmaint.etcd.discovery import Introduction
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.metrics import MemberMetrics, read_metrics
from etcdmaint.etcd.session import Session
from etcdmaint.etcd.types import Member, MemberStatus, format_id


class ClusterClient:
    """Made by `connect`; an async context manager that closes every channel at its end."""

    def __init__(
        self,
        seeds: Sequence[Endpoint],
        access: Access,
        *,
        timeout: float,
        observer: RpcObserver | None,
        metrics_port: int | None,
        keepalive: float = 10.0,
    ) -> None:
        """Only remembers: `connect` is the way to make one."""
        self.cluster_id = 0
        self._seeds = tuple(dict.fromkeys(seeds))
        self._access = access
        self._timeout = timeout
        self._observer = observer
        self._metrics_port = metrics_port
        self._keepalive = keepalive
        self._metrics_at: dict[int, Endpoint] = {}
        self._members: dict[int, Member] = {}
        self._clients: dict[int, MemberClient] = {}
        self._faults: dict[int, EtcdError] = {}
        self._refreshing = asyncio.Lock()
        self._closed = False
        # A learner gives out no tokens but knows those of the voters.
        self._learners = Session(self._log_in, "the voters")

    @classmethod
    async def connect(
        cls,
        seeds: Sequence[Endpoint],
        access: Access,
        *,
        timeout: float = 5.0,
        observer: RpcObserver | None = None,
        metrics_port: int | None = None,
        keepalive: float = 10.0,
    ) -> Self:
        """Find the members from `seeds` and open a verified channel to each that can be reached.

        It is done within one and a half `timeout` (seconds), whoever hangs; `timeout` is also the
        members' default for each call. `metrics_port`: where members serve /metrics, if not at the
        client URL; `keepalive` as `MemberClient` has it. Raises ClusterNotHealthy (`MixedClusters`)
        if the seeds belong to different clusters, and an EtcdError if none of them gives a member
        list. Members that cannot be reached are no error here: `client` says why.
        """
        if not seeds:
            raise InvalidInput("endpoints", "at least one is needed")
        cluster = cls(
            seeds,
            access,
            timeout=timeout,
            observer=observer,
            metrics_port=metrics_port,
            keepalive=keepalive,
        )
        try:
            await cluster._start()
        except BaseException:
            await cluster.close()
            raise
        return cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel; a refresh that is under way opens no other."""
        self._closed = True
        clients, self._clients = self._clients, {}
        await _close(clients.values())

    @property
    def members(self) -> tuple[Member, ...]:
        """The member list as it was at the last `connect` or `refresh`, in etcd's order."""
        return tuple(self._members.values())

    def client(self, member_id: int) -> MemberClient:
        """The client of one member.

        Raises MemberUnreachable naming each of its addresses and what is wrong there.
        """
        client = self._clients.get(member_id)
        if client is None:
            raise self._fault(member_id)
        return client

    def endpoint(self, member_id: int) -> Endpoint:
        """Where the member is reached, else where it says that it can be; else MemberUnreachable."""
        if (client := self._clients.get(member_id)) is not None:
            return client.endpoint
        if (member := self._members.get(member_id)) is not None:
            for endpoint in discovery.advertised(member)[0]:
                return endpoint
        raise self._fault(member_id)

    async def statuses(self, timeout: float | None = None) -> dict[int, MemberStatus | EtcdError]:
        """Ask all members at once: each one's status, or why there is none.

        Back within `timeout` whoever hangs. Every answer is from the member it stands for:
        anybody else's becomes a WrongMember.
        """

        async def ask(member: Member) -> MemberStatus | EtcdError:
            try:
                return await self.client(member.id).status(timeout=timeout)
            except EtcdError as fault:
                return fault

        async with asyncio.TaskGroup() as group:
            asked = {member.id: group.create_task(ask(member)) for member in self.members}
        return {member_id: task.result() for member_id, task in asked.items()}

    async def metrics(self, member_id: int, timeout: float | None = None) -> MemberMetrics | None:
        """The member's own /metrics, or None where nobody answers with this member's ID.

        It needs no channel to the member. On a `metrics_port` plain HTTP is tried too: members
        commonly serve it without TLS there, and nothing secret is sent.
        """
        places = self._metrics_places(member_id)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._timeout if timeout is None else timeout)
        for tried, endpoint in enumerate(places):
            seconds = (deadline - loop.time()) / (len(places) - tried)
            try:
                found = await read_metrics(endpoint, self._access, timeout=seconds)
            except EtcdError:
                continue
            if found.server_id == member_id:
                self._metrics_at[member_id] = endpoint
                return found
        return None

    async def refresh(self) -> None:
        """Read the member list afresh: drop who is gone, reach who is new or could not be reached.

        A member whose channel works keeps it. Takes at most one and a half of the timeout, two and
        a half where no member answers and the seeds are asked again. Raises as `connect` does, and
        WrongMember if the seeds now lead to another cluster.
        """
        async with self._refreshing:
            try:
                await self._refresh()
            finally:
                if self._closed:
                    await self.close()

    async def _refresh(self) -> None:
        async with asyncio.TaskGroup() as group:
            asked = {
                member_id: group.create_task(discovery.introduce(client))
                for member_id, client in self._clients.items()
            }
        answers = {member_id: task.result() for member_id, task in asked.items()}
        await self._forget(i for i, answer in answers.items() if isinstance(answer, discovery.LOST))
        if told := discovery.lists(list(answers.values())):
            await self._adopt(discovery.newest(told), self._deadline(0.5))
        else:
            await self._start()

    async def _start(self) -> None:
        if self._closed:
            raise MemberUnreachable("the connection to this cluster is closed")
        deadline = self._deadline(1.0)
        clients = [self._new_client(seed) for seed in self._seeds]
        try:
            answers = await discovery.introduce_all(clients, grace=self._timeout / 2)
            discovery.check_one_cluster(answers, self.cluster_id)
            told = discovery.lists(answers)
            if not told:
                raise discovery.why_no_list(answers)
            await self._adopt(
                discovery.newest(told),
                max(deadline, self._deadline(0.5)),
                [answer for answer in answers if isinstance(answer, Introduction)],
            )
        finally:
            kept = list(self._clients.values())
            await _close(client for client in clients if client not in kept)

    def _new_client(
        self, endpoint: Endpoint, identity: Identity | None = None, session: Session | None = None
    ) -> MemberClient:
        return MemberClient(
            endpoint,
            self._access,
            timeout=self._timeout,
            observer=self._observer,
            identity=identity,
            session=session,
            keepalive=self._keepalive,
        )

    def _deadline(self, share: float) -> float:
        return asyncio.get_running_loop().time() + self._timeout * share

    async def _adopt(
        self, told: Introduction, deadline: float, met: Sequence[Introduction] = ()
    ) -> None:
        """Take over a member list and reach everybody on it, perhaps by a seed already `met`."""
        self.cluster_id = told.header.cluster_id
        self._members = {member.id: member for member in told.members}
        await self._forget(self._clients.keys() - self._members.keys())
        self._faults.clear()
        spare = {answer.header.member_id: answer.client for answer in met}
        missing = [member for member in told.members if member.id not in self._clients]
        # Voters first: a learner's token comes from one of them.
        for learners in (False, True):
            async with asyncio.TaskGroup() as group:
                for member in missing:
                    if member.is_learner is learners:
                        group.create_task(self._reach(member, deadline, spare.get(member.id)))

    async def _forget(self, member_ids: Iterable[int]) -> None:
        await _close([self._clients.pop(gone) for gone in member_ids if gone in self._clients])

    async def _reach(self, member: Member, deadline: float, spare: MemberClient | None) -> None:
        """Keep a client of this member, or the reason why there is none.

        Its own addresses go before a seed that has answered with its ID: that may be a balancer,
        and lead elsewhere the next time.
        """
        if not member.started:
            self._faults[member.id] = MemberUnreachable(f"member {member} has not started yet")
            return
        identity = Identity(self.cluster_id, member.id)
        endpoints, unusable = discovery.advertised(member)
        if spare is not None and spare.endpoint in endpoints:
            endpoints = []
        session = self._learners if member.is_learner else None
        clients = [self._new_client(endpoint, identity, session) for endpoint in endpoints]
        proven = None
        try:
            proven, faults = await discovery.first_proven(
                clients, learner=member.is_learner, deadline=deadline
            )
        finally:
            await _close(client for client in clients if client is not proven)
        if proven is None and spare is not None:
            spare.expect(identity)
            proven = spare
        if proven is not None:
            self._clients[member.id] = proven
            return
        self._faults[member.id] = discovery.unreachable(
            f"member {member} cannot be reached",
            [*unusable, *faults],
            endpoint=str(endpoints[0]) if endpoints else "",
        )

    async def _log_in(self, deadline: float) -> str:
        for client in voters_of(self).values():
            left = deadline - asyncio.get_running_loop().time()
            try:
                return await client.authenticate(timeout=left)
            except EtcdError as refused:
                fault = refused
                if not fault.retryable:
                    break
        raise fault

    def _fault(self, member_id: int) -> EtcdError:
        return self._faults.get(member_id) or MemberUnreachable(
            f"no member {format_id(member_id)} in this cluster"
        )

    def _metrics_places(self, member_id: int) -> list[Endpoint]:
        member = self._members.get(member_id)
        client = self._clients.get(member_id)
        places = [client.endpoint] if client is not None else []
        places += discovery.advertised(member)[0] if member is not None else []
        if self._metrics_port is not None:
            plain = [Endpoint(place.host, self._metrics_port) for place in places]
            secure = [replace(place, secure=True) for place in plain]
            places = [*(secure if self._access.tls is not None else []), *plain]
        elif self._access.tls is not None:
            places = [place for place in places if place.secure]
        if (known := self._metrics_at.get(member_id)) in places:
            places.insert(0, known)
        return list(dict.fromkeys(places))


def voters_of(cluster: ClusterClient) -> dict[int, MemberClient]:
    """Every voter that can be asked, by its ID: at least one, else why there is none is raised."""
    found: dict[int, MemberClient] = {}
    failure: EtcdError | None = None
    for member in cluster.members:
        if not member.is_learner:
            try:
                found[member.id] = cluster.client(member.id)
            except EtcdError as error:
                failure = error
    if not found:
        raise failure or MemberUnreachable("the cluster has no voter that can be asked")
    return found


async def _close(clients: Iterable[MemberClient]) -> None:
    for client in clients:
        await client.close()
