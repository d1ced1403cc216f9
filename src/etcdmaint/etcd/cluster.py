"""All members of one cluster, each over a verified channel of its own.

Where to start is a hint: the member list says who belongs to the cluster, and every address has to
prove whose it is before anything else is asked there. This module must not know what the members
are asked, and never lets one member answer for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from etcdmaint import errors
from etcdmaint.errors import ClusterNotHealthy, EtcdError, InvalidInput, MemberUnreachable
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import Identity, MemberClient, RpcObserver
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.metrics import MemberMetrics, read_metrics
from etcdmaint.etcd.session import Session
from etcdmaint.etcd.types import Header, Member, MemberStatus, format_id

# The address has to be found again. After anything else (a timeout above all) the channel stays: a
# Defragment may be waiting on it.
_LOST = (
    errors.MemberUnreachable,
    errors.ConnectionLost,
    errors.WrongMember,
    errors.NotEtcd,
)


@dataclass(frozen=True, slots=True)
class _Introduction:
    """Who answered at an address, and the member list as it knows it (a learner tells none)."""

    client: MemberClient
    header: Header
    members: tuple[Member, ...]


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
    ) -> None:
        """Only remembers: `connect` is the way to make one."""
        self._seeds = tuple(dict.fromkeys(seeds))
        self._access = access
        self._timeout = timeout
        self._observer = observer
        self._metrics_port = metrics_port
        self._metrics_at: dict[int, Endpoint] = {}
        self._members: dict[int, Member] = {}
        self._clients: dict[int, MemberClient] = {}
        self._faults: dict[int, EtcdError] = {}
        self._refreshing = asyncio.Lock()
        # A learner gives out no tokens but knows those of the voters.
        self._learners = Session(self._log_in) if access.login is not None else None
        self.cluster_id = 0

    @classmethod
    async def connect(
        cls,
        seeds: Sequence[Endpoint],
        access: Access,
        *,
        timeout: float = 5.0,
        observer: RpcObserver | None = None,
        metrics_port: int | None = None,
    ) -> Self:
        """Find the members from `seeds` and open a verified channel to each that can be reached.

        It is done within one and a half `timeout` (seconds), whoever hangs; `timeout` is also the
        members' default for each call. `metrics_port`: where members serve /metrics, if not at the
        client URL. Raises ClusterNotHealthy (`MixedClusters`) if the seeds belong to different
        clusters, and an EtcdError if none of them gives a member list. Members that cannot be
        reached are no error here: `client` says why.
        """
        if not seeds:
            raise InvalidInput("endpoints", "at least one is needed")
        cluster = cls(seeds, access, timeout=timeout, observer=observer, metrics_port=metrics_port)
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
        """Close every channel."""
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
            for endpoint in _advertised(member)[0]:
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
            asked = {m.id: group.create_task(ask(m)) for m in self.members}
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
            if seconds <= 0:
                break
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
            answers = await self._ask_members()
            lists = [answer for answer in answers.values() if isinstance(answer, _Introduction)]
            lists = [answer for answer in lists if answer.members]
            lost = [lost for lost, answer in answers.items() if isinstance(answer, _LOST)]
            await self._forget(lost)
            if lists:
                await self._adopt(_newest(lists), self._deadline(0.5), {})
            else:
                await self._start()

    def _deadline(self, share: float) -> float:
        return asyncio.get_running_loop().time() + self._timeout * share

    def _member_client(
        self, endpoint: Endpoint, identity: Identity | None = None, session: Session | None = None
    ) -> MemberClient:
        return MemberClient(
            endpoint,
            self._access,
            timeout=self._timeout,
            observer=self._observer,
            identity=identity,
            session=session,
        )

    async def _start(self) -> None:
        deadline = self._deadline(1.0)
        clients = [self._member_client(seed) for seed in self._seeds]
        try:
            answers = await self._ask_seeds(clients)
            met = [answer for answer in answers if isinstance(answer, _Introduction)]
            self._one_cluster(met)
            lists = [answer for answer in met if answer.members]
            if not lists:
                raise _why_none(answers)
            spare = {answer.header.member_id: answer.client for answer in met}
            await self._adopt(_newest(lists), max(deadline, self._deadline(0.5)), spare)
        finally:
            used = set(map(id, self._clients.values()))
            await _close(client for client in clients if id(client) not in used)

    async def _ask_seeds(self, clients: Sequence[MemberClient]) -> list[_Introduction | EtcdError]:
        """Everybody's answer; once one has told a list, the silent ones get half the time."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_introduce(client)) for client in clients]
            pending = set(tasks)
            half = self._deadline(0.5)
            told = False
            while pending:
                left = half - asyncio.get_running_loop().time() if told else None
                if left is not None and left <= 0:
                    break
                done, pending = await asyncio.wait(
                    pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                told = told or any(_tells(task.result()) for task in done)
            for task in pending:
                task.cancel()
        return [task.result() for task in tasks if not task.cancelled()]

    def _one_cluster(self, met: Sequence[_Introduction]) -> None:
        found = {answer.header.cluster_id: answer.client.endpoint for answer in met}
        if len(found) > 1:
            where = ", ".join(f"{format_id(cluster)} at {at}" for cluster, at in found.items())
            raise ClusterNotHealthy(
                "MixedClusters", f"the endpoints lead to different clusters: {where}"
            )
        for cluster_id, place in found.items():
            if self.cluster_id not in (0, cluster_id):
                raise errors.WrongMember(
                    f"{place} is now of cluster {format_id(cluster_id)}, "
                    f"not {format_id(self.cluster_id)}",
                    endpoint=str(place),
                )

    async def _ask_members(self) -> dict[int, _Introduction | EtcdError]:
        async with asyncio.TaskGroup() as group:
            asked = {
                member_id: group.create_task(_introduce(client))
                for member_id, client in self._clients.items()
            }
        return {member_id: task.result() for member_id, task in asked.items()}

    async def _adopt(
        self, told: _Introduction, deadline: float, spare: Mapping[int, MemberClient]
    ) -> None:
        self.cluster_id = told.header.cluster_id
        self._members = {member.id: member for member in told.members}
        await self._forget([gone for gone in self._clients if gone not in self._members])
        self._faults.clear()
        missing = [member for member in told.members if member.id not in self._clients]
        # Voters first: a learner's token comes from one of them.
        for learners in (False, True):
            async with asyncio.TaskGroup() as group:
                for member in missing:
                    if member.is_learner is learners:
                        group.create_task(self._reach(member, deadline, spare.get(member.id)))

    async def _forget(self, member_ids: Sequence[int]) -> None:
        await _close([self._clients.pop(member_id) for member_id in member_ids])

    async def _reach(self, member: Member, deadline: float, spare: MemberClient | None) -> None:
        """Keep a client of this member, or the reason why there is none.

        Its own addresses go before a seed that has answered with its ID: that may be a balancer,
        and lead elsewhere the next time.
        """
        if not member.started:
            self._faults[member.id] = MemberUnreachable(f"member {member} has not started yet")
            return
        identity = Identity(self.cluster_id, member.id)
        endpoints, faults = _advertised(member)
        if spare is not None and spare.endpoint in endpoints:
            endpoints = []
        session = self._learners if member.is_learner else None
        clients = [self._member_client(endpoint, identity, session) for endpoint in endpoints]
        winner = await self._first_proven(clients, member, deadline, faults)
        await _close(client for client in clients if client is not winner)
        if winner is None and spare is not None:
            spare.identity = identity
            winner = spare
        if winner is not None:
            self._clients[member.id] = winner
            return
        kind = errors.TLSFailed if _all_tls(faults) else MemberUnreachable
        self._faults[member.id] = kind(
            f"member {member} cannot be reached: "
            + ("; ".join(map(str, faults)) or "no client URL"),
            code="UNAVAILABLE",
            endpoint=str(endpoints[0]) if endpoints else "",
        )

    async def _first_proven(
        self,
        clients: Sequence[MemberClient],
        member: Member,
        deadline: float,
        faults: list[Exception],
    ) -> MemberClient | None:
        async def prove(client: MemberClient) -> MemberClient | None:
            seconds = max(deadline - asyncio.get_running_loop().time(), 0.001)
            try:
                # What a member answers even while it is being defragmented; a learner has no list.
                if member.is_learner:
                    await client.status(timeout=seconds)
                else:
                    await client.member_list(linearizable=False, timeout=seconds)
            except EtcdError as fault:
                faults.append(fault)
                return None
            return client

        async with asyncio.TaskGroup() as group:
            pending = {group.create_task(prove(client)) for client in clients}
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (proven := task.result()) is not None:
                        for other in pending:
                            other.cancel()
                        return proven
        return None

    async def _log_in(self, deadline: float) -> str:
        fault: EtcdError = MemberUnreachable("no voter is reachable to log in at")
        for member_id, client in self._clients.items():
            if self._members[member_id].is_learner:
                continue
            try:
                left = deadline - asyncio.get_running_loop().time()
                return await client.authenticate(timeout=left)
            except EtcdError as refused:
                fault = refused
        raise fault

    def _fault(self, member_id: int) -> EtcdError:
        known = self._faults.get(member_id)
        if known is not None:
            return known
        return MemberUnreachable(f"no member {format_id(member_id)} in this cluster")

    def _metrics_places(self, member_id: int) -> list[Endpoint]:
        member = self._members.get(member_id)
        client = self._clients.get(member_id)
        places = [client.endpoint] if client is not None else []
        places += _advertised(member)[0] if member is not None else []
        if self._metrics_port is not None:
            plain = [Endpoint(place.host, self._metrics_port) for place in places]
            secure = [replace(place, secure=True) for place in plain]
            places = [*(secure if self._access.tls is not None else []), *plain]
        if (known := self._metrics_at.get(member_id)) in places:
            places.insert(0, known)
        return list(dict.fromkeys(places))


async def _introduce(client: MemberClient) -> _Introduction | EtcdError:
    try:
        try:
            header, members = await client.member_list(linearizable=False)
        except errors.LearnerRefused:
            return _Introduction(client, (await client.status()).header, ())
        return _Introduction(client, header, members)
    except EtcdError as fault:
        return fault


def _tells(answer: _Introduction | EtcdError) -> bool:
    return isinstance(answer, _Introduction) and bool(answer.members)


def _newest(lists: Sequence[_Introduction]) -> _Introduction:
    """A member that is cut off or lags may have an old list; its raft term tells."""
    return max(lists, key=lambda answer: answer.header.raft_term)


def _why_none(answers: Iterable[_Introduction | EtcdError]) -> EtcdError:
    faults = [answer for answer in answers if isinstance(answer, EtcdError)]
    # What somebody who did answer says is worth more than who is away.
    telling = [fault for fault in faults if not isinstance(fault, (*_LOST, errors.RPCTimeout))]
    if telling or len(faults) == 1:
        return (telling or faults)[0]
    if not faults:
        return errors.LearnerRefused("only learners answer: name an endpoint of a voter as well")
    kind = errors.TLSFailed if _all_tls(faults) else MemberUnreachable
    return kind("no endpoint answers: " + "; ".join(map(str, faults)), code="UNAVAILABLE")


def _all_tls(faults: Sequence[Exception]) -> bool:
    return bool(faults) and all(isinstance(fault, errors.TLSFailed) for fault in faults)


def _advertised(member: Member) -> tuple[list[Endpoint], list[Exception]]:
    endpoints: list[Endpoint] = []
    faults: list[Exception] = []
    for url in member.client_urls:
        try:
            endpoints.append(Endpoint.parse(url, field=f"advertised URL {url[:200]!r}"))
        except InvalidInput as fault:
            faults.append(fault)
    return list(dict.fromkeys(endpoints)), faults


async def _close(clients: Iterable[MemberClient]) -> None:
    for client in clients:
        await client.close()
