"""The flags that say how to reach etcd: etcdctl's, with its environment as fallback.

They become one `Connection`, checked before anything is dialled: every fault names the flag that it
is in. What etcdctl would quietly do without encryption is refused here. This module is imported for
every `--help`, so it reaches for the etcd client only when a command runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from etcdmaint.cli import output
from etcdmaint.cli.parameters import DURATION, SWITCH, TEXT, CommaList
from etcdmaint.errors import AuthNotEnabled, ClusterNotHealthy, EtcdError, InvalidInput
from etcdmaint.files import read_whole

if TYPE_CHECKING:
    from etcdmaint.etcd.access import Access, Tls
    from etcdmaint.etcd.cluster import ClusterClient
    from etcdmaint.etcd.endpoint import Endpoint

DEFAULT_ENDPOINT = "127.0.0.1:2379"
DIAL_TIMEOUT, COMMAND_TIMEOUT = 2.0, 5.0

Command = TypeVar("Command", bound=Callable[..., Any])


def _flag(name: str, help_text: str, **keywords: Any) -> click.Option:
    environment = "ETCDCTL_" + name.removeprefix("--").replace("-", "_").upper()
    keywords = {"envvar": environment, "show_envvar": True, "type": TEXT, **keywords}
    return click.Option([name], help=help_text, **keywords)


CONNECTION_FLAGS: tuple[click.Option, ...] = (
    _flag(
        "--endpoints",
        "Where to start, separated by commas: the whole cluster is found from any member.",
        show_default=DEFAULT_ENDPOINT,
        type=CommaList(),  # each part is read below, an empty one too
        metavar="HOST:PORT,…",
        multiple=True,
    ),
    _flag("--cacert", "PEM file of the CA that signs the members.", metavar="FILE"),
    _flag("--cert", "PEM file of the client certificate.", metavar="FILE"),
    _flag("--key", "PEM file of the client certificate's key.", metavar="FILE"),
    _flag(
        "--user",
        "User of etcd's own auth; the password is asked for on the terminal when it is not given.",
        metavar="USER[:PASSWORD]",
    ),
    _flag(
        "--password",
        "Password of --user. Others on this machine can read it there: prefer the variable.",
        metavar="PASSWORD",
    ),
    _flag("--dial-timeout", "How long to wait for a connection.", default="2s", type=DURATION),
    _flag(
        "--command-timeout",
        "How long each call may take, except Defragment itself.",
        default="5s",
        type=DURATION,
    ),
    _flag(
        "--etcd-address-map",
        "File with lines `advertised-host:port reachable-host:port`: for port-forwards and NAT.",
        metavar="FILE",
        envvar=None,
        show_envvar=False,
    ),
    _flag(
        "--insecure-transport",
        "`=false` insists on TLS, verified by the system's CAs where --cacert is not given.",
        type=SWITCH,
        metavar="[=BOOL]",
    ),
    _flag(
        "--insecure-skip-tls-verify",
        "Refused: gRPC for Python always verifies. Give --cacert.",
        type=SWITCH,
        metavar="[=BOOL]",
        hidden=True,
    ),
)
_NAMES = tuple(str(flag.name) for flag in CONNECTION_FLAGS)
_SWITCHES = {flag.opts[0] for flag in CONNECTION_FLAGS if flag.type is SWITCH}


def with_switches(words: Sequence[str]) -> list[str]:
    """A command line in which each switch that stands alone says what that means.

    Otherwise click would take the next word for its value, and that is the command.
    """
    end = words.index("--") if "--" in words else len(words)
    return [f"{word}=true" if word in _SWITCHES else word for word in words[:end]] + [*words[end:]]


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the cluster; timeouts in seconds."""

    seeds: tuple[Endpoint, ...]
    access: Access
    dial_timeout: float = DIAL_TIMEOUT
    command_timeout: float = COMMAND_TIMEOUT

    async def open(self) -> ClusterClient:
        """Find the cluster; the caller closes it. Raises EtcdError subclasses."""
        try:
            return await self._connect()
        except AuthNotEnabled:
            return await self._anonymous().open()

    async def settled(self) -> Connection:
        """How whoever connects by itself is to do so: where etcd's auth is off, without a login."""
        if self.access.login is None:
            return self
        try:
            await (await self._connect()).close()
        except AuthNotEnabled:
            return self._anonymous()
        except (EtcdError, ClusterNotHealthy):
            pass  # it is met again by who knows better whether to wait
        return self

    async def _connect(self) -> ClusterClient:
        from etcdmaint.etcd.cluster import ClusterClient

        # It may take half as long again, and is to be done within --dial-timeout.
        return await ClusterClient.connect(
            self.seeds, self.access, timeout=self.dial_timeout * 2 / 3
        )

    def _anonymous(self) -> Connection:
        """As etcdctl goes on: nothing is refused that would be without --user."""
        output.print_note(
            "etcdmaint: auth is off on this etcd, so --user means nothing here and anybody may do "
            "anything; goes on without it"
        )
        return replace(self, access=replace(self.access, login=None))


