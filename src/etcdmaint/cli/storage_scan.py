"""`etcdmaint storage scan`: what fills this etcd, by resource and by the form it is stored in."""

from __future__ import annotations

from pathlib import Path

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.scanning import (
    Asked,
    SlotCourtesy,
    note_token,
    opened,
    read_policy,
    run,
    watched,
    with_scanning,
)

_MOST_TOP = 1000

EXIT_CODES = (
    "\b\nExit codes besides 0, 1, 2 and 130; of several the lowest:\n"
    "  10  a value is damaged\n  11  a frame is of a newer release\n"
    "  12  a frame is intact, but no good\n"
    "  13  with --encryption-config: no key for some values"
)


@click.command("scan", epilog=EXIT_CODES)
@with_connection
@with_scanning
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A StorageCompressionConfiguration: count what it would have stored otherwise.",
)
@click.option(
    "--top",
    type=click.IntRange(0, _MOST_TOP),
    default=0,
    metavar="N",
    help="Also list the N largest values and the N keys that were written most often.",
)
@click.option(
    "--history",
    is_flag=True,
    help="Also count what old revisions hold: reads everything twice more, as it was and as it is.",
)
@click.option("--redact", is_flag=True, help="Cut keys after their namespace.")
@click.option("--resume", metavar="TOKEN", help="Go on where a scan was broken off.")
@click.option(
    "-o",
    "--output",
    "style",
    type=click.Choice([output.TABLE, output.JSON, "csv"]),
    default=output.TABLE,
    show_default=True,
    help="How to write it.",
)
def scan(
    connection: Connection,
    asked: Asked,
    policy_file: Path | None,
    top: int,
    history: bool,
    redact: bool,
    resume: str | None,
    style: str,
) -> int:
    """Count what is stored, by resource and form, with the damage among it.

    Reads from a follower, never from a member that is being defragmented, and waits while somebody
    else works on this cluster. Nothing is written.
    """
    policy = read_policy(policy_file)
    chain = asked.chain()

    async def work() -> int:
        from etcdmaint.cli.scan_report import Report
        from etcdmaint.clock import SystemClock
        from etcdmaint.compression.audit import Audit, audit, resume_audit, resume_token
        from etcdmaint.compression.census import Census
        from etcdmaint.compression.governor import Governor
        from etcdmaint.compression.history import compare
        from etcdmaint.compression.source import ClusterSource
        from etcdmaint.compression.walk import Progress, StandBack

        census = Census(
            asked.keyspace,
            rule_for=policy.rule_for if policy else _none,
            decrypt_for=asked.decrypt_for(chain),
            top=top,
        )
        state = Audit(census, Progress(asked.spans))
        question = asked.question(policy.hash if policy else "", top)
        async with opened(connection) as cluster:
            if resume:
                resume_audit(state, resume, cluster.cluster_id, question)
            if chain is not None:
                await chain.connect()
            timeout = max(connection.command_timeout, 5.0)
            source = ClusterSource(cluster, timeout=timeout)
            clock = SystemClock()
            governor = Governor(asked.bytes_per_second, clock)
            courtesy = SlotCourtesy(cluster)
            found = None
            async with watched(state.progress, lambda: governor.slowed):
                try:
                    await audit(
                        state,
                        source,
                        clock=clock,
                        courtesy=courtesy,
                        governor=governor,
                        timing=asked.timing(),
                    )
                except BaseException:
                    if state.progress.keys:
                        note_token(resume_token(state, cluster.cluster_id, question))
                    raise
                if history:
                    found = await compare(
                        source,
                        asked.spans,
                        asked.keyspace,
                        governor=governor,
                        stand_back=StandBack(courtesy, clock, state.progress),
                        keep=top,
                    )
            member = source.member
            calls = chain.kms_calls if chain is not None else None
            report = Report(asked, state, member, found, calls, redact, policy is not None)
            report.write(style, f"{cluster.cluster_id:016x}")
        return report.code

    return int(run(work))


def _none(_group: str, _resource: str) -> None:
    return None
