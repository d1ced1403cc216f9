"""What every command that reads the whole etcd shares: flags, whom it stands back for, how it looks.

Such a command may take an hour, so it says how far it is, and when it is broken off it leaves behind
what is needed to go on. Nothing large is imported before a command runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etcdmaint.cli import output
from etcdmaint.cli.exits import one_line
from etcdmaint.cli.flags import KMS_RATE, chain_of, encryption_config, storage_prefix
from etcdmaint.cli.parameters import DURATION, KEY, RATE
from etcdmaint.clock import Clock, SystemClock
from etcdmaint.errors import EncryptionKeyMissing, InvalidInput
from etcdmaint.files import read_whole
from etcdmaint.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from collections import Counter

    from etcdmaint.cli.connection import Connection
    from etcdmaint.compression.contents import Decrypt
    from etcdmaint.compression.encryption.chain import Decrypted, EncryptionChain
    from etcdmaint.compression.governor import Governor
    from etcdmaint.compression.policy import Policy
    from etcdmaint.compression.resources import Keyspace
    from etcdmaint.compression.source import ClusterSource
    from etcdmaint.compression.walk import Courtesy, Progress, Span, Timing
    from etcdmaint.etcd.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., Any])

_KMS_V1 = b"k8s:enc:kms:v1:"
# Seconds between two looks of a progress that is drawn, and of one that is written line by line.
_TICK, _FIRST_LINE, _LINES = 0.2, 1.0, 10.0
# Linux takes no single argument of 128 KiB.
_LONGEST_ARGUMENT = 120_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What to read, how fast, and how to open it; made by `with_scanning`."""

    keyspace: Keyspace
    spans: tuple[Span, ...]
    bytes_per_second: int | None
    patience: float
    encryption_config: Path | None
    kms_rate: float
    decrypt_kms: bool
    prefix: bytes | None = None
    resources: tuple[str, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether only a part of etcd is read."""
        return bool(self.prefix or self.resources)

    def timing(self) -> Timing:
        """How long to wait for what."""
        from etcdmaint.compression.walk import Timing

        return Timing(patience=self.patience)

    def question(self, *more: object) -> str:
        """The same for two runs that count the same things; `more` is what else matters.

        It holds the encryption configuration: it is to be hashed, and never to be shown.
        """
        path = self.encryption_config
        config = read_whole(path, field=str(path)) if path else b""
        return repr((self.keyspace.root, self.spans, config, self.decrypt_kms, *more))

    def chain(self) -> EncryptionChain | None:
        """The keys that --encryption-config names. Raises InvalidInput."""
        return chain_of(self.encryption_config, self.kms_rate)

    def decrypt_for(self, chain: EncryptionChain | None) -> Callable[[str, str], Decrypt | None]:
        """For each resource, how its values are opened."""

        def decrypt_for(group: str, resource: str) -> Decrypt | None:
            if chain is None:
                return None
            of_resource = chain.for_resource(group, resource)

            def without_v1(value: bytes, key: bytes) -> Decrypted:
                if value.startswith(_KMS_V1):
                    raise EncryptionKeyMissing("kms v1 is not decrypted")
                return of_resource.decrypt(value, key)

            return of_resource.decrypt if self.decrypt_kms else without_v1

        return decrypt_for


def with_scanning(command: Command, *, by_prefix: bool = True) -> Command:
    """Give a click command the flags of this module, and the `Asked` as argument `asked`.

    `by_prefix`: whether it has --prefix.
    """
    names = [each.name for each in fields(Asked) if each.name != "spans"]

    @functools.wraps(command)
    def collected(**keywords: Any) -> Any:
        given = {name: keywords.pop(name) for name in names if name in keywords}
        if not given["kms_rate"] > 0:
            raise InvalidInput("--kms-rate", "must be more than 0")
        spans = _spans(given["keyspace"], given.get("prefix"), given["resources"])
        return command(asked=Asked(spans=spans, **given), **keywords)

    for flag in reversed(_FLAGS if by_prefix else (*_FLAGS[:1], *_FLAGS[2:])):
        collected = flag(collected)
    return collected  # type: ignore[return-value]  # called by click only


_FLAGS = (
    click.option(
        "--resource",
        "resources",
        multiple=True,
        metavar="RESOURCE",
        help="Read only this resource, such as pods or deployments.apps; may be repeated.",
    ),
    click.option(
        "--prefix",
        type=KEY,
        metavar="PREFIX",
        help="Read only the keys that begin so. Default: all.",
    ),
    storage_prefix,
    click.option(
        "--limit-rate",
        "bytes_per_second",
        type=RATE,
        default="20Mi",
        help="Read so much a second, and less when etcd gets slower; 0: as fast as it goes.",
    ),
    click.option(
        "--patience",
        type=DURATION,
        default="30s",
        help="Give up when no member can be read from for so long.",
    ),
    encryption_config,
    click.option(
        "--kms-rate",
        type=float,
        default=KMS_RATE,
        metavar="N",
        help="At most so many Decrypt calls a second to a KMS plugin.",
    ),
    click.option(
        "--decrypt-kms", is_flag=True, help="Decrypt kms v1 too, which takes a call for each value."
    ),
)


def _spans(
    keyspace: Keyspace, prefix: bytes | None, resources: tuple[str, ...]
) -> tuple[Span, ...]:
    from etcdmaint.compression.walk import EVERYTHING, spans_of
    from etcdmaint.etcd.types import prefix_end

    if prefix is not None and resources:
        raise InvalidInput("--prefix", "cannot be given beside --resource")
    if prefix is not None:
        return ((prefix or b"\0", prefix_end(prefix)),)
    prefixes = [keyspace.prefix(*resource_named(keyspace, each)) for each in resources]
    return spans_of([(each, prefix_end(each)) for each in prefixes]) or (EVERYTHING,)


def resource_named(keyspace: Keyspace, text: str) -> tuple[str, str]:
    """Group and resource of `deployments.apps`, or of `deployments`. Raises InvalidInput."""
    resource, _, group = text.partition(".")
    if not group:
        first = resource.encode("utf-8", "surrogateescape")
        found = keyspace.resource(keyspace.root + first + b"/")
        if found is not None and found[1] == resource:
            return found
    try:
        prefix = keyspace.prefix(group, resource)
    except InvalidInput as error:
        raise InvalidInput("--resource", error.fault) from None
    # What is served under two groups is stored, and counted, under one.
    return keyspace.resource(prefix + b"x") or (group, resource)


def read_policy(path: Path | None) -> Policy | None:
    """The policy file of a person who wants to know what it would mean. Raises InvalidInput."""
    if path is None:
        return None
    from etcdmaint.compression.policy import FIRST_READER, Policy, Stage

    # What it may say at any stage, for a release that reads everything.
    major, minor = max(FIRST_READER.values())
    return Policy.read(path, stage=Stage.BETA, min_compatibility_version=f"{major}.{minor}")


@asynccontextmanager
async def opened(connection: Connection) -> AsyncIterator[ClusterClient]:
    """The cluster, closed at the end."""
    cluster = await connection.open()
    try:
        yield cluster
    finally:
        await cluster.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """An etcd that is open, and everything that a walk through it wants; made by `reading`."""

    cluster: ClusterClient
    source: ClusterSource
    clock: Clock
    governor: Governor
    courtesy: Courtesy
    timing: Timing
    timeout: float

    @property
    def terms(self) -> dict[str, Any]:
        """By whose clock a walk goes, how fast, for whom it stands back, and how long it waits."""
        return {
            "clock": self.clock,
            "governor": self.governor,
            "courtesy": self.courtesy,
            "timing": self.timing,
        }


@asynccontextmanager
async def reading(
    connection: Connection,
    asked: Asked,
    chain: EncryptionChain | None,
    *,
    serializable: bool = True,
) -> AsyncIterator[Reading]:
    """Everything ready to be read, and the plugins of the keys too; closed at the end."""
    from etcdmaint.compression.governor import Governor
    from etcdmaint.compression.source import ClusterSource
    from etcdmaint.defrag.courtesy import SlotCourtesy

    async with opened(connection) as cluster:
        if chain is not None:
            await chain.connect()
        timeout = max(connection.command_timeout, 5.0)
        clock = SystemClock()
        yield Reading(
            cluster,
            ClusterSource(cluster, timeout=timeout, serializable=serializable),
            clock,
            Governor(asked.bytes_per_second, clock),
            SlotCourtesy(cluster),
            asked.timing(),
            timeout,
        )


@asynccontextmanager
async def watched(progress: Progress, governor: Governor, what: str = "") -> AsyncIterator[None]:
    """Show how far it is, on standard error, while the work goes on; `what` goes before it."""
    task = asyncio.create_task(_show(progress, governor, what))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _show(progress: Progress, governor: Governor, what: str) -> None:
    loop = asyncio.get_running_loop()
    terminal = sys.stderr.isatty()
    begun, before = loop.time(), (progress.keys, progress.bytes)
    pause = _TICK if terminal else _FIRST_LINE
    try:
        while True:
            await asyncio.sleep(pause)
            pause = _TICK if terminal else _LINES
            seconds = loop.time() - begun
            line = one_line(what + _line(progress, before, seconds, slowed=governor.slowed))
            _draw(f"\r{line}\x1b[K" if terminal else f"{line}\n")
    finally:
        if terminal:
            _draw("\r\x1b[K")


def _draw(text: str) -> None:
    """A terminal that has gone away must not stop the work."""
    with contextlib.suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def _line(progress: Progress, before: tuple[int, int], seconds: float, *, slowed: bool) -> str:
    keys, size = progress.keys - before[0], progress.bytes - before[1]
    text = f"{progress.keys} of about {progress.expected} keys, {format_bytes(progress.bytes)}"
    if progress.waiting:
        return f"{text}; waiting for {progress.waiting}"
    text += f", {format_bytes(int(size / seconds))}/s"
    if keys:
        left = max(progress.expected - progress.keys, 0) * seconds / keys
        text += f", {format_duration(round(left))} left"
    return text + ("; slowed down, etcd answers late" if slowed else "")


def note_token(token: str) -> None:
    """Say how to go on."""
    how = "--resume"
    if len(token) > _LONGEST_ARGUMENT:
        how = "--resume - and this on its standard input:"
    output.print_note(f"etcdmaint: not finished; the same command goes on with {how} {token}")


def kms_notes(calls: Counter[str] | None) -> list[str]:
    """What the plugins were asked, which may be on somebody's bill."""
    number = calls["Decrypt"] if calls is not None else 0
    return [f"Decrypt calls to KMS plugins: {number}"] if number else []
