"""`etcdmaint compact`: how history stands, one polite round by hand, and the rounds as they come."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import CONNECTION_FLAGS, Connection, with_connection
from etcdmaint.cli.exits import ExitCode, code_for, sentence
from etcdmaint.cli.flags import output_flag
from etcdmaint.cli.interruption import run
from etcdmaint.cli.lazy import Lazy, LazyGroup
from etcdmaint.cli.parameters import DURATION
from etcdmaint.errors import ClusterNotHealthy, EtcdError, RevisionCompacted
from etcdmaint.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from etcdmaint.compaction.by_hand import History
    from etcdmaint.compaction.election import Round, State
    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.metrics import MemberMetrics
    from etcdmaint.etcd.types import KeyValue, MemberStatus

UNKNOWN = "not known"
_A_WHILE = 30.0


@click.group(
    "compact",
    cls=LazyGroup,
    lazy={
        "status": Lazy(__name__, "status", "Show the key, and how far etcd really is compacted."),
        "once": Lazy(__name__, "once", "Take part in one round of the election."),
        "watch": Lazy(__name__, "watch", "Show every round as it comes."),
    },
    # Connection flags may stand before the command here too.
    leading=CONNECTION_FLAGS,
)
def compact() -> None:
    """Keep history short: the election that kube-apiservers hold by the key compact_rev_key."""


@click.command("status")
@with_connection
@output_flag(output.TABLE, output.JSON, output.YAML)
def status(connection: Connection, style: str) -> int:
    """Show the key, how far etcd really is compacted, and what is kept of history."""
    found = run(_look(connection))
    if style == output.TABLE:
        for name, text in found.rows():
            output.print_line(f"{name}: {text}")
    else:
        output.print_document(found.document(), style)
    return ExitCode.DONE


@click.command("once")
@with_connection
@click.option(
    "--interval",
    type=DURATION,
    default="5m",
    help="How much history to spare: what was written since the command began stays.",
)
def once(connection: Connection, interval: float) -> int:
    """Take part in one round: look, wait an interval, and compact unless somebody else did.

    It is polite: whoever compacts regularly goes first, and nothing younger than the interval goes.
    """
    return run(_hold_round(connection, interval))


@click.command("watch")
@with_connection
def watch(connection: Connection) -> int:
    """Show every round of whoever it is, one line each, until Ctrl-C; changes nothing."""
    run(_follow(connection))
    return ExitCode.DONE


class _Status:
    """What `status` shows."""

    def __init__(
        self, history: History, member: MemberStatus, metrics: MemberMetrics | None
    ) -> None:
        self.history = history
        self.in_use = member.db_size_in_use
        self.advanced_at = metrics.last_compaction if metrics else None

    @property
    def estimate(self) -> int:
        """About how many bytes of a member are history."""
        return self.history.bytes_of_history(self.in_use)

    @property
    def verdict(self) -> str:
        """Who wrote last, as far as the two revisions tell; etcd itself does not record it."""
        history = self.history
        if not history.version:
            return "nobody yet: there is no key"
        if history.advertised is None:
            return "somebody who is no compactor: the key holds no revision"
        if history.compacted > history.advertised:
            return (
                "a contender, but somebody compacted further without the election (etcdctl compact, "
                "etcd's auto-compaction, or a compactor under NOSPACE)"
            )
        if history.compacted < history.advertised:
            return "a contender that has not carried out its compaction, or could not"
        return "a contender that compacted as it said; which one, etcd does not record"

    def rows(self) -> list[tuple[str, str]]:
        """For people."""

        history = self.history
        key = "not there"
        if history.version:
            said = "no revision" if history.advertised is None else str(history.advertised)
            key = f"version {history.version}, says {said}"
        ago = UNKNOWN + " (only /metrics tells, since the member started)"
        if self.advanced_at:
            ago = f"{format_duration(round(max(0.0, time.time() - self.advanced_at)))} ago"
        kept = f"{history.revisions} revisions, about {format_bytes(self.estimate)}"
        return [
            ("compact_rev_key", key),
            ("really compacted to", str(history.compacted) if history.compacted else "nothing yet"),
            ("last compaction", ago),
            ("last written by", self.verdict),
            ("newest revision", str(history.head)),
            ("history", f"{kept} of {format_bytes(self.in_use)} in use"),
        ]

    def document(self) -> dict[str, Any]:
        """For programs; null for the unknown, times in UTC."""
        history = self.history
        at = self.advanced_at
        return {
            "key": {
                "version": history.version,
                "revision": history.advertised,
                "writtenAtRevision": history.written_at or None,
            },
            "compactRevision": history.compacted,
            "compactedAt": datetime.fromtimestamp(at, UTC).isoformat() if at else None,
            "lastWrittenBy": self.verdict,
            "revision": history.head,
            "liveKeys": history.live_keys,
            "historyRevisions": history.revisions,
            "historyBytesEstimate": self.estimate,
            "dbSizeInUse": self.in_use,
        }


async def _look(connection: Connection) -> _Status:
    from etcdmaint.compaction.by_hand import read_history
    from etcdmaint.etcd.cluster import voters_of

    timeout = connection.command_timeout
    async with await connection.open() as cluster:
        member_id, client = next(iter(voters_of(cluster).items()))
        async with asyncio.TaskGroup() as group:
            history = group.create_task(read_history(client, timeout=timeout))
            member = group.create_task(client.status(timeout=timeout))
            metrics = group.create_task(cluster.metrics(member_id, timeout=timeout))
        return _Status(history.result(), member.result(), metrics.result())


async def _hold_round(connection: Connection, interval: float) -> int:
    from etcdmaint.compaction.election import KEY, State, ask_until_sent
    from etcdmaint.etcd.cluster import voters_of

    timeout = connection.command_timeout
    async with await connection.open() as cluster:
        client = next(iter(voters_of(cluster).values()))
        found = await client.range(KEY, timeout=timeout)
        version = found.kvs[0].version if found.kvs else 0
        state = State(version, found.header.revision)
        output.print_note(
            f"etcdmaint: the key is at version {version}, etcd at revision {state.revision}; waits "
            f"{format_duration(interval)}, for others to go first and for watchers to keep up"
        )
        await asyncio.sleep(interval)
        # Members may have come and gone meanwhile.
        await cluster.refresh()
        voters = list(voters_of(cluster).values())
        return _tell(await ask_until_sent(voters, state, timeout=timeout), state)


def _tell(held: Round, state: State) -> int:
    from etcdmaint.compaction.election import Result

    if held.error is not None:
        output.print_note(f"etcdmaint: {sentence(held.error)}")
        return code_for(held.error)
    if held.new_world:
        output.print_note(
            f"etcdmaint: etcd was at revision {state.revision} before and is younger now, restored "
            "perhaps: nothing was compacted; begin again"
        )
        return ExitCode.FAILED
    other = f"went first and compacts to revision {held.revision}"
    if not held.revision:
        other = "has changed or deleted the key meanwhile"
    said = {
        Result.WON: f"won: compacted to revision {held.revision}",
        Result.ALREADY_COMPACTED: f"won: revision {held.revision} had been compacted already",
        Result.RAW: f"NOSPACE is armed: compacted to revision {held.revision} without the election",
        Result.LOST: f"lost: somebody else {other}; nothing to do",
        Result.BOOTSTRAP: f"nothing to compact at revision {state.revision}",
    }
    output.print_line(said.get(held.result, held.result))
    return ExitCode.DONE


async def _follow(connection: Connection, pause: float = 1.0) -> None:
    """For ever: a stream that breaks is begun again after `pause` seconds, with another member."""
    async with await connection.open() as cluster:
        rounds = _Rounds(cluster, connection.command_timeout)
        trouble = ""
        while True:
            begun = time.monotonic()
            try:
                if trouble:
                    await cluster.refresh()
                await rounds.show()
            except RevisionCompacted as gone:
                rounds.start = gone.compact_revision
            except (EtcdError, ClusterNotHealthy) as error:
                if not rounds.start:
                    raise
                # Not the same again each second while nobody answers.
                if trouble != sentence(error) or time.monotonic() - begun > _A_WHILE:
                    trouble = sentence(error)
                    output.print_note(f"etcdmaint: {trouble}; tries again each second")
                await asyncio.sleep(pause)


class _Rounds:
    """Prints every change of the key from `start` on, 0 before it has begun."""

    def __init__(self, cluster: ClusterClient, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._turn = 0
        self._before: tuple[float, KeyValue] | None = None
        self.start = 0

    async def show(self) -> None:
        """Until the stream breaks, with an EtcdError."""
        from etcdmaint.compaction.election import KEY
        from etcdmaint.etcd.cluster import voters_of

        members = list(voters_of(self._cluster).values())
        client = members[self._turn % len(members)]
        self._turn += 1
        found = await client.range(KEY, timeout=self._timeout)
        if found.kvs and not self.start:
            output.print_note(
                f"etcdmaint: the key is at version {found.kvs[0].version}; waits for the next round"
            )
        # A store that was restored has a newest revision below what was seen.
        behind = found.header.revision + 1
        start = min(self.start or behind, behind)
        async with client.watch(KEY, start_revision=start) as changes:
            self.start = start
            async for batch in changes:
                for event in batch.events:
                    now = time.monotonic()
                    output.print_line(_line(event.kv, batch.header.revision, self._before, now))
                    self._before = (now, event.kv)
                    self.start = event.kv.mod_revision + 1


def _line(kv: KeyValue, head: int, before: tuple[float, KeyValue] | None, now: float) -> str:
    from etcdmaint.compaction.election import advertised

    clock = datetime.now().astimezone().strftime("%H:%M:%S")
    if not kv.version:
        return f"{clock}  the key was deleted"
    revision = advertised(kv, head)
    said = "says no revision" if revision is None else f"compacts to {revision}"
    if revision == 0:
        said = "compacts nothing yet"
    text = f"{clock}  round {kv.version}: {said}, {head - (revision or 0)} revisions are kept"
    if before is not None:
        text += f", {format_duration(round(now - before[0], 1))} after the one before"
    return text
