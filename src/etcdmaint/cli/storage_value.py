"""`etcdmaint storage identify|show|frame|unframe|decrypt|encrypt`: one stored value and its layers.

A value goes through three layers at the most: encryption, frame, object. A file, standard input,
`--hex` or a key of etcd is read as it is, to the last byte. A Secret's value is never shown unless
that is asked for, whichever way it comes. This module must not decide what a layer is: it asks the
library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from etcdmaint import errors
from etcdmaint.cli import output
from etcdmaint.cli.connection import CONNECTION_FLAGS, connection_from
from etcdmaint.cli.interruption import run
from etcdmaint.cli.scanning import opened
from etcdmaint.cli.storage_codes import (
    CODES_OF_ONE_VALUE,
    CORRUPT,
    MALFORMED,
    NEWER,
    NO_KEY,
    NO_SUCH_KEY,
)
from etcdmaint.cli.stored_document import document_of, may_be_secret
from etcdmaint.cli.stored_key import read
from etcdmaint.compression import frame
from etcdmaint.compression.resources import Keyspace, Location, escaped, shown
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
_CONNECTING = tuple(str(flag.name) for flag in CONNECTION_FLAGS)
_NO_OBJECT = "the key is an object's, and no serializer of Kubernetes writes this: it is damaged"
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

    def is_secret(self, found: StoredValue, value: bytes) -> bool:
        """Whether this is a Secret, by what it says or by where it lies."""
        at = Keyspace(self.prefix).resource(self.key)
        return at == ("", "secrets") or may_be_secret(found, value)

    def no_object(self, form: str) -> bool:
        """Whether something that no serializer of Kubernetes writes lies where an object must."""
        return form in (Form.OPAQUE, Form.EMPTY) and self.location is not None

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
            raise InvalidInput("--etcd-key", "is of no known resource below --storage-prefix")
        chain = EncryptionChain(EncryptionConfiguration.read(self.encryption_config))
        # It may have dialled a KMS plugin.
        click.get_current_context().call_on_close(chain.close)
        return chain.for_resource(at.group, at.resource)


def _code_for(error: EtcdmaintError) -> int:
    """What a reader of the format answers; 0 where the error is about something else."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 0)