def with_connection(command: Command, *, optional: bool = False) -> Command:
    """Give a click command the connection flags, after its own, as one argument `connection`.

    With `optional` it is None where none of them was given.
    """

    @functools.wraps(command)
    def collected(*arguments: Any, **keywords: Any) -> Any:
        flags = {name: keywords.pop(name) for name in _NAMES}
        # The environment of somebody who works with etcdctl must not change what a file is.
        source = click.get_current_context().get_parameter_source if optional else None
        given = source is None or ParameterSource.COMMANDLINE in map(source, _NAMES)
        connection = connection_from(**flags) if given else None
        return command(*arguments, connection=connection, **keywords)

    # click collects a function's options from here, the last one first.
    own = getattr(command, "__click_params__", [])
    collected.__click_params__ = [*reversed(CONNECTION_FLAGS), *own]  # type: ignore[attr-defined]  # click's own place
    return collected  # type: ignore[return-value]  # called by click only


def connection_from(
    *,
    endpoints: tuple[str, ...] = (),
    cacert: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    user: str | None = None,
    password: str | None = None,
    dial_timeout: float = DIAL_TIMEOUT,
    command_timeout: float = COMMAND_TIMEOUT,
    etcd_address_map: str | None = None,
    insecure_transport: bool | None = None,
    insecure_skip_tls_verify: bool | None = None,
) -> Connection:
    """Check the flags against each other, read the files, ask for the password.

    Raises InvalidInput and click.UsageError, each naming the flag.
    """
    from etcdmaint.etcd.access import Access, Login
    from etcdmaint.etcd.endpoint import AddressMap

    if insecure_skip_tls_verify:
        raise InvalidInput(
            "--insecure-skip-tls-verify",
            "refused, because an unverified member could be anybody, and gRPC for Python has no "
            "such mode; give the CA that signs the members with --cacert",
        )
    asked_for_tls = bool(cacert or cert or key) or insecure_transport is False
    seeds = _seeds(endpoints, asked_for_tls=asked_for_tls)
    tls = _tls(cacert, cert, key) if asked_for_tls or any(seed.secure for seed in seeds) else None
    if tls is None and user:
        raise InvalidInput(
            "--user",
            "passwords are only sent over TLS: give https:// endpoints and the CA with --cacert",
        )
    login, addresses = _login(user, password), AddressMap()
    if etcd_address_map:
        addresses = AddressMap.load(etcd_address_map, field="--etcd-address-map")
    return Connection(
        seeds=seeds,
        access=Access(tls=tls, login=Login(*login) if login else None, address_map=addresses),
        dial_timeout=dial_timeout,
        command_timeout=command_timeout,
    )


def _seeds(endpoints: tuple[str, ...], *, asked_for_tls: bool) -> tuple[Endpoint, ...]:
    from etcdmaint.etcd.endpoint import Endpoint

    texts = [text for given in endpoints or (DEFAULT_ENDPOINT,) for text in given.split(",")]
    parsed = [Endpoint.parse(text, secure=asked_for_tls, field="--endpoints") for text in texts]
    seeds = tuple(dict.fromkeys(parsed))
    plain = [seed for seed in seeds if not seed.secure]
    if plain and asked_for_tls:
        raise InvalidInput(
            "--endpoints",
            f"{plain[0]} is not encrypted, but --cacert, --cert, --key or "
            "--insecure-transport=false ask for TLS: write https://, or leave those flags out",
        )
    if plain and len(plain) < len(seeds):
        raise InvalidInput(
            "--endpoints", "mixes http:// and https://; a cluster is reached in one way"
        )
    return seeds


def _tls(cacert: str | None, cert: str | None, key: str | None) -> Tls:
    from etcdmaint.etcd.access import Tls

    if (cert is None) != (key is None):
        given, missing = ("--cert", "--key") if key is None else ("--key", "--cert")
        raise InvalidInput(missing, f"is missing: {given} needs it")
    cacert = cacert or _system_authorities()
    tls = Tls(
        ca=_read("--cacert", cacert),
        certificate=_read("--cert", cert) if cert else None,
        key=_read("--key", key) if key else None,
    )
    try:
        tls.validate()
    except InvalidInput as error:
        flag, path = {"ca": ("--cacert", cacert), "certificate": ("--cert", cert)}.get(
            error.field, ("--key", key)
        )
        raise InvalidInput(flag, f"{path}: {error.fault}") from error
    return tls


def _read(flag: str, path: str) -> bytes:
    return read_whole(Path(path), field=flag, name=path)


def _system_authorities() -> str:
    """The file of the CAs that this machine trusts, as etcdctl takes them where no other is named."""
    import ssl

    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        raise InvalidInput(
            "--cacert", "is needed for https:// endpoints: this machine has no CA bundle of its own"
        )
    return bundle


def _login(user: str | None, password: str | None) -> tuple[str, str] | None:
    if not user:
        if password:
            raise InvalidInput("--password", "is of no use without --user")
        return None
    if password is None and ":" in user:
        # As etcdctl: with --password, a colon belongs to the name.
        user, _, password = user.partition(":")
    if password is None:
        if not sys.stdin.isatty():
            raise InvalidInput(
                "--user",
                "comes without a password and there is no terminal to ask on; set ETCDCTL_PASSWORD",
            )
        password = click.prompt(f"Password of {user}", hide_input=True, err=True)
    if not user or not password:
        raise InvalidInput("--user", "the name and the password may not be empty")
    if not (_is_text(user) and _is_text(password)):
        raise InvalidInput("--user", "the name and the password must be UTF-8 text")
    return user, password


def _is_text(text: str) -> bool:
    """Whether it can be sent: Python marks bytes of the command line that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
