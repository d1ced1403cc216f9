"""What every command that reads the whole etcd shares: flags, whom it stands back for, how it looks.

Such a command may take an hour, so it says how far it is, and when it is broken off it leaves behind
what is needed to go on. Nothing large is imported before a command runs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from etcdmaint.cli import output
from etcdmaint.cli.exits import one_line
from etcdmaint.cli.parameters import Duration, ParamType, Size
from etcdmaint.errors import EncryptionKeyMissing, InvalidInput
from etcdmaint.quantities import format_bytes, format_duration

if TYPE_CHECKING:
    from etcdmaint.cli.connection import Connection
    from etcdmaint.compression.contents import Decrypt
    from etcdmaint.compression.encryption.chain import Decrypted, EncryptionChain
    from etcdmaint.compression.policy import Policy
    from etcdmaint.compression.resources import Keyspace
    from etcdmaint.compression.walk import Progress, Span, Timing
    from etcdmaint.etcd.cluster import ClusterClient

Command = TypeVar("Command", bound=Callable[..., Any])

_KMS_V1 = b"k8s:enc:kms:v1:"
_SLOT_SECONDS = 2.0
# Seconds between two looks of a progress that is drawn, and of one that is written line by line.
_TICK, _FIRST_LINE, _LINES = 0.2, 1.0, 10.0


class Rate(ParamType):
    """Bytes a second, such as 20Mi; 0 is no limit, which is None."""

    name = "rate"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Bytes a second, or None."""
        if value is None or str(value) == "0":
            return None
        return Size().convert(value, param, ctx)


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
    prefix: str | None = None
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
        """The same for two runs that count the same things; `more` is what else matters."""
        return repr((self.keyspace.root, self.spans, self.encryption_config, *more))

    def chain(self) -> EncryptionChain | None:
        """The keys that --encryption-config names. Raises InvalidInput."""
        if self.encryption_config is None:
            return None
        from etcdmaint.compression.encryption.chain import EncryptionChain
        from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
        from etcdmaint.compression.encryption.pace import Pace

        return EncryptionChain(
            EncryptionConfiguration.read(self.encryption_config), pace=Pace(self.kms_rate)
        )

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


def with_scanning(command: Command) -> Command:
    """Give a click command the flags of this module, and the `Asked` as argument `asked`."""

    def collected(
        *,
        prefix: str | None,
        storage_prefix: str,
        resources: tuple[str, ...],
        limit_rate: int | None,
        patience: float,
        encryption_config: Path | None,
        kms_rate: float,
        decrypt_kms: bool,
        **keywords: Any,
    ) -> Any:
        from etcdmaint.compression.resources import Keyspace

        if kms_rate <= 0:
            raise InvalidInput("--kms-rate", "must be more than 0")
        keyspace = Keyspace(storage_prefix.encode("utf-8", "surrogateescape"))
        asked = Asked(
            keyspace,
            _spans(keyspace, prefix, resources),
            limit_rate,
            patience,
            encryption_config,
            kms_rate,
            decrypt_kms,
            prefix,
            resources,
        )
        return command(asked=asked, **keywords)

    collected.__doc__ = command.__doc__
    collected.__name__ = command.__name__
    collected.__click_params__ = [  # type: ignore[attr-defined]  # click's own place
        *getattr(command, "__click_params__", []),
        *reversed(_flags()),
    ]
    return collected  # type: ignore[return-value]  # called by click only