def _options(function: Command) -> Command:
    for option in reversed(
        (
            click.argument("file", default="-", type=click.Path(dir_okay=False), required=False),
            click.option("--hex", "hexed", metavar="HEX", help="The value itself, as hex digits."),
            click.option(
                "--etcd-key",
                default="",
                metavar="KEY",
                help="Where the value lies; with --endpoints it is read from there.",
            ),
            click.option(
                "--storage-prefix",
                default="/registry",
                show_default=True,
                metavar="PREFIX",
                help="kube-apiserver's --etcd-prefix: where its objects are.",
            ),
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
    # click collects a function's options from here, the last one first.
    own = function.__click_params__  # type: ignore[attr-defined]  # click's own place
    function.__click_params__ = [*reversed(CONNECTION_FLAGS), *own]  # type: ignore[attr-defined]  # as above
    return function


def _style(*styles: str) -> Callable[[Command], Command]:
    return click.option(
        "-o",
        "style",
        type=click.Choice(styles),
        default=styles[0],
        show_default=True,
        help="How to write it.",
    )


_to_terminal = click.option(
    "--to-terminal", is_flag=True, help="Write raw bytes even where they reach a terminal."
)


def _asked(
    connecting: dict[str, Any],
    file: str,
    hexed: str | None,
    etcd_key: str,
    storage_prefix: str,
    encryption_config: Path | None,
    show_secrets: bool,
) -> Asked | None:
    """What the flags ask for; None where there is nothing at the key."""
    key = etcd_key.encode("utf-8", "surrogateescape")
    prefix = storage_prefix.encode("utf-8", "surrogateescape")
    # The environment of somebody who works with etcdctl must not change what a file is.
    source = click.get_current_context().get_parameter_source
    if any(source(name) is ParameterSource.COMMANDLINE for name in connecting):
        if file != "-" or hexed is not None:
            raise InvalidInput("--endpoints", "cannot be given beside a file or --hex")
        value = _from_etcd(key, connecting)
    else:
        value = _from_here(file, hexed)
    if value is None:
        return None
    return Asked(value, key, prefix, encryption_config, show_secrets)


def _from_etcd(key: bytes, connecting: dict[str, Any]) -> bytes | None:
    if not key:
        raise InvalidInput("--etcd-key", "is needed: it says what to read")
    connection = connection_from(**connecting)

    async def work() -> bytes | None:
        async with opened(connection) as cluster:
            found = await read(cluster, key, timeout=connection.command_timeout)
            return found.kvs[0].value if found.kvs else None

    return run(work())


def _from_here(file: str, hexed: str | None) -> bytes:
    if hexed is not None:
        if file != "-":
            raise InvalidInput("--hex", "cannot be given beside a file")
        try:
            return bytes.fromhex(hexed)
        except ValueError:
            # Not quoted: it may be a Secret's.
            raise InvalidInput("--hex", "must be pairs of hex digits") from None
    if file == "-":
        return read_whole(sys.stdin.buffer, field="standard input", most=MOST_OF_A_VALUE)
    return read_whole(Path(file), field=file, most=MOST_OF_A_VALUE)


def _command(name: str, *decorators: Callable[[Any], Any]) -> Callable[[Callable[..., int]], Any]:
    """A command on one value; the library's errors become its exit code."""

    def decorate(function: Callable[..., int]) -> Any:
        def run(style: str, to_terminal: bool = False, **flags: Any) -> int:
            connecting = {name: flags.pop(name) for name in _CONNECTING}
            asked = _asked(connecting, **flags)
            if asked is None:
                key = str(flags["etcd_key"]).encode("utf-8", "surrogateescape")
                output.print_note(f"etcdmaint: there is nothing at {shown(key)}")
                return NO_SUCH_KEY
            try:
                return function(asked, style, to_terminal)
            except EtcdmaintError as error:
                if not (code := _code_for(error)):
                    raise
                output.print_note(f"etcdmaint: {error}")
                return code

        run.__doc__ = function.__doc__
        wrapped: Any = run
        for decorator in (*decorators, _options):
            wrapped = decorator(wrapped)
        return click.command(name, epilog=CODES_OF_ONE_VALUE)(wrapped)

    return decorate


@_command("identify", _style("text", "json", "yaml"))
def identify_(asked: Asked, style: str, _to_terminal: bool) -> int:
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
    if style == "text":
        for depth, layer in enumerate(layers):
            for name, value in layer.items():
                click.echo(f"{'  ' * depth}{name}: {escaped(str(value))}")
    else:
        output.print_document(layers, style)
    return code


@_command("show", _style("yaml", "json", "raw", "hex"), _to_terminal)
def show(asked: Asked, style: str, to_terminal: bool) -> int:
    """Show the object in a value, whatever layers are around it.

    Protobuf is shown by the numbers of its fields, but for a few kinds that are known. A Secret's
    data is left out unless --show-secrets is given.
    """
    *_, (_, plaintext) = _layers(asked, opening=True)
    found = identify(plaintext)
    if style in ("raw", "hex"):
        return _write_bytes(asked, plaintext, style, to_terminal)
    hide = not asked.show_secrets and _holds_secret(asked, plaintext)
    output.print_document(document_of(plaintext, found, hide=hide), style)
    if asked.no_object(found.form):
        output.print_note(f"etcdmaint: {_NO_OBJECT}")
        return CORRUPT
    return 0


@_command("frame", _style("raw", "hex"), _to_terminal)
def frame_(asked: Asked, style: str, to_terminal: bool) -> int:
    """Frame a plaintext, as a writer of KEP-6264 does for a value that its policy selects."""
    try:
        framed = frame.encode(asked.value)
    except frame.PlaintextTooLarge as error:
        raise InvalidInput("", str(error)) from None
    return _write_bytes(asked, framed, style, to_terminal)


@_command("unframe", _style("raw", "hex"), _to_terminal)
def unframe(asked: Asked, style: str, to_terminal: bool) -> int:
    """Take the frame off a value; one that has none comes out as it went in."""
    return _write_bytes(asked, frame.decode(asked.value), style, to_terminal)


@_command("decrypt", _style("raw", "hex"), _to_terminal)
def decrypt(asked: Asked, style: str, to_terminal: bool) -> int:
    """Take the encryption off a value, and nothing else: a frame stays on."""
    plaintext, _ = asked.chain().from_storage(asked.value, asked.key)
    return _write_bytes(asked, plaintext, style, to_terminal)


@_command("encrypt", _style("raw", "hex"), _to_terminal)
def encrypt(asked: Asked, style: str, to_terminal: bool) -> int:
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
        if asked.is_secret(found, value):
            return True
        if found.form is not Form.FRAME:
            return False
        try:
            value = frame.decode(value)
        except frame.FrameError:
            return False
    return True
