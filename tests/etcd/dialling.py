"""From the harness's clusters to what the client under test is given; and waiting for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from etcdmaint.etcd.access import Access, Login, Tls
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.member import Member
from tests.controlplane.tls import ClusterTls


def at(member: Member) -> Endpoint:
    """Where a member really listens."""
    return Endpoint.parse(member.client_url)


def seeds(cluster: EtcdCluster) -> list[Endpoint]:
    """Where all members really listen."""
    return [at(member) for member in cluster.members]


def tls_of(tls: ClusterTls, **changes: Any) -> Tls:
    """The client's half of a cluster's TLS; `changes` replaces parts."""
    parts = {
        "ca": tls.authority.certificate,
        "certificate": tls.client.certificate,
        "key": tls.client.key,
    }
    return Tls(**(parts | changes))


def logged_in(tls: ClusterTls, user: str, password: str) -> Access:
    """A password over TLS, without a client certificate (whose name would be a user, too)."""
    return Access(tls=Tls(tls.authority.certificate), login=Login(user, password))


def client_of(member: Member, access: Access | None = None, **options: Any) -> MemberClient:
    """A client of one member where it really listens."""
    return MemberClient(at(member), access or Access(), **options)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait for a condition; fail if it does not come true."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def thread_states(member: Member) -> list[str]:
    """One letter for each thread, as the kernel tells it."""
    stats = Path(f"/proc/{member.pid}/task").glob("*/stat")
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in stats]


async def freeze(member: Member) -> None:
    """Pause a member, and wait until the last of its threads has stopped."""
    member.pause()

    async def still() -> bool:
        return set(thread_states(member)) == {"T"}

    await until(still)


class Calls:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def rpc(self, method: str, code: str, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append((method, code))

    def count(self, method: str) -> int:
        return sum(seen == method for seen, _ in self.seen)