def _flags() -> list[click.Option]:
    return [
        click.Option(
            ["--resource", "resources"],
            multiple=True,
            metavar="RESOURCE",
            help="Read only this resource, such as pods or deployments.apps; may be repeated.",
        ),
        click.Option(
            ["--prefix"], metavar="PREFIX", help="Read only the keys that begin so. Default: all."
        ),
        click.Option(
            ["--storage-prefix"],
            default="/registry",
            show_default=True,
            metavar="PREFIX",
            help="kube-apiserver's --etcd-prefix: where its objects are.",
        ),
        click.Option(
            ["--limit-rate"],
            type=Rate(),
            default="20Mi",
            show_default=True,
            metavar="SIZE",
            help="Read so much a second, and less when etcd gets slower; 0: as fast as it goes.",
        ),
        click.Option(
            ["--patience"],
            type=Duration(),
            default="30s",
            show_default=True,
            metavar="DURATION",
            help="Give up when no member can be read from for so long.",
        ),
        click.Option(
            ["--encryption-config"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="kube-apiserver's --encryption-provider-config: look into encrypted values.",
        ),
        click.Option(
            ["--kms-rate"],
            type=float,
            default=10.0,
            show_default=True,
            metavar="N",
            help="At most so many Decrypt calls a second to a KMS plugin.",
        ),
        click.Option(
            ["--decrypt-kms"],
            is_flag=True,
            help="Decrypt kms v1 too, which takes a call for each value.",
        ),
    ]


def _spans(keyspace: Keyspace, prefix: str | None, resources: tuple[str, ...]) -> tuple[Span, ...]:
    from etcdmaint.compression.walk import EVERYTHING, spans_of
    from etcdmaint.etcd.types import prefix_end

    if prefix is not None and resources:
        raise InvalidInput("--prefix", "cannot be given beside --resource")
    if prefix is not None:
        start = prefix.encode("utf-8", "surrogateescape")
        return ((start or b"\0", prefix_end(start)),)
    prefixes = [keyspace.prefix(*resource_named(keyspace, each)) for each in resources]
    return spans_of([(each, prefix_end(each)) for each in prefixes]) or (EVERYTHING,)


def resource_named(keyspace: Keyspace, text: str) -> tuple[str, str]:
    """Group and resource of `deployments.apps`, or of `deployments`. Raises InvalidInput."""
    resource, _, group = text.partition(".")
    if not group:
        found = keyspace.resource(keyspace.root + resource.encode() + b"/")
        if found is not None and found[1] == resource:
            return found
    try:
        keyspace.prefix(group, resource)
    except InvalidInput as error:
        raise InvalidInput("--resource", error.fault) from None
    return group, resource


def read_policy(path: Path | None) -> Policy | None:
    """The policy file of a person who wants to know what it would mean. Raises InvalidInput."""
    if path is None:
        return None
    from etcdmaint.compression.policy import FIRST_READER, Policy, Stage

    # What it may say at any stage, for a release that reads everything.
    major, minor = max(FIRST_READER.values())
    return Policy.read(path, stage=Stage.BETA, min_compatibility_version=f"{major}.{minor}")


class SlotCourtesy:
    """Stands back for whoever holds the cluster's slot."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def holder(self) -> str:
        """The holder, "" where nobody is known to hold it."""
        from etcdmaint.defrag.lock import read_slot
        from etcdmaint.defrag.process import is_dead, shown
        from etcdmaint.errors import EtcdError

        for member in self._cluster.members:
            if member.is_learner:
                continue
            try:
                # The member that is being defragmented does not answer; another one does.
                held = await read_slot(self._cluster.client(member.id), timeout=_SLOT_SECONDS)
            except EtcdError:
                continue
            return shown(held.value.holder) if held and not is_dead(held.value.holder) else ""
        return ""


@asynccontextmanager
async def opened(connection: Connection) -> AsyncIterator[ClusterClient]:
    """The cluster, closed at the end."""
    cluster = await connection.open()
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def watched(progress: Progress, slowed: Callable[[], bool]) -> AsyncIterator[None]:
    """Show how far it is, on standard error, while the work goes on."""
    task = asyncio.create_task(_show(progress, slowed))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _show(progress: Progress, slowed: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    terminal = sys.stderr.isatty()
    begun, before = loop.time(), (progress.keys, progress.bytes)
    pause = _TICK if terminal else _FIRST_LINE
    try:
        while True:
            await asyncio.sleep(pause)
            pause = _TICK if terminal else _LINES
            seconds = loop.time() - begun
            line = one_line(_line(progress, before, seconds, slowed=slowed()))
            print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


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


def run(work: Callable[[], Any]) -> Any:
    """Run a coroutine to its end; SIGTERM ends it as Ctrl-C does, and both as an interruption."""

    async def guarded() -> Any:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work()

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise click.Abort from None


def note_token(token: str) -> None:
    """Say how to go on."""
    output.print_note(f"etcdmaint: not finished; the same command goes on with --resume {token}")
