"""`etcdmaint storage get`: one object as it lies in etcd, and as it was before.

For the moment in which kubectl has no answer: it asks etcd, takes off what encryption and compression
there is, and shows the object. A Secret's value is shown only where that is asked for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etcdmaint.cli import flags, output, stored_key
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import KEY
from etcdmaint.cli.scanning import opened, resource_named
from etcdmaint.cli.storage_codes import CODES_OF_ONE_VALUE, NO_SUCH_KEY, code_of_value
from etcdmaint.cli.stored_document import document_of, holds_secret
from etcdmaint.compression.contents import Form, examine
from etcdmaint.compression.resources import Keyspace, Location, shown
from etcdmaint.errors import InvalidInput
from etcdmaint.quantities import format_bytes

if TYPE_CHECKING:
    from etcdmaint.compression.encryption.chain import EncryptionChain
    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.types import KeyValue

_MOST_LISTED = 500
# What a history may hold; objects take some times as much while they are shown.
_MOST_BYTES = 32 << 20


@click.command("get", epilog=CODES_OF_ONE_VALUE)
@click.argument("target", metavar="KEY|RESOURCE")
@click.argument("name", required=False)
@with_connection
@click.option("-n", "--namespace", help="The object's namespace.")
@flags.storage_prefix
@flags.encryption_config
@click.option(
    "--history",
    is_flag=True,
    help="Every revision of it that is left, newest first, also of one that was deleted.",
)
@click.option("--raw", is_flag=True, help="The bytes as etcd has them, with nothing taken off.")
@flags.show_secrets
@flags.to_terminal
@flags.output_flag(
    output.YAML,
    output.JSON,
    default=None,
    help="How to write it. Default: yaml, and a table for a list.",
)
def get(
    connection: Connection,
    target: str,
    name: str | None,
    namespace: str | None,
    keyspace: Keyspace,
    encryption_config: Path | None,
    history: bool,
    raw: bool,
    show_secrets: bool,
    to_terminal: bool,
    style: str | None,
) -> int:
    """Show the object at a key of etcd, or that of a RESOURCE with this NAME; without a name, list them.

    Custom resources and the kinds that matter most in trouble come out as kubectl would show them,
    other protobuf by the numbers of its fields.
    """
    key, single = _key(keyspace, target, name, namespace)
    if raw and history:
        raise InvalidInput("--raw", "cannot be given beside --history")
    if raw and sys.stdout.isatty() and not to_terminal:
        raise InvalidInput("--raw", "would reach a terminal: give --to-terminal if that is meant")

    chain = flags.chain_of(encryption_config)

    async def work() -> int:
        async with opened(connection) as cluster:
            getting = _Getting(connection, keyspace, chain, show_secrets, style)
            if not single:
                return await getting.list(cluster, key)
            if history:
                return await getting.history(cluster, key)
            return await getting.one(cluster, key, raw=raw)

    return run(work())


def _key(
    keyspace: Keyspace, target: str, name: str | None, namespace: str | None
) -> tuple[bytes, bool]:
    """The key, and whether it is one object's: else it is what the keys of a list begin with."""

    if target.startswith("/"):
        if name or namespace:
            raise InvalidInput("KEY", "is whole: no name and no namespace beside it")
        return KEY.read(target), True
    group, resource = resource_named(keyspace, target)
    if name:
        return keyspace.key(Location(group, resource, namespace or "", name)), True
    prefix = keyspace.prefix(group, resource)
    return prefix + (KEY.read(f"{namespace}/") if namespace else b""), False


