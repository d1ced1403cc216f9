"""`etcdmaint storage verify-downgrade`: the proof that no frame is left, before a release that reads none.

It says "verified" for what was proven and for nothing else. The API server is asked to count the same
objects at the same revision, and has to be this very etcd's own.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.interruption import run
from etcdmaint.cli.scanning import (
    Asked,
    Reading,
    kms_notes,
    read_policy,
    reading,
    resource_named,
    watched,
    with_scanning,
)
from etcdmaint.cli.storage_codes import NOT_VERIFIED
from etcdmaint.errors import RevisionCompacted

if TYPE_CHECKING:
    from etcdmaint.cli.apiserver import ApiServerClient
    from etcdmaint.compression.census import Census
    from etcdmaint.compression.contents import Decrypt
    from etcdmaint.compression.verification import Finding

_ATTEMPTS = 3


@click.command(
    "verify-downgrade",
    epilog=f"\b\nExit codes besides 0, 1, 2 and 130:\n  {NOT_VERIFIED}  not verified",
)
@with_connection
@partial(with_scanning, by_prefix=False)
@click.option("--kubeconfig", default="", metavar="FILE", help="How to reach the API server.")
@click.option(
    "--apiserver",
    "apiservers",
    multiple=True,
    metavar="URL",
    help="One API server itself, not a balancer; repeat it for each that uses this etcd.",
)
@click.option(
    "--policy",
    "policy_files",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A file that API servers work with: they tell only its hash.",
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
def verify_downgrade(
    connection: Connection,
    asked: Asked,
    kubeconfig: str,
    apiservers: tuple[str, ...],
    policy_files: tuple[Path, ...],
    style: str,
) -> int:
    """Prove that no compressed value is left, before going back to a release that reads none.

    Reads every value at one revision and has the API server list the same objects at that revision:
    the numbers must be equal, nothing may be a frame, and nothing may be unreadable. Encrypted values
    need --encryption-config. It refuses where an API server still compresses, or cannot be asked.
    Broken off, it begins anew: --resource makes it short.
    """
    policies = [policy for policy in map(read_policy, policy_files) if policy is not None]
    verification = _Verification(connection, asked, kubeconfig, apiservers)

    async def work() -> int:
        from etcdmaint.compression.verification import fleet_faults

        async with verification:
            faults = [*await verification.foreign()]
            if not faults:
                resources = [
                    resource_named(asked.keyspace, name) for name in verification.resources
                ]
                facts = [await server.facts() for server in verification.servers]
                known = await verification.servers[0].known_servers()
                faults += fleet_faults(facts, known, policies, resources)
            findings = () if faults else await verification.findings()
        if findings is None:
            findings = ()
            faults.append(
                f"the revision was compacted away {_ATTEMPTS} times: verify one --resource after "
                "the other, or with a higher --limit-rate"
            )
        _write(faults, findings, verification, style)
        for note in verification.notes():
            output.print_note(f"etcdmaint: {note}")
        verified = not faults and all(finding.verified for finding in findings)
        return 0 if verified else NOT_VERIFIED

    return run(work())


class _Verification:
    """One attempt after the other, at one etcd and its API servers."""

    def __init__(
        self, connection: Connection, asked: Asked, kubeconfig: str, urls: tuple[str, ...]
    ) -> None:
        self.servers: list[ApiServerClient] = []
        self.revision = 0
        self.resources: tuple[str, ...] = asked.resources
        self._connection = connection
        self._asked = asked
        self._kubeconfig = kubeconfig
        self._urls = urls
        self._chain = asked.chain()
        self._stack = AsyncExitStack()
        self._etcd: Reading

    async def __aenter__(self) -> None:
        from etcdmaint.cli.apiserver import ApiServerClient
        from etcdmaint.kube.access import load_access

        access = await load_access(self._kubeconfig)
        opening = reading(self._connection, self._asked, self._chain, serializable=False)
        self._etcd = await self._stack.enter_async_context(opening)
        for url in self._urls or ("",):
            client = ApiServerClient(access, url, patience=self._asked.patience)
            self.servers.append(await self._stack.enter_async_context(client))

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def foreign(self) -> list[str]:
        """API servers that are not proven to use this etcd: the UID of kube-system must be the same."""
        from etcdmaint.compression.contents import examine
        from etcdmaint.compression.resources import Location
        from etcdmaint.compression.stored_value import identify

        key = self._asked.keyspace.key(Location("", "namespaces", "", "kube-system"))
        reader = await self._etcd.source.reader()
        found = await reader.client.range(key, timeout=self._etcd.timeout)
        plaintext = None
        if found.kvs:
            decrypt = self._decrypt_for("", "namespaces")
            _, plaintext, _ = examine(found.kvs[0].value, key, decrypt)
        uid = identify(plaintext).uid if plaintext else ""
        if not uid:
            return [f"{key.decode()} cannot be read, so no API server is proven to use this etcd"]
        return [
            f"{server.url} does not use this etcd: its kube-system is another one"
            for server in self.servers
            if await server.cluster_uid() != uid
        ]

    def notes(self) -> list[str]:
        """What ought not to be overlooked."""
        return kms_notes(self._chain.kms_calls if self._chain is not None else None)

    async def findings(self) -> tuple[Finding, ...] | None:
        """What is proven of each resource. Starts again when the revision is compacted meanwhile.

        None where that happens again and again.
        """
        from etcdmaint.cli.apiserver import ListExpired

        for attempt in range(_ATTEMPTS):
            if attempt:
                output.print_note("etcdmaint: the revision was compacted away; starting again")
            try:
                return await self._attempt()
            except (RevisionCompacted, ListExpired):
                continue
        return None

    async def _attempt(self) -> tuple[Finding, ...]:
        from etcdmaint.compression.audit import Audit, audit
        from etcdmaint.compression.census import Census
        from etcdmaint.compression.resources import named
        from etcdmaint.compression.verification import judge
        from etcdmaint.compression.walk import Progress
        from etcdmaint.etcd.types import prefix_end

        asked, etcd = self._asked, self._etcd
        census = Census(asked.keyspace, decrypt_for=self._decrypt_for)
        root = asked.keyspace.root
        spans = asked.spans if asked.resources else ((root, prefix_end(root)),)
        state = Audit(census, Progress(spans))
        async with watched(state.progress, etcd.governor):
            await audit(
                state,
                etcd.source,
                clock=etcd.clock,
                courtesy=etcd.courtesy,
                governor=etcd.governor,
                timing=etcd.timing,
                exact=True,
            )
        self.revision = state.progress.revisions[0]
        listed = await self._listed(census)
        resources = [resource_named(asked.keyspace, each) for each in self.resources]
        return judge(census, listed, [named(*each) for each in resources])

    async def _listed(self, census: Census) -> dict[str, int | str | None]:
        """How many the API server has of each, or why it cannot tell."""
        from etcdmaint.compression.verification import faults_of, is_listed
        from etcdmaint.kube.client import KubeError

        listed: dict[str, int | str | None] = {}
        for row in census.rows.values():
            if is_listed(row) and not faults_of(row):
                resource, _, group = row.name.partition(".")
                try:
                    listed[row.name] = await self.servers[0].count(group, resource, self.revision)
                except KubeError as error:
                    listed[row.name] = str(error)
        return listed

    def _decrypt_for(self, group: str, resource: str) -> Decrypt | None:
        return self._asked.decrypt_for(self._chain)(group, resource)


def _write(
    faults: list[str], findings: tuple[Finding, ...], verification: _Verification, style: str
) -> None:
    revision = verification.revision
    verified = not faults and all(finding.verified for finding in findings)
    if style == output.JSON:
        document = {
            "verified": verified,
            "revision": revision,
            "faults": faults,
            "resources": [
                {
                    "resource": finding.resource,
                    "stored": finding.stored,
                    "listed": finding.listed,
                    "verified": finding.verified,
                    "faults": list(finding.faults),
                }
                for finding in findings
            ],
        }
        output.print_document(document, style)
        return
    if findings:
        rows = [
            [
                finding.resource,
                str(finding.stored),
                "-" if finding.listed is None else str(finding.listed),
                "yes" if finding.verified else "NO: " + "; ".join(finding.faults),
            ]
            for finding in findings
        ]
        columns = ["RESOURCE", "IN ETCD", "LISTED", "VERIFIED"]
        output.print_table(columns, rows, numbers=frozenset({"IN ETCD", "LISTED"}))
        print()
    for fault in faults:
        output.print_line(f"Refused: {fault}.")
    if verified:
        only = f" of {', '.join(verification.resources)}" if verification.resources else ""
        output.print_line(f"Verified at revision {revision}: no frame{only} is left.")
    else:
        output.print_line("NOT VERIFIED: do not downgrade.")
