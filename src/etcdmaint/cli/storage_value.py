"""`etcdmaint storage identify|show|frame|unframe|decrypt|encrypt`: one stored value and its layers.

A value goes through three layers at the most: encryption, frame, object. A file, standard input,
`--hex` or a key of etcd is read as it is, to the last byte. A Secret's value is never shown unless
that is asked for, whichever way it comes. This module must not decide what a layer is: it asks the
library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from etcdmaint import errors
from etcdmaint.cli import flags, output
from etcdmaint.cli.connection import Connection, with_connection
from etcdmaint.cli.interruption import run
from etcdmaint.cli.parameters import HEX, KEY
from etcdmaint.cli.scanning import opened
from etcdmaint.cli.storage_codes import (
    CODES_OF_ONE_VALUE,
    CORRUPT,
    MALFORMED,
    NEWER,
    NO_KEY,
    NO_SUCH_KEY,
)
from etcdmaint.cli.stored_document import MOST_LAYERS, document_of, holds_secret, told_of
from etcdmaint.cli.stored_key import read
from etcdmaint.compression import frame
from etcdmaint.compression.resources import Keyspace, escaped, shown
from etcdmaint.compression.stored_value import Form, StoredValue, identify
from etcdmaint.errors import EtcdmaintError, InvalidInput
from etcdmaint.files import MOST_OF_A_VALUE, read_whole

# A contract with scripts: what a reader of the format may answer.
_CODES: tuple[tuple[type[EtcdmaintError], int], ...] = (
    (errors.ChecksumMismatch, CORRUPT),
    (errors.UnsupportedAlgorithm, NEWER),
    (errors.MalformedFrame, MALFORMED),
    (errors.EncryptionKeyMissing, NO_KEY),
    (errors.DecryptionFailed, CORRUPT),
)
_NO_OBJECT = "the key is an object's, and no serializer of Kubernetes writes this: it is damaged"


@dataclass(frozen=True, slots=True)
class Asked:
    """What every command is asked for."""

    value: bytes
    key: bytes
    keyspace: Keyspace
    encryption_config: Path | None
    show_secrets: bool
    style: str
    to_terminal: bool = False

    def no_object(self, form: str) -> bool:
        """Whether something that no serializer of Kubernetes writes lies where an object must."""
        lost = form in (Form.OPAQUE, Form.EMPTY)
        return lost and self.keyspace.locate(self.key) is not None

    def hides(self, value: bytes) -> bool:
        """Whether this is a Secret's, by what it says or by where it lies, and not to be shown."""
        return not self.show_secrets and holds_secret(value, self.keyspace.resource(self.key))

    def chain(self) -> Any:
        """The encryption of the key's resource. Raises InvalidInput where a flag is missing."""
        if self.encryption_config is None:
            raise errors.EncryptionKeyMissing(
                "the value is encrypted: give --encryption-config and --etcd-key"
            )
        if not self.key:
            raise InvalidInput("--etcd-key", "is needed: it chooses the keys and is authenticated")
        at = self.keyspace.locate(self.key)
        if at is None:
            raise InvalidInput("--etcd-key", "is of no known resource below --storage-prefix")
        chain = flags.chain_of(self.encryption_config)
        assert chain is not None
        return chain.for_resource(at.group, at.resource)


def _code_for(error: EtcdmaintError) -> int:
    """What a reader of the format answers; 0 where the error is about something else."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 0)


def _value(
    connection: Connection | None, file: str, hexed: bytes | None, key: bytes
) -> bytes | None:
    """What the flags lead to; None where there is nothing at the key."""
    if connection is not None:
        if file != "-" or hexed is not None:
            raise InvalidInput("--endpoints", "cannot be given beside a file or --hex")
        if not key:
            raise InvalidInput("--etcd-key", "is needed: it says what to read")
        return run(_stored(connection, key))
    if hexed is not None:
        if file != "-":
            raise InvalidInput("--hex", "cannot be given beside a file")
        return hexed
    if file == "-":
        return read_whole(sys.stdin.buffer, field="standard input", most=MOST_OF_A_VALUE)
    return read_whole(Path(file), field=file, most=MOST_OF_A_VALUE)


async def _stored(connection: Connection, key: bytes) -> bytes | None:
    async with opened(connection) as cluster:
        found = await read(cluster, key, timeout=connection.command_timeout)
        return found.kvs[0].value if found.kvs else None


def _command(name: str, *styles: str) -> Callable[[Callable[[Asked], int]], click.Command]:
    """A command on one value; the library's errors become its exit code."""

    def decorate(function: Callable[[Asked], int]) -> click.Command:
        def command(
            connection: Connection | None,
            file: str,
            hexed: bytes | None,
            etcd_key: bytes,
            **more: Any,
        ) -> int:
            value = _value(connection, file, hexed, etcd_key)
            if value is None:
                output.print_note(f"etcdmaint: there is nothing at {shown(etcd_key)}")
                return NO_SUCH_KEY
            try:
                return function(Asked(value, etcd_key, **more))
            except EtcdmaintError as error:
                if not (code := _code_for(error)):
                    raise
                output.print_note(f"etcdmaint: {error}")
                return code

        wrapped: Any = command
        for flag in (
            *((flags.to_terminal,) if "raw" in styles else ()),
            flags.output_flag(*styles),
            flags.show_secrets,
            flags.encryption_config,
            flags.storage_prefix,
            click.option(
                "--etcd-key",
                type=KEY,
                default="",
                show_default=False,
                help="Where the value lies; with --endpoints it is read from there.",
            ),
            click.option("--hex", "hexed", type=HEX, help="The value itself, as hex digits."),
            click.argument("file", default="-", type=click.Path(dir_okay=False), required=False),
            partial(with_connection, optional=True),
        ):
            wrapped = flag(wrapped)
        return click.command(name, epilog=CODES_OF_ONE_VALUE, help=function.__doc__)(wrapped)

    return decorate


