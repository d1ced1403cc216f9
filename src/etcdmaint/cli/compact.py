"""`etcdmaint compact`: how history stands, one polite round by hand, and the rounds as they come."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import CONNECTION_FLAGS, Connection, with_connection
from etcdmaint.cli.exits import ExitCode
from etcdmaint.cli.lazy import Lazy, LazyGroup
from etcdmaint.cli.parameters import Duration

if TYPE_CHECKING:
    from etcdmaint.compaction.by_hand import History
    from etcdmaint.compaction.election import Round, State
    from etcdmaint.etcd.client import MemberClient
    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.metrics import MemberMetrics
    from etcdmaint.etcd.types import KeyValue, MemberStatus

UNKNOWN = "not known"


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
@click.option(
    "-o",
    "--output",
    "style",
    type=click.Choice([output.TABLE, output.JSON, output.YAML]),
    default=output.TABLE,
    help="How to write it. Default: table.",
)
def status(connection: Connection, style: str) -> int:
    """Show the key, how far etcd really is compacted, and what is kept of history."""
    found = asyncio.run(_look(connection))
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
    type=Duration(),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How much history to spare: what was written since the command began stays.",
)
def once(connection: Connection, interval: float) -> int:
    """Take part in one round: look, wait an interval, and compact unless somebody else did.

    It is polite: whoever compacts regularly goes first, and nothing younger than the interval goes.
    """
    return asyncio.run(_hold_round(connection, interval))


@click.command("watch")
@with_connection
def watch(connection: Connection) -> int:
    """Show every round of whoever it is, one line each, until Ctrl-C; changes nothing."""
    asyncio.run(_follow(connection))
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
        from etcdmaint.quantities import format_bytes, format_duration

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


def _voters(cluster: ClusterClient) -> dict[int, MemberClient]:
    """Every voter that can be asked, by its ID; at least one."""
    from etcdmaint.errors import EtcdError, MemberUnreachable

    found: dict[int, MemberClient] = {}
    failure: EtcdError = MemberUnreachable("the cluster has no voter that can be asked")
    for member in cluster.members:
        if not member.is_learner:
            try:
                found[member.id] = cluster.client(member.id)
            except EtcdError as error:
                failure = error
    if not found:
        raise failure
    return found


async def _look(connection: Connection) -> _Status:
    from etcdmaint.compaction.by_hand import read_history

    timeout = connection.command_timeout
    async with await connection.open() as cluster:
        member_id, client = next(iter(_voters(cluster).items()))
        async with asyncio.TaskGroup() as group:
            history = group.create_task(read_history(client, timeout=timeout))
            member = group.create_task(client.status(timeout=timeout))
            metrics = group.create_task(cluster.metrics(member_id, timeout=timeout))
        return _Status(history.result(), member.result(), metrics.result())


async def _hold_round(connection: Connection, interval: float) -> int:
    from etcdmaint.compaction.election import KEY, State, run_round
    from etcdmaint.quantities import format_duration

    timeout = connection.command_timeout
    async with await connection.open() as cluster:
        client, *others = _voters(cluster).values()
        found = await client.range(KEY, timeout=timeout)
        version = found.kvs[0].version if found.kvs else 0
        state = State(version, found.header.revision)
        output.print_note(
            f"etcdmaint: the key is at version {version}, etcd at revision {state.revision}; waits "
            f"{format_duration(interval)}, for others to go first and for watchers to keep up"
        )
        await asyncio.sleep(interval)
        return _tell(await run_round(client, state, others=others, timeout=timeout), state)


def _tell(held: Round, state: State) -> int:
    from etcdmaint.cli.exits import code_for, sentence
    from etcdmaint.compaction.election import Result

    if held.error is not None:
        output.print_note(f"etcdmaint: {sentence(held.error)}")
        return code_for(held.error)
    said = {
        Result.WON: f"won: compacted to revision {held.revision}",
        Result.ALREADY_COMPACTED: f"won: revision {held.revision} had been compacted already",
        Result.RAW: f"NOSPACE is armed: compacted to revision {held.revision} without the election",
        Result.LOST: (
            f"lost: somebody else went first and compacts to revision {held.revision}; nothing to do"
        ),
        Result.BOOTSTRAP: f"nothing to compact at revision {state.revision}",
    }
    output.print_line(said.get(held.result, held.result))
    return ExitCode.DONE


async def _follow(connection: Connection) -> None:
    from etcdmaint.compaction.election import KEY

    async with await connection.open() as cluster:
        client = next(iter(_voters(cluster).values()))
        found = await client.range(KEY, timeout=connection.command_timeout)
        before: tuple[float, KeyValue] | None = None
        if found.kvs:
            output.print_note(
                f"etcdmaint: the key is at version {found.kvs[0].version}; waits for the next round"
            )
        start = found.header.revision + 1
        async with client.watch(KEY, start_revision=start) as changes:
            async for batch in changes:
                for event in batch.events:
                    now = time.monotonic()
                    output.print_line(_line(event.kv, batch.header.revision, before, now))
                    before = (now, event.kv)


def _line(kv: KeyValue, head: int, before: tuple[float, KeyValue] | None, now: float) -> str:
    from etcdmaint.compaction.election import advertised
    from etcdmaint.quantities import format_duration

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
