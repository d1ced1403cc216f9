"""`etcdmaint storage estimate`: what compression would save in this etcd, and whether it would fit."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import Size
from etcdmaint.cli.scanning import Asked, kms_notes, reading, watched, with_scanning
from etcdmaint.errors import ClusterNotHealthy, InvalidInput
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.compression.capacity import Fill, Way
    from etcdmaint.compression.estimate import Class, Estimator
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
    type=Size(),
    default="1Ki",
    show_default=True,
    metavar="SIZE",
    help="The policy's minSize to plan for; others are shown beside it.",
)
@click.option(
    "--include-secrets",
    is_flag=True,
    help="Compress Secrets too. What comes out tells something about what is in them.",
)
@click.option(
    "--quota",
    type=Size(),
    metavar="SIZE",
    help="etcd's --quota-backend-bytes, where etcd does not tell it.",
)
@click.option(
    "-o",
    "--output",
    "style",
    type=click.Choice([output.TABLE, output.JSON]),
    default=output.TABLE,
    show_default=True,
    help="How to write it.",
)
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
    from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES

    if not 64 <= min_size < MAX_PLAINTEXT_BYTES:
        raise InvalidInput("--min-size", f"must be at least 64 and below {MAX_PLAINTEXT_BYTES}")
    chain = asked.chain()

    async def work() -> int:
        from etcdmaint.compression.capacity import way_there
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
            walk = Walk(
                progress,
                etcd.source,
                governor=etcd.governor,
                clock=etcd.clock,
                courtesy=etcd.courtesy,
                timing=etcd.timing,
            )
            async with watched(progress, etcd.governor), aclosing(walk.chunks()) as found:
                async for chunk in found:
                    await take(chunk, estimator.add, progress)
            fill = await _fill(etcd.cluster, etcd.timeout, quota)
        index = estimator.candidates.index(min_size)
        pages = estimator.pages[index]
        way = way_there(
            fill,
            live=estimator.live.bytes,
            written=pages.written.bytes,
            then=pages.then.bytes,
        )
        report = _Report(estimator, index, way, progress, whole=not asked.limited)
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
    from etcdmaint.compression.capacity import Fill
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


class _Report:
    def __init__(
        self, estimator: Estimator, index: int, way: Way, progress: Progress, *, whole: bool
    ) -> None:
        self._estimator = estimator
        self._index = index
        self._way = way
        self._progress = progress
        self._whole = whole
        self._rows = sorted(estimator.rows.values(), key=lambda row: (-row.bytes, row.name))

    def tables(self) -> None:
        """For people."""
        sizes = [format_bytes(size) for size in self._estimator.candidates]
        rows = []
        for row in self._rows:
            at = row.at(self._index)
            rows.append(
                [
                    row.name,
                    str(row.values),
                    format_bytes(row.bytes),
                    *(format_bytes(row.sizes.quantile(share)) for share in (0.5, 0.9, 0.99)),
                    str(row.values - row.framed - at.values),
                    *(_saved(row.at(index), row.bytes) for index in range(len(sizes))),
                ]
            )
        whole = sum(row.bytes for row in self._rows)
        chosen = [self._estimator.chosen(index) for index in range(len(sizes))]
        values = sum(row.values for row in self._rows)
        left = values - sum(row.framed for row in self._rows) - chosen[self._index].values
        rows.append(
            ["all", str(values), format_bytes(whole), "", "", "", str(left)]
            + [_saved(each, whole) for each in chosen]
        )
        columns = ["RESOURCE", "VALUES", "BYTES", "P50", "P90", "P99", "LEFT"]
        output.print_line(
            f"What would be saved at each minSize; LEFT stays unframed at {sizes[self._index]}:"
        )
        output.print_table([*columns, *sizes], rows, numbers=_NUMBERS | frozenset(sizes))
        if self._whole:
            print()
            self._print_way()

    def _print_way(self) -> None:
        way, size = self._way, format_bytes(self._estimator.candidates[self._index])
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
        candidates = self._estimator.candidates
        way = self._way
        document: dict[str, Any] = {
            "revisions": self._progress.revisions,
            "consistent": self._progress.consistent,
            "minSize": candidates[self._index],
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
                    "minSizes": [
                        {"minSize": size, **_document(row.at(index))}
                        for index, size in enumerate(candidates)
                    ],
                }
                for row in self._rows
            ],
            "minSizes": [
                {"minSize": size, **_document(self._estimator.chosen(index))}
                for index, size in enumerate(candidates)
            ],
        }
        if self._whole:
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

    def notes(self, include_secrets: bool) -> list[str]:
        """What ought not to be overlooked."""
        notes = []
        if self._progress.keys == 0:
            notes.append("NOTHING WAS FOUND: 0 values, no key begins so; is the prefix right?")
        if include_secrets:
            notes.append(f"warning: {SIDE_CHANNEL}")
        elif number := self._estimator.secrets_left_out:
            notes.append(f"{number} Secrets were left out; --include-secrets takes them in")
        if unread := sum(row.unread for row in self._rows):
            notes.append(f"{unread} values are encrypted or damaged and were not looked into")
        if not self._progress.consistent:
            notes.append("the values are not of one revision")
        return notes


def _saved(at: Class, whole: int) -> str:
    saved = at.bare - at.framed
    return f"{format_bytes(saved)} ({100 * saved / whole:.0f}%)" if at.values and whole else "-"


def _document(at: Class) -> dict[str, int]:
    return {
        "framed": at.values,
        "bytesNow": at.bare,
        "bytesThen": at.framed,
        "saved": at.bare - at.framed,
    }
