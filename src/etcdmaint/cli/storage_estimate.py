"""`etcdmaint storage estimate`: what compression would save in this etcd, and whether it would fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.flags import output_flag
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import SIZE
from etcdmaint.cli.scanning import Asked, kms_notes, reading, watched, with_scanning
from etcdmaint.compression.capacity import Fill, Way, way_there
from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES
from etcdmaint.errors import ClusterNotHealthy, InvalidInput
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.compression.estimate import Class, Estimator, Row
    from etcdmaint.compression.walk import Progress
    from etcdmaint.etcd.cluster import ClusterClient

SIDE_CHANNEL = (
    "the length of a compressed Secret tells how well its content compresses, also under encryption, "
    "to whoever can see that length and write part of the Secret: KEP-6264 compresses Secrets only "
    "where the policy names them"
)
_MIN_SIZE = 1024
_NUMBERS = frozenset({"VALUES", "BYTES", "P50", "P90", "P99", "LEFT"})


@click.command("estimate")
@with_connection
@with_scanning
@click.option(
    "--min-size",
    type=SIZE,
    default="1Ki",
    help="The policy's minSize to plan for; others are shown beside it.",
)
@click.option(
    "--include-secrets",
    is_flag=True,
    help="Compress Secrets too. What comes out tells something about what is in them.",
)
@click.option(
    "--quota", type=SIZE, help="etcd's --quota-backend-bytes, where etcd does not tell it."
)
@output_flag(output.TABLE, output.JSON)
def estimate(
    connection: Connection,
    asked: Asked,
    min_size: int,
    include_secrets: bool,
    quota: int | None,
    style: str,
) -> int:
    """Compress every stored value, in memory alone, and tell what would come of it.

    For each resource: how large its objects are, and what would be saved at several values of the
    policy's minSize. Then, for --min-size: what turning it on would write, how large etcd's file
    would get, and how large it would be in the end. Nothing is written. Broken off, it begins anew.
    """

    if not 64 <= min_size < MAX_PLAINTEXT_BYTES:
        raise InvalidInput("--min-size", f"must be at least 64 and below {MAX_PLAINTEXT_BYTES}")
    chain = asked.chain()

    async def work() -> int:
        from etcdmaint.compression.estimate import CANDIDATES, Estimator
        from etcdmaint.compression.walk import Progress, Walk, take

        estimator = Estimator(
            asked.keyspace,
            decrypt_for=asked.decrypt_for(chain),
            candidates=sorted({*CANDIDATES, min_size}),
            include_secrets=include_secrets,
        )
        progress = Progress(asked.spans)
        async with reading(connection, asked, chain) as etcd:
            walk = Walk(progress, etcd.source, **etcd.terms)
            async with watched(progress, etcd.governor), aclosing(walk.chunks()) as found:
                async for chunk in found:
                    await take(chunk, estimator.add, progress)
            fill = await _fill(etcd.cluster, etcd.timeout, quota)
        index = estimator.candidates.index(min_size)
        pages = estimator.pages[index]
        way = way_there(
            fill, live=estimator.live.bytes, written=pages.written.bytes, then=pages.then.bytes
        )
        report = _Report(estimator, index, way, progress, not asked.limited)
        if style == output.JSON:
            output.print_document(report.document(), style)
        else:
            report.tables()
        calls = chain.kms_calls if chain is not None else None
        for note in (*report.notes(include_secrets), *kms_notes(calls)):
            output.print_note(f"etcdmaint: {note}")
        return 0

    return run(work())


async def _fill(cluster: ClusterClient, timeout: float, given: int | None) -> Fill:
    """The fullest member that answers, with the smallest quota that any of them has."""
    from etcdmaint.etcd.types import MemberStatus

    used = in_use = 0
    quotas: list[int] = []
    for member_id, status in (await cluster.statuses(timeout)).items():
        if not isinstance(status, MemberStatus):
            continue
        used, in_use = max(used, status.db_size), max(in_use, status.db_size_in_use)
        told = status.db_size_quota
        if told == 0 and (measured := await cluster.metrics(member_id, timeout=timeout)):
            told = measured.quota or 0
        quotas.append(told)
    if not quotas:
        raise ClusterNotHealthy("NoStatus", "no member tells how large its file is")
    known = [told for told in quotas if told > 0]
    quota = given or min(known, default=None)
    return Fill(used, in_use, quota, quota is not None or any(told < 0 for told in quotas))


@dataclass(frozen=True, slots=True)
class _Report:
    estimator: Estimator
    index: int
    way: Way
    progress: Progress
    whole: bool

    @property
    def rows(self) -> list[Row]:
        """The largest first."""
        return sorted(self.estimator.rows.values(), key=lambda row: (-row.bytes, row.name))

    def tables(self) -> None:
        """For people."""
        sizes = [format_bytes(size) for size in self.estimator.candidates]
        rows = [
            [
                row.name,
                str(row.values),
                format_bytes(row.bytes),
                *(format_bytes(row.sizes.quantile(share)) for share in (0.5, 0.9, 0.99)),
                str(row.values - row.framed - row.at(self.index).values),
                *(_saved(row.at(index), row.bytes) for index in range(len(sizes))),
            ]
            for row in self.rows
        ]
        whole = sum(row.bytes for row in self.rows)
        chosen = [self.estimator.chosen(index) for index in range(len(sizes))]
        values = sum(row.values for row in self.rows)
        left = values - sum(row.framed for row in self.rows) - chosen[self.index].values
        rows.append(
            ["all", str(values), format_bytes(whole), "", "", "", str(left)]
            + [_saved(each, whole) for each in chosen]
        )
        columns = ["RESOURCE", "VALUES", "BYTES", "P50", "P90", "P99", "LEFT"]
        output.print_line(
            f"What would be saved at each minSize; LEFT stays unframed at {sizes[self.index]}:"
        )
        output.print_table([*columns, *sizes], rows, numbers=_NUMBERS | frozenset(sizes))
        if self.whole:
            print()
            self._print_way()

    def _print_way(self) -> None:
        way, size = self.way, format_bytes(self.estimator.candidates[self.index])
        quota = format_bytes(way.fill.quota) if way.fill.quota is not None else "none"
        rows = [
            ["quota", quota if way.fill.quota_known else "not known"],
            ["file now", format_bytes(way.fill.used)],
            ["in use now", format_bytes(way.fill.in_use)],
            ["now, if compacted and defragmented", f"about {format_bytes(way.live)}"],
            [f"written by turning it on at {size}", f"about {format_bytes(way.written)}"],
            ["file at its peak, before compaction", f"about {format_bytes(way.peak)}"],
            ["in use after compaction", f"at least {format_bytes(way.then)}"],
            ["file after defragmentation", f"about {format_bytes(way.then)}"],
        ]
        output.print_table(["ON THE WAY THERE", "FULLEST MEMBER"], rows)
        print()
        output.print_line(f"Turning it on for everything: {way.verdict}.")

    def document(self) -> dict[str, Any]:
        """For programs."""
        way = self.way
        document: dict[str, Any] = {
            "revisions": self.progress.revisions,
            "consistent": self.progress.consistent,
            "minSize": self.estimator.candidates[self.index],
            "resources": [
                {
                    "resource": row.name,
                    "values": row.values,
                    "bytes": row.bytes,
                    "p50": row.sizes.quantile(0.5),
                    "p90": row.sizes.quantile(0.9),
                    "p99": row.sizes.quantile(0.99),
                    "framedAlready": row.framed,
                    "aboveCeiling": row.above,
                    "notRead": row.unread,
                    "minSizes": self._at_each(row.at),
                }
                for row in self.rows
            ],
            "minSizes": self._at_each(self.estimator.chosen),
        }
        if self.whole:
            document["way"] = {
                "quota": way.fill.quota,
                "used": way.fill.used,
                "inUse": way.fill.in_use,
                "compactedAndDefragmentedNow": way.live,
                "written": way.written,
                "peak": way.peak,
                "inUseAfterCompactionAtLeast": way.then,
                "usedAfterDefragmentation": way.then,
                "fits": way.fits,
                "batches": way.batches,
                "verdict": way.verdict,
            }
        return document

    def _at_each(self, at: Callable[[int], Class]) -> list[dict[str, int]]:
        return [
            {
                "minSize": size,
                "framed": at(index).values,
                "bytesNow": at(index).bare,
                "bytesThen": at(index).framed,
                "saved": at(index).bare - at(index).framed,
            }
            for index, size in enumerate(self.estimator.candidates)
        ]

    def notes(self, include_secrets: bool) -> list[str]:
        """What ought not to be overlooked."""
        notes = []
        if self.progress.keys == 0:
            notes.append("NOTHING WAS FOUND: 0 values, no key begins so; is the prefix right?")
        if include_secrets:
            notes.append(f"warning: {SIDE_CHANNEL}")
        elif number := self.estimator.secrets_left_out:
            notes.append(f"{number} Secrets were left out; --include-secrets takes them in")
        if unread := sum(row.unread for row in self.rows):
            notes.append(f"{unread} values are encrypted or damaged and were not looked into")
        if not self.progress.consistent:
            notes.append("the values are not of one revision")
        return notes


def _saved(at: Class, whole: int) -> str:
    saved = at.bare - at.framed
    return f"{format_bytes(saved)} ({100 * saved / whole:.0f}%)" if at.values and whole else "-"
