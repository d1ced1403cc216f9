"""`etcdmaint storage scan`: what fills this etcd, by resource and by the form it is stored in."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.flags import output_flag
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import FILE
from etcdmaint.cli.scanning import Asked, note_token, read_policy, reading, watched, with_scanning
from etcdmaint.errors import InvalidInput
from etcdmaint.files import MOST_OF_A_VALUE, read_whole

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
    type=FILE,
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
@click.option(
    "--resume",
    metavar="TOKEN",
    help="Go on where a scan was broken off; -: the token is on standard input.",
)
@output_flag(output.TABLE, output.JSON, output.CSV)
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
    if style == output.CSV and (policy_file or top or history):
        raise InvalidInput(
            "-o csv", "has values and bytes alone: take -o json for --policy, --top and --history"
        )
    policy = read_policy(policy_file)
    chain = asked.chain()
    token = resume
    if resume == "-":
        given = read_whole(sys.stdin.buffer, field="--resume: standard input", most=MOST_OF_A_VALUE)
        token = given.decode("ascii", "replace").strip()

    async def work() -> int:
        from etcdmaint.cli.scan_report import Report
        from etcdmaint.compression.audit import Audit, audit, resume_audit, resume_token
        from etcdmaint.compression.census import Census
        from etcdmaint.compression.history import compare
        from etcdmaint.compression.walk import Progress

        census = Census(
            asked.keyspace,
            rule_for=policy.rule_for if policy else _none,
            decrypt_for=asked.decrypt_for(chain),
            top=top,
        )
        state = Audit(census, Progress(asked.spans))
        question = asked.question(policy.hash if policy else "", top)
        async with reading(connection, asked, chain) as etcd:
            cluster_id = etcd.cluster.cluster_id
            if token:
                resume_audit(state, token, cluster_id, question)
            found = None
            try:
                async with watched(state.progress, etcd.governor):
                    await audit(state, etcd.source, **etcd.terms)
                if history:
                    past = Progress(asked.spans)
                    async with watched(past, etcd.governor, "old revisions: "):
                        found = await compare(
                            etcd.source, past, asked.keyspace, keep=top, **etcd.terms
                        )
            except BaseException:
                if state.progress.keys:
                    note_token(resume_token(state, cluster_id, question))
                raise
            member = etcd.source.member
            calls = chain.kms_calls if chain is not None else None
            report = Report(asked, state, member, found, calls, redact, policy is not None)
            report.write(style, f"{cluster_id:016x}")
        return report.code

    return run(work())


def _none(_group: str, _resource: str) -> None:
    return None
