"""`etcdmaint storage`: look into a stored value, and take its layers off or put them on.

A value goes through three layers at the most: encryption, frame, object. A file, standard input or
`--hex` is read as it is, to the last byte. A Secret's value is never shown unless that is asked for,
whichever way it comes. This module must not decide what a layer is: it asks the library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from etcdmaint import errors
from etcdmaint.cli.check_vectors import check_vectors
from etcdmaint.cli.exits import one_line
from etcdmaint.cli.storage_estimate import estimate
from etcdmaint.cli.storage_get import get
from etcdmaint.cli.storage_scan import scan
from etcdmaint.cli.storage_validate import render, validate
from etcdmaint.cli.storage_verify import verify_downgrade
from etcdmaint.cli.stored_document import document_of, write_document
from etcdmaint.compression import frame
from etcdmaint.compression.resources import Keyspace, Location
from etcdmaint.compression.stored_value import Form, StoredValue, identify
from etcdmaint.errors import EtcdmaintError, InvalidInput

# A contract with scripts: what a reader of the format may answer.
CORRUPT, NEWER, MALFORMED, NO_KEY = 10, 11, 12, 13
_CODES: tuple[tuple[type[EtcdmaintError], int], ...] = (
    (errors.ChecksumMismatch, CORRUPT),
    (errors.UnsupportedAlgorithm, NEWER),
    (errors.MalformedFrame, MALFORMED),
    (errors.EncryptionKeyMissing, NO_KEY),
    (errors.DecryptionFailed, CORRUPT),
)
EXIT_CODES = (
    "\b\nExit codes besides 0, 1, 2 and 130:\n"
    "  10  damaged\n  11  written by a newer release\n  12  intact, but no good frame\n"
    "  13  no encryption key for it"
)
# More layers than any writer puts on.
_MAX_LAYERS = 8

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags that every command has."""

    value: bytes
    key: bytes
    prefix: bytes
    encryption_config: Path | None
    show_secrets: bool

    @property
    def location(self) -> Location | None:
        """The object that --etcd-key names, if it names one."""
        return Keyspace(self.prefix).locate(self.key)

    def is_secret(self, found: StoredValue) -> bool:
        """Whether this is a Secret, by what it says or by where it lies."""
        at = self.location
        return found.is_secret or (at is not None and (at.group, at.resource) == ("", "secrets"))

    def chain(self) -> Any:
        """The encryption of the key's resource. Raises InvalidInput where a flag is missing."""
        from etcdmaint.compression.encryption.chain import EncryptionChain
        from etcdmaint.compression.encryption.configuration import EncryptionConfiguration

        if self.encryption_config is None:
            raise errors.EncryptionKeyMissing(
                "the value is encrypted: give --encryption-config and --etcd-key"
            )
        if not self.key:
            raise InvalidInput("--etcd-key", "is needed: it chooses the keys and is authenticated")
        at = self.location
        if at is None:
            raise InvalidInput("--etcd-key", "is of no known resource below --etcd-prefix")
        chain = EncryptionChain(EncryptionConfiguration.read(self.encryption_config))
        # It may have dialled a KMS plugin.
        click.get_current_context().call_on_close(chain.close)
        return chain.for_resource(at.group, at.resource)


def _options(function: Command) -> Command:
    for option in reversed(
        (
            click.argument("file", default="-", type=click.Path(dir_okay=False), required=False),
            click.option("--hex", "hexed", metavar="HEX", help="The value itself, as hex digits."),
            click.option("--etcd-key", default="", metavar="KEY", help="Where the value lies."),
            click.option("--etcd-prefix", default="/registry", show_default=True, metavar="PREFIX"),
            click.option(
                "--encryption-config",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="kube-apiserver's --encryption-provider-config.",
            ),
            click.option("--show-secrets", is_flag=True, help="Show the values of Secrets."),
        )
    ):
        function = option(function)
    return function


def _style(*styles: str) -> Callable[[Command], Command]:
    return click.option(
        "-o", "style", type=click.Choice(styles), default=styles[0], show_default=True
    )


_to_terminal = click.option(
    "--to-terminal", is_flag=True, help="Write raw bytes even where they reach a terminal."
)


def _asked(
    file: str,
    hexed: str | None,
    etcd_key: str,
    etcd_prefix: str,
    encryption_config: Path | None,
    show_secrets: bool,
) -> Asked:
    if hexed is not None:
        if file != "-":
            raise InvalidInput("--hex", "cannot be given beside a file")
        try:
            value = bytes.fromhex(hexed)
        except ValueError:
            # Not quoted: it may be a Secret's.
            raise InvalidInput("--hex", "must be pairs of hex digits") from None
    elif file == "-":
        value = sys.stdin.buffer.read()
    else:
        try:
            value = Path(file).read_bytes()
        except OSError as error:
            raise InvalidInput(file, f"cannot be read: {error.strerror}") from None
    key = etcd_key.encode("utf-8", "surrogateescape")
    prefix = etcd_prefix.encode("utf-8", "surrogateescape")
    return Asked(value, key, prefix, encryption_config, show_secrets)


@click.group(epilog=EXIT_CODES)
def storage() -> None:
    """Look into what Kubernetes has stored in etcd."""


for command in (scan, estimate, verify_downgrade, get, validate, render, check_vectors):
    storage.add_command(command)


