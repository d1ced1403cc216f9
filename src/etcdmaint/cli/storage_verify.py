"""`etcdmaint storage verify-downgrade`: the proof that no frame is left, before a release that reads none.

It says "verified" for what was proven and for nothing else. The API server is asked to count the same
objects at the same revision, and has to be this very etcd's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.flags import output_flag
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import FILE
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
from etcdmaint.compression.contents import Decrypt, examine
from etcdmaint.compression.resources import Location, named
from etcdmaint.compression.stored_value import identify
from etcdmaint.errors import RevisionCompacted

if TYPE_CHECKING:
    from etcdmaint.cli.apiserver import ApiServerClient
    from etcdmaint.compression.census import Census
    from etcdmaint.compression.verification import Finding

_ATTEMPTS = 3


@click.command(
    "verify-downgrade",
    epilog=f"\b\nExit codes besides 0, 1, 2 and 130:\n  {NOT_VERIFIED}  not verified",
)
@with_connection
@partial(with_scanning, by_prefix=False)
@click.option("--kubeconfig", metavar="FILE", help="How to reach the API server.")
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
    type=FILE,
    multiple=True,
    help="A file that API servers work with: they tell only its hash.",
)
@output_flag(output.TABLE, output.JSON)
def verify_downgrade(
    connection: Connection,
    asked: Asked,
    kubeconfig: str | None,
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
    chain = asked.chain()

    async def work() -> _Verdict:
        from etcdmaint.cli.apiserver import ApiServerClient
        from etcdmaint.compression.verification import fleet_faults
        from etcdmaint.kube.access import load_access

        access = await load_access(kubeconfig or "")
        async with (
            reading(connection, asked, chain, serializable=False) as etcd,
            AsyncExitStack() as stack,
        ):
            servers = []
            for url in apiservers or ("",):
                client = ApiServerClient(access, url, patience=asked.patience)
                servers.append(await stack.enter_async_context(client))
            verification = _Verification(asked, asked.decrypt_for(chain), etcd, servers)
            faults: Sequence[str] = await verification.foreign()
            if not faults:
                facts = [await server.facts() for server in servers]
                known = await servers[0].known_servers()
                faults = fleet_faults(facts, known, policies, verification.resources)
            return _Verdict(faults) if faults else await verification.verdict()

    verdict = run(work())
    if style == output.JSON:
        output.print_document(verdict.document(), style)
    else:
        verdict.tell(asked.resources)
    for note in kms_notes(chain.kms_calls if chain is not None else None):
        output.print_note(f"etcdmaint: {note}")
    return 0 if verdict.verified else NOT_VERIFIED


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was proven at `revision`, and why nothing more could be."""

    faults: Sequence[str] = ()
    findings: tuple[Finding, ...] = ()
    revision: int = 0

    @property
    def verified(self) -> bool:
        return not self.faults and all(finding.verified for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verified": self.verified,
            "revision": self.revision,
            "faults": self.faults,
            "resources": [
                {
                    "resource": finding.resource,
                    "stored": finding.stored,
                    "listed": finding.listed,
                    "verified": finding.verified,
                    "faults": finding.faults,
                }
                for finding in self.findings
            ],
        }

    def tell(self, resources: tuple[str, ...]) -> None:
        """For people, who asked for these resources or for all."""
        if self.findings:
            rows = [
                [
                    finding.resource,
                    str(finding.stored),
                    "-" if finding.listed is None else str(finding.listed),
                    "yes" if finding.verified else "NO: " + "; ".join(finding.faults),
                ]
                for finding in self.findings
            ]
            columns = ["RESOURCE", "IN ETCD", "LISTED", "VERIFIED"]
            output.print_table(columns, rows, numbers=frozenset({"IN ETCD", "LISTED"}))
            print()
        for fault in self.faults:
            output.print_line(f"Refused: {fault}.")
        if self.verified:
            only = f" of {', '.join(resources)}" if resources else ""
            output.print_line(f"Verified at revision {self.revision}: no frame{only} is left.")
        else:
            output.print_line("NOT VERIFIED: do not downgrade.")


@dataclass(frozen=True, slots=True)
class _Verification:
    """One attempt after the other, at one etcd and its API servers."""

    asked: Asked
    decrypt_for: Callable[[str, str], Decrypt | None]
    etcd: Reading
    servers: list[ApiServerClient]

    @property
    def resources(self) -> list[tuple[str, str]]:
        """Those that were asked for; none: all."""
        return [resource_named(self.asked.keyspace, name) for name in self.asked.resources]

    async def foreign(self) -> list[str]:
        """API servers that are not proven to use this etcd: the UID of kube-system must be the same."""

        key = self.asked.keyspace.key(Location("", "namespaces", "", "kube-system"))
        reader = await self.etcd.source.reader()
        found = await reader.client.range(key, timeout=self.etcd.timeout)
        plaintext = None
        if found.kvs:
            decrypt = self.decrypt_for("", "namespaces")
            _, plaintext, _ = examine(found.kvs[0].value, key, decrypt)
        uid = identify(plaintext).uid if plaintext else ""
        if not uid:
            return [f"{key.decode()} cannot be read, so no API server is proven to use this etcd"]
        return [
            f"{server.url} does not use this etcd: its kube-system is another one"
            for server in self.servers
            if await server.cluster_uid() != uid
        ]

    async def verdict(self) -> _Verdict:
        """What is proven of each resource. Starts again when the revision is compacted meanwhile."""
        from etcdmaint.cli.apiserver import ListExpired

        for attempt in range(_ATTEMPTS):
            if attempt:
                output.print_note("etcdmaint: the revision was compacted away; starting again")
            try:
                return await self._attempt()
            except (RevisionCompacted, ListExpired):
                continue
        fault = (
            f"the revision was compacted away {_ATTEMPTS} times: verify one --resource after the other, "
            "or with a higher --limit-rate"
        )
        return _Verdict([fault])

    async def _attempt(self) -> _Verdict:
        from etcdmaint.compression.audit import Audit, audit
        from etcdmaint.compression.census import Census
        from etcdmaint.compression.verification import judge
        from etcdmaint.compression.walk import Progress
        from etcdmaint.etcd.types import prefix_end

        asked, etcd = self.asked, self.etcd
        census = Census(asked.keyspace, decrypt_for=self.decrypt_for)
        root = asked.keyspace.root
        spans = asked.spans if asked.resources else ((root, prefix_end(root)),)
        state = Audit(census, Progress(spans))
        async with watched(state.progress, etcd.governor):
            await audit(state, etcd.source, exact=True, **etcd.terms)
        revision = state.progress.revisions[0]
        listed = await self._listed(census, revision)
        findings = judge(census, listed, [named(*each) for each in self.resources])
        return _Verdict((), findings, revision)

    async def _listed(self, census: Census, revision: int) -> dict[str, int | str | None]:
        """How many the API server has of each, or why it cannot tell."""
        from etcdmaint.compression.verification import faults_of, is_listed
        from etcdmaint.kube.client import KubeError

        listed: dict[str, int | str | None] = {}
        for row in census.rows.values():
            if is_listed(row) and not faults_of(row):
                resource, _, group = row.name.partition(".")
                try:
                    listed[row.name] = await self.servers[0].count(group, resource, revision)
                except KubeError as error:
                    listed[row.name] = str(error)
        return listed