@dataclass(frozen=True, slots=True)
class _Getting:
    connection: Connection
    keyspace: Keyspace
    chain: EncryptionChain | None
    show_secrets: bool
    style: str | None

    @property
    def _timeout(self) -> float:
        return self.connection.command_timeout

    async def one(self, cluster: ClusterClient, key: bytes, *, raw: bool) -> int:
        """Show what is there now."""
        found = await stored_key.read(cluster, key, timeout=self._timeout)
        if not found.kvs:
            return self._missing(key, "; --history looks for what was there")
        if raw:
            return self._raw(found.kvs[0])
        document, code = self._document(found.kvs[0])
        output.print_document(document, self.style or output.YAML)
        return code

    async def history(self, cluster: ClusterClient, key: bytes) -> int:
        """Show all that is left of it, also where it has been deleted."""
        codes = []
        documents: list[dict[str, Any]] = []
        size = 0
        async for found in stored_key.revisions(cluster, key, timeout=self._timeout):
            if isinstance(found, int):
                documents.append({"revision": found, "deleted": True})
                continue
            document, code = self._document(found)
            codes.append(code)
            head = {"revision": found.mod_revision, "version": found.version}
            documents.append(head | {"size": len(found.value), "object": document})
            size += len(found.value)
            if size > _MOST_BYTES:
                output.print_note(
                    f"etcdmaint: what is older than revision {found.mod_revision} is left out, "
                    f"after {format_bytes(size)}"
                )
                break
        if not documents:
            return self._missing(key)
        output.print_document(documents, self.style or output.YAML)
        return min((code for code in codes if code), default=0)

    async def list(self, cluster: ClusterClient, prefix: bytes) -> int:
        """What keys there are, and in which form; nothing is decrypted for that."""

        documents: list[dict[str, Any]] = []
        count = 0
        async for found in stored_key.pages(
            cluster, prefix, most=_MOST_LISTED, timeout=self._timeout
        ):
            count = count or found.count
            documents += [
                {
                    "name": shown(kv.key[len(prefix) :]),
                    "size": len(kv.value),
                    "revision": kv.mod_revision,
                    "writes": kv.version,
                    "form": str(examine(kv.value, kv.key)[0]),
                }
                for kv in found.kvs
            ]
        if not documents:
            return self._missing(prefix)
        if self.style is not None:
            output.print_document(documents, self.style)
        else:
            columns = [name.upper() for name in documents[0]]
            rows = [[*map(str, each.values())] for each in documents]
            for row, each in zip(rows, documents, strict=True):
                row[1] = format_bytes(each["size"])
            output.print_table(columns, rows, numbers=frozenset({"SIZE", "REVISION", "WRITES"}))
        if len(documents) < count:
            told = f"the first {len(documents)} of {count}; use --namespace"
            output.print_note(f"etcdmaint: {told}")
        return 0

    def _missing(self, key: bytes, advice: str = "") -> int:

        output.print_note(f"etcdmaint: there is nothing at {shown(key)}{advice}")
        return NO_SUCH_KEY

    def _raw(self, kv: KeyValue) -> int:
        if self._hides(kv, kv.value):
            raise InvalidInput("--show-secrets", "this is a Secret: it is shown with this flag")
        output.print_bytes(kv.value)
        return 0

    def _hides(self, kv: KeyValue, value: bytes) -> bool:
        """Whether this is a Secret's, by where it lies or by what it says, and not to be shown."""
        return not self.show_secrets and holds_secret(value, self.keyspace.resource(kv.key))

    def _document(self, kv: KeyValue) -> tuple[dict[str, Any], int]:
        """The object, or why it cannot be shown, and the exit code for that."""
        form, plaintext = self._examined(kv)
        located = self.keyspace.resource(kv.key) is not None
        code = code_of_value(form.content, located=located)
        if plaintext is None:
            return {"form": str(form), "size": len(kv.value)}, code
        return document_of(plaintext, hide=self._hides(kv, plaintext)), code

    def _examined(self, kv: KeyValue) -> tuple[Form, bytes | None]:

        found = self.keyspace.resource(kv.key)
        if self.chain is None or found is None:
            return examine(kv.value, kv.key)[:2]
        return examine(kv.value, kv.key, self.chain.for_resource(*found).decrypt)[:2]