def _command(name: str, *decorators: Callable[[Any], Any]) -> Callable[[Callable[..., int]], Any]:
    """A command on one value; the library's errors become its exit code."""

    def decorate(function: Callable[..., int]) -> Any:
        def run(style: str, to_terminal: bool = False, **flags: Any) -> int:
            try:
                return function(_asked(**flags), style, to_terminal)
            except EtcdmaintError as error:
                for kind, code in _CODES:
                    if isinstance(error, kind):
                        click.echo(f"etcdmaint: {one_line(str(error))}", err=True)
                        return code
                raise

        run.__doc__ = function.__doc__
        wrapped: Any = run
        for decorator in (*decorators, _options):
            wrapped = decorator(wrapped)
        return storage.command(name, epilog=EXIT_CODES)(wrapped)

    return decorate


@_command("identify", _style("text", "json", "yaml"))
def _identify(asked: Asked, style: str, _to_terminal: bool) -> int:
    """Tell what a value is, layer by layer, without showing any of it.

    An encrypted value is opened where --encryption-config and --etcd-key are given.
    """
    layers: list[dict[str, Any]] = []
    code = 0
    try:
        for layer, _ in _layers(asked, opening=asked.encryption_config is not None):
            layers.append(layer)
    except EtcdmaintError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 0)
        if not code:
            raise
        layers[-1]["fault"] = f"{error.reason}: {error}"
    if style == "text":
        for depth, layer in enumerate(layers):
            for name, value in layer.items():
                click.echo(f"{'  ' * depth}{name}: {one_line(str(value))}")
    else:
        write_document(layers, style)
    return code


@_command("show", _style("yaml", "json", "raw", "hex"), _to_terminal)
def _show(asked: Asked, style: str, to_terminal: bool) -> int:
    """Show the object in a value, whatever layers are around it.

    Protobuf is shown by the numbers of its fields, but for a few kinds that are known. A Secret's
    data is left out unless --show-secrets is given.
    """
    *_, (_, plaintext) = _layers(asked, opening=True)
    found = identify(plaintext)
    if style in ("raw", "hex"):
        return _write_bytes(asked, plaintext, style, to_terminal)
    write_document(document_of(plaintext, found, hide=_hides(asked, found)), style)
    return 0


@_command("frame", _style("raw", "hex"), _to_terminal)
def _frame(asked: Asked, style: str, to_terminal: bool) -> int:
    """Frame a plaintext, as a writer of KEP-6264 does for a value that its policy selects."""
    try:
        framed = frame.encode(asked.value)
    except frame.PlaintextTooLarge as error:
        raise InvalidInput("", str(error)) from None
    return _write_bytes(asked, framed, style, to_terminal)


@_command("unframe", _style("raw", "hex"), _to_terminal)
def _unframe(asked: Asked, style: str, to_terminal: bool) -> int:
    """Take the frame off a value; one that has none comes out as it went in."""
    return _write_bytes(asked, frame.decode(asked.value), style, to_terminal)


@_command("decrypt", _style("raw", "hex"), _to_terminal)
def _decrypt(asked: Asked, style: str, to_terminal: bool) -> int:
    """Take the encryption off a value, and nothing else: a frame stays on."""
    plaintext, _ = asked.chain().from_storage(asked.value, asked.key)
    return _write_bytes(asked, plaintext, style, to_terminal)


@_command("encrypt", _style("raw", "hex"), _to_terminal)
def _encrypt(asked: Asked, style: str, to_terminal: bool) -> int:
    """Encrypt a value as the first provider of its resource writes it."""
    stored = asked.chain().to_storage(asked.value, asked.key)
    return _write_bytes(asked, stored, style, to_terminal)


def _layers(asked: Asked, *, opening: bool) -> Any:
    """Each layer from the outside in: what it is, and what it holds. Raises where one stays shut."""
    value = asked.value
    for _ in range(_MAX_LAYERS):
        found = identify(value)
        yield _described(value, found), value
        if found.form is Form.FRAME:
            value = frame.decode(value)
        elif found.form is Form.ENCRYPTED and opening:
            value, _ = asked.chain().from_storage(value, asked.key)
        else:
            return


def _described(value: bytes, found: StoredValue) -> dict[str, Any]:
    told = {name: content for name, content in asdict(found).items() if content != ""}
    told["form"] = str(found.form)
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


def _hides(asked: Asked, found: StoredValue) -> bool:
    return asked.is_secret(found) and not asked.show_secrets


def _write_bytes(asked: Asked, value: bytes, style: str, to_terminal: bool) -> int:
    """Write bytes, unless they are a Secret's or would reach a terminal."""
    if not asked.show_secrets and _holds_secret(asked, value):
        raise InvalidInput("--show-secrets", "this is a Secret: its value is shown with this flag")
    if style == "hex":
        click.echo(value.hex())
        return 0
    if sys.stdout.isatty() and not to_terminal:
        raise InvalidInput("-o raw", "would reach a terminal: use -o hex, or give --to-terminal")
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()
    return 0


def _holds_secret(asked: Asked, value: bytes) -> bool:
    """Whether anybody could read a Secret out of these bytes: ciphertext alone is none."""
    for _ in range(_MAX_LAYERS):
        found = identify(value)
        if found.form is Form.ENCRYPTED:
            return False
        if asked.is_secret(found):
            return True
        if found.form is not Form.FRAME:
            return False
        try:
            value = frame.decode(value)
        except frame.FrameError:
            return False
    return True