@_command("identify", "text", "json", "yaml")
def identify_(asked: Asked) -> int:
    """Tell what a value is, layer by layer, without showing any of it.

    An encrypted value is opened where --encryption-config and --etcd-key are given.
    """
    layers: list[dict[str, Any]] = []
    code = 0
    try:
        for layer, _ in _layers(asked, opening=asked.encryption_config is not None):
            layers.append(layer)
    except EtcdmaintError as error:
        if not (code := _code_for(error)):
            raise
        layers[-1]["fault"] = f"{error.reason}: {error}"
    if not code and asked.no_object(layers[-1]["form"]):
        layers[-1]["fault"], code = _NO_OBJECT, CORRUPT
    if asked.style == "text":
        for depth, layer in enumerate(layers):
            for name, value in layer.items():
                click.echo(f"{'  ' * depth}{name}: {escaped(str(value))}")
    else:
        output.print_document(layers, asked.style)
    return code


@_command("show", "yaml", "json", "raw", "hex")
def show(asked: Asked) -> int:
    """Show the object in a value, whatever layers are around it.

    Protobuf is shown by the numbers of its fields, but for a few kinds that are known. A Secret's
    data is left out unless --show-secrets is given.
    """
    *_, (_, plaintext) = _layers(asked, opening=True)
    if asked.style in ("raw", "hex"):
        return _write_bytes(asked, plaintext)
    output.print_document(document_of(plaintext, hide=asked.hides(plaintext)), asked.style)
    if asked.no_object(identify(plaintext).form):
        output.print_note(f"etcdmaint: {_NO_OBJECT}")
        return CORRUPT
    return 0


@_command("frame", "raw", "hex")
def frame_(asked: Asked) -> int:
    """Frame a plaintext, as a writer of KEP-6264 does for a value that its policy selects."""
    try:
        framed = frame.encode(asked.value)
    except frame.PlaintextTooLarge as error:
        raise InvalidInput("", str(error)) from None
    return _write_bytes(asked, framed)


@_command("unframe", "raw", "hex")
def unframe(asked: Asked) -> int:
    """Take the frame off a value; one that has none comes out as it went in."""
    return _write_bytes(asked, frame.decode(asked.value))


@_command("decrypt", "raw", "hex")
def decrypt(asked: Asked) -> int:
    """Take the encryption off a value, and nothing else: a frame stays on."""
    plaintext, _ = asked.chain().from_storage(asked.value, asked.key)
    return _write_bytes(asked, plaintext)


@_command("encrypt", "raw", "hex")
def encrypt(asked: Asked) -> int:
    """Encrypt a value as the first provider of its resource writes it."""
    stored = asked.chain().to_storage(asked.value, asked.key)
    return _write_bytes(asked, stored)


def _layers(asked: Asked, *, opening: bool) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each layer from the outside in: what it is, and what it holds. Raises where one stays shut."""
    value = asked.value
    for _ in range(MOST_LAYERS):
        found = identify(value)
        yield _described(value, found), value
        if found.form is Form.FRAME:
            value = frame.decode(value)
        elif found.form is Form.ENCRYPTED and opening:
            value, _ = asked.chain().from_storage(value, asked.key)
        else:
            return


def _described(value: bytes, found: StoredValue) -> dict[str, Any]:
    told = told_of(found)
    if found.form is Form.FRAME:
        seen = frame.describe(value)
        names = {int(known): known.name.lower() for known in frame.Algorithm}
        told |= {
            "algorithm": None if seen.algorithm is None else names.get(seen.algorithm, "unknown"),
            "algorithm_id": seen.algorithm,
            "checksum": _checksum(seen.stored_checksum),
            "computed_checksum": _checksum(seen.computed_checksum),
            "declared_length": seen.declared_length,
            "body_length": seen.body_length,
        }
    return {name: content for name, content in told.items() if content is not None}


def _checksum(number: int | None) -> str | None:
    return None if number is None else f"{number:08x}"


def _write_bytes(asked: Asked, value: bytes) -> int:
    """Write bytes, unless they are a Secret's or would reach a terminal."""
    if asked.hides(value):
        raise InvalidInput("--show-secrets", "this is a Secret: its value is shown with this flag")
    if asked.style == "hex":
        click.echo(value.hex())
        return 0
    if sys.stdout.isatty() and not asked.to_terminal:
        raise InvalidInput("-o raw", "would reach a terminal: use -o hex, or give --to-terminal")
    output.print_bytes(value)
    return 0
