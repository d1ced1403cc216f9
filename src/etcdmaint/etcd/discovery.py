"""Who is at an address: asking one or many, and judging their answers.

Nothing here is remembered; `cluster` does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from etcdmaint import errors
from etcdmaint.errors import ClusterNotHealthy, EtcdError, InvalidInput, MemberUnreachable
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import Header, Member, format_id

# The address has to be found again. After anything else (a timeout above all) the channel stays: a
# Defragment may be waiting on it.
LOST = (MemberUnreachable, errors.ConnectionLost, errors.WrongMember, errors.NotEtcd)


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who answered at an address, and the member list as it knows it (a learner tells none)."""

    client: MemberClient
    header: Header
    members: tuple[Member, ...]


Answer = Introduction | EtcdError


async def introduce(client: MemberClient) -> Answer:
    """Ask for the member list in the way that is answered even in a defragmentation."""
    try:
        try:
            header, members = await client.member_list(linearizable=False)
        except errors.LearnerRefused:
            return Introduction(client, (await client.status()).header, ())
        return Introduction(client, header, members)
    except EtcdError as fault:
        return fault


async def introduce_all(clients: Sequence[MemberClient], *, grace: float) -> list[Answer]:
    """Everybody's answer, but for those who are silent `grace` seconds after the start.

    They are waited for (as long as their own timeout is) only while nobody has told a list.
    """
    loop = asyncio.get_running_loop()
    enough = loop.time() + grace
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(introduce(client)) for client in clients]
        pending = set(tasks)
        told = False
        while pending and not (told and loop.time() >= enough):
            done, pending = await asyncio.wait(
                pending,
                timeout=enough - loop.time() if told else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            told = told or bool(lists([task.result() for task in done]))
        for task in pending:
            task.cancel()
    return [task.result() for task in tasks if not task.cancelled()]


async def first_proven(
    clients: Sequence[MemberClient], *, learner: bool, deadline: float
) -> tuple[MemberClient | None, list[EtcdError]]:
    """The first whose peer proves to be the member that it expects, and what the others met."""
    faults: list[EtcdError] = []

    async def prove(client: MemberClient) -> MemberClient | None:
        seconds = max(deadline - asyncio.get_running_loop().time(), 0.001)
        try:
            # A learner has no member list; a voter tells it even in a defragmentation.
            if learner:
                await client.status(timeout=seconds)
            else:
                await client.member_list(linearizable=False, timeout=seconds)
        except EtcdError as fault:
            faults.append(fault)
            return None
        return client

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(prove(client)) for client in clients]
        for next_done in asyncio.as_completed(tasks):
            if (proven := await next_done) is not None:
                for task in tasks:
                    task.cancel()
                return proven, faults
    return None, faults


def lists(answers: Sequence[Answer]) -> list[Introduction]:
    """The answers that come with a member list."""
    return [answer for answer in answers if isinstance(answer, Introduction) and answer.members]


def newest(told: Sequence[Introduction]) -> Introduction:
    """A member that is cut off or lags may have an old list; its raft term tells."""
    return max(told, key=lambda answer: answer.header.raft_term)


def check_one_cluster(answers: Sequence[Answer], cluster_id: int) -> None:
    """Raise where the answers are of different clusters, or not of this one (0: any)."""
    found = {
        answer.header.cluster_id: answer.client.endpoint
        for answer in answers
        if isinstance(answer, Introduction)
    }
    if len(found) > 1:
        where = ", ".join(f"{format_id(cluster)} at {at}" for cluster, at in found.items())
        raise ClusterNotHealthy("MixedClusters", f"endpoints lead to different clusters: {where}")
    for other, at in found.items():
        if cluster_id not in (0, other):
            raise errors.WrongMember(
                f"{at} is now of cluster {format_id(other)}, not {format_id(cluster_id)}",
                endpoint=str(at),
            )


def why_no_list(answers: Sequence[Answer]) -> EtcdError:
    """One error for many seeds: what somebody says who did answer is worth more than silence."""
    faults = [answer for answer in answers if isinstance(answer, EtcdError)]
    telling = [fault for fault in faults if not isinstance(fault, (*LOST, errors.RPCTimeout))]
    if telling or len(faults) == 1:
        return (telling or faults)[0]
    if not faults:
        return errors.LearnerRefused("only learners answer: name an endpoint of a voter as well")
    return unreachable("no endpoint answers", faults)


def unreachable(what: str, faults: Sequence[Exception], endpoint: str = "") -> MemberUnreachable:
    """One error that names every address tried and what was wrong there."""
    all_tls = bool(faults) and all(isinstance(fault, errors.TLSFailed) for fault in faults)
    kind = errors.TLSFailed if all_tls else MemberUnreachable
    return kind(f"{what}: {'; '.join(map(str, faults))}", code="UNAVAILABLE", endpoint=endpoint)


def advertised(member: Member) -> tuple[list[Endpoint], list[InvalidInput]]:
    """A member's own client URLs, each once, and what is wrong with the others."""
    endpoints: list[Endpoint] = []
    faults: list[InvalidInput] = []
    for url in member.client_urls:
        try:
            endpoints.append(Endpoint.parse(url, field=f"advertised URL {url[:200]!r}"))
        except InvalidInput as fault:
            faults.append(fault)
    return list(dict.fromkeys(endpoints)), faults
