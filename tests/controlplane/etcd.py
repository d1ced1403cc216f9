"""A real etcd cluster on loopback, of any version the project supports.

``with EtcdCluster(folder) as cluster`` starts three members in a second or two and leaves no
process behind. What operators meet in the field is an argument here: TLS, authentication, a quota,
several advertised URLs, an old version. What tests do to members (pause, kill, hold) is on
``Member``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from . import build, stalling
from .authentication import enable_authentication
from .filling import fill
from .gateway import UNANSWERED, Gateway, GatewayError
from .member import Member
from .ports import Ports
from .processes import Server, wait_until
from .tls import ClusterTls

# What is asked for -> the program; the first is the default.
VERSIONS = {"3.7": "etcd", "3.6": "etcd-3.6", "3.5": "etcd-3.5", "3.5.21": "etcd-3.5.21"}

# From (member name, the URL it listens on) to the URLs it tells others.
Advertise = Callable[[str, str], Sequence[str]]


class EtcdCluster:
    """``size`` members of one version in ``folder``, started by ``start`` or ``with``.

    ``data_dirs`` puts single members' data elsewhere (by index), for instance on a small tmpfs.
    ``advertise`` replaces the advertised client URLs, which need not resolve or be true.
    ``metrics_urls`` gives each member a listener for /metrics and /health without TLS.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 3,
        version: str = "3.7",
        quota_backend_bytes: int | None = None,
        tls: ClusterTls | None = None,
        advertise: Advertise | None = None,
        data_dirs: Mapping[int, Path] | None = None,
        unsafe_no_fsync: bool = True,
        metrics_urls: bool = False,
        heartbeat_ms: int = 100,
        election_ms: int = 1000,
        extra_arguments: Sequence[str] = (),
        extra_env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.version = version
        self.tls = tls
        self.members: list[Member] = []
        self._program = build.program(VERSIONS[version])
        self._advertise: Advertise = advertise or (lambda _, url: [url])
        self._data_dirs = dict(data_dirs or {})
        self._metrics_urls = metrics_urls
        self._env = {**os.environ, **(extra_env or {})}
        self._arguments = [
            f"--heartbeat-interval={heartbeat_ms}",
            f"--election-timeout={election_ms}",
            *(["--unsafe-no-fsync"] if unsafe_no_fsync else []),
            *([f"--quota-backend-bytes={quota_backend_bytes}"] if quota_backend_bytes else []),
            *(tls.server_arguments() if tls else []),
            *extra_arguments,
        ]
        self._ports = Ports()
        self._credentials: tuple[str, str] | None = None
        for _ in range(size):
            self._plan_member()
        for member in self.members:
            self._give_arguments(member, "new", self.members)

    def start(self, timeout: float = 60.0) -> Self:
        """Start every member and wait until all serve and agree on a leader."""
        try:
            for member in self.members:
                member.server.start()
            for member in self.members:
                member.wait_serving(timeout)
            self.wait_healthy(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every member at once; the data stays in ``folder``."""
        for member in self.members:
            member.kill()
        self._ports.close()

    def close(self) -> None:
        """End every member at once and throw the data away; the logs stay.

        etcd takes 64 MB a member for its log before it has written a byte, and pytest keeps the
        folders of all tests: a whole test run would fill a disk.
        """
        self.stop()
        for member in self.members:
            shutil.rmtree(member.data_dir, ignore_errors=True)

    @property
    def client_urls(self) -> list[str]:
        """Where the members really listen."""
        return [member.client_url for member in self.members]

    def leader(self, timeout: float = 30.0) -> Member:
        """The member that the answering members agree is the leader; waits for one."""
        return wait_until(self._agreed_leader, "an agreed leader", timeout)

    def followers(self) -> list[Member]:
        """Every member but the leader, learners too."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def member_by_id(self, member_id: int) -> Member:
        """The member with this id."""
        return next(member for member in self.members if member.id == member_id)

    def wait_healthy(self, timeout: float = 60.0) -> None:
        """Wait until each answering voter can serve a linearizable read and all agree."""
        self.leader(timeout)
        for member in self.members:
            if member.answers:
                member.server.wait_until(partial(_healthy, member), "healthy", timeout)

    def etcdctl(
        self,
        *arguments: str,
        member: Member | None = None,
        check: bool = True,
        timeout: float = 60.0,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run etcdctl against one member, or against all of them."""
        return subprocess.run(
            self.etcdctl_command(*arguments, member=member),
            check=check,
            timeout=timeout,
            input=stdin,
            capture_output=True,
            text=True,
            env={n: v for n, v in os.environ.items() if not n.startswith("ETCDCTL_")},
        )

    def etcdctl_command(self, *arguments: str, member: Member | None = None) -> list[str]:
        """The whole command, for a caller that runs it in its own way."""
        endpoints = member.client_url if member else ",".join(self.client_urls)
        user = ["--user=" + ":".join(self._credentials)] if self._credentials else []
        tls = self.tls.etcdctl_arguments() if self.tls else []
        return [str(build.program("etcdctl")), f"--endpoints={endpoints}", *tls, *user, *arguments]

    def add_member(self, *, learner: bool = True, timeout: float = 60.0) -> Member:
        """Add one member and start it. etcd refuses until its peers were healthy for 5 s."""
        running = list(self.members)
        member = self._plan_member()
        body = {"peerURLs": [member.peer_url], "isLearner": learner}
        door = self.leader().gateway

        def added() -> bool:
            try:
                door.post("/v3/cluster/member/add", body)
            except GatewayError as error:
                if "unhealthy" in error.message or "not ready" in error.message:
                    return False
                raise
            return True

        try:
            wait_until(added, "etcd takes a new member", timeout)
        except BaseException:
            self.members.remove(member)
            raise
        if learner:
            member.gateway.log_in_at = door
        self._give_arguments(member, "existing", [*running, member])
        member.start(timeout)

        def listed_by(other: Member) -> bool:
            answer = other.gateway.post("/v3/cluster/member/list", {"linearizable": False})
            return member.name in {row.get("name") for row in answer["members"]}

        for other in running:
            if other.answers and not other.status().is_learner:
                # Each applies by itself what the new one says of itself.
                wait_until(partial(listed_by, other), f"{other.name} lists it", timeout)
        return member

    def enable_auth(
        self,
        root_password: str = "root",
        users: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    ) -> None:
        """Turn authentication on; ``users`` maps a name to its password and its roles.

        A role other than root is given the right to read and write every key. From then on the
        cluster's own calls are root's.
        """
        enable_authentication(self.leader().gateway, root_password, users or {})
        self._credentials = ("root", root_password)
        for member in self.members:
            member.gateway.credentials = self._credentials
        self.wait_healthy()

    def fill(
        self,
        *,
        bytes_live: int = 0,
        bytes_deleted: int = 0,
        value_size: int = 100_000,
        prefix: str = "fill/",
        compact: bool = True,
    ) -> None:
        """Write data, delete a part of it and compact: what a defragmentation then gives back.

        About ``bytes_live`` stay in use and ``bytes_deleted`` become free pages, on every member
        when this returns: each compacts by itself, and only a commit updates what it says of it.
        """
        fill(
            self.leader().gateway,
            bytes_live=bytes_live,
            bytes_deleted=bytes_deleted,
            value_size=value_size,
            prefix=prefix.encode(),
            compact=compact,
        )
        if not compact:
            return

        def freed() -> bool:
            try:
                revision = self.leader().gateway.put(f"{prefix}commit".encode(), b"")
                statuses = [member.status() for member in self.members]
            except UNANSWERED:
                # An election came in between, or a member is busy with its compaction.
                return False
            return all(
                s.revision >= revision and s.db_size - s.db_size_in_use >= bytes_deleted * 3 // 4
                for s in statuses
            )

        wait_until(freed, "compacted on every member", timeout=60.0, pause=0.1)

    def hold_snapshot(self, member: Member) -> AbstractContextManager[None]:
        """Within the ``with``, a Defragment sent to the member does not end; see ``stalling``."""
        return stalling.hold_snapshot(member)

    def _plan_member(self) -> Member:
        """A member with its ports and folder, not yet with its arguments."""
        index = len(self.members)
        name = f"etcd-{index}"
        scheme = "https" if self.tls else "http"
        client_url = f"{scheme}://127.0.0.1:{self._ports.take()}"
        member = Member(
            name=name,
            client_url=client_url,
            peer_url=f"http://127.0.0.1:{self._ports.take()}",
            data_dir=self._data_dirs.get(index, self.folder / name),
            server=Server(name, [self._program], self.folder / f"{name}.log", self._env),
            gateway=Gateway(client_url, self.tls.client_context() if self.tls else None),
            advertised=tuple(self._advertise(name, client_url)),
            metrics_url=(f"http://127.0.0.1:{self._ports.take()}" if self._metrics_urls else None),
        )
        member.gateway.credentials = self._credentials
        self.members.append(member)
        return member

    def _give_arguments(self, member: Member, state: str, peers: Sequence[Member]) -> None:
        metrics = [f"--listen-metrics-urls={member.metrics_url}"] if member.metrics_url else []
        member.server.arguments = [
            str(self._program),
            f"--name={member.name}",
            f"--data-dir={member.data_dir}",
            f"--listen-client-urls={member.client_url}",
            f"--advertise-client-urls={','.join(member.advertised)}",
            f"--listen-peer-urls={member.peer_url}",
            f"--initial-advertise-peer-urls={member.peer_url}",
            f"--initial-cluster={','.join(f'{peer.name}={peer.peer_url}' for peer in peers)}",
            f"--initial-cluster-state={state}",
            *metrics,
            *self._arguments,
        ]

    def _agreed_leader(self) -> Member | None:
        """The leader, if every answering member names the same one."""
        named = set[int]()
        for member in self.members:
            if member.answers:
                try:
                    named.add(member.status(1.0).leader)
                except UNANSWERED:
                    # In a defragmentation, or still starting: it has no say.
                    continue
        if len(named) != 1 or 0 in named:
            return None
        return next((m for m in self.members if m.answers and m.id in named), None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _healthy(member: Member) -> bool:
    """Whether it serves what is its to serve: a learner no linearizable read."""
    try:
        if not member.status().is_learner:
            member.gateway.get_value(b"health")
    except UNANSWERED:
        return False
    return True
