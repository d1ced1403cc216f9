"""Addresses of etcd members, in every form that people write, and the map to reachable ones.

This module must not know how an address is dialled, nor whether TLS is configured: who parses says
what an address without a scheme means.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from etcdmaint.errors import InvalidInput
from etcdmaint.files import read_whole

DEFAULT_PORT = 2379

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_SOCKETS = ("unix", "unixs")
_NO_SOCKETS = "unix sockets are not supported: give host:port"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where one member listens for clients; `host` is a DNS name or an IP without brackets."""

    host: str
    port: int = DEFAULT_PORT
    secure: bool = False

    @classmethod
    def parse(cls, text: str, *, secure: bool = False, field: str = "endpoint") -> Endpoint:
        """Read `host`, `host:port`, `http(s)://host:port`, `[v6]:port` or a bare IPv6 address.

        `secure` says what is meant where no scheme is given. `field` names the flag or the path in
        an object, for the `InvalidInput` raised on anything else.
        """
        rest = text.strip()
        if not rest:
            raise InvalidInput(field, "an endpoint is empty")
        if scheme := _SCHEME.match(rest):
            match scheme[1].lower():
                case "http":
                    secure = False
                case "https":
                    secure = True
                case other if other in _SOCKETS:
                    raise InvalidInput(field, _NO_SOCKETS)
                case _:
                    raise InvalidInput(field, f"scheme {scheme[1]!r} is neither http nor https")
            rest = rest[scheme.end() :]
        # A host of that name could not be told from a socket where it is written as host:port.
        if rest.partition(":")[0].removesuffix("/").lower() in _SOCKETS:
            raise InvalidInput(field, _NO_SOCKETS)
        # What follows may be a password, so a refused text is never quoted.
        if "@" in rest:
            raise InvalidInput(field, "a user name or password does not belong in an endpoint")
        rest = rest.removesuffix("/")
        if any(mark in rest for mark in "/?#"):
            raise InvalidInput(field, "an endpoint has no path, query or fragment")
        host, port = _split(rest, field)
        return cls(host=_host(host, field), port=port, secure=secure)

    @property
    def target(self) -> str:
        """`host:port`, IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """`https://host:port`, or http."""
        return f"{'https' if self.secure else 'http'}://{self.target}"

    def __str__(self) -> str:
        return self.url


def _split(text: str, field: str) -> tuple[str, int]:
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        if not closed or (after and not after.startswith(":")):
            raise InvalidInput(field, "brackets are for [IPv6 address]:port")
        if not _is_v6(host):
            raise InvalidInput(field, "what is in brackets is not an IPv6 address")
        return host, _port(after[1:], field) if after else DEFAULT_PORT
    if _is_v6(text):
        return text, DEFAULT_PORT
    host, colon, port = text.partition(":")
    return host, _port(port, field) if colon else DEFAULT_PORT


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _port(text: str, field: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
        raise InvalidInput(field, "the port is not a number from 1 to 65535")
    return int(text)


def _host(text: str, field: str) -> str:
    if not text:
        raise InvalidInput(field, "the host is missing")
    if _is_v6(text):
        address = ipaddress.IPv6Address(text)
        # gRPC and TLS know no zones, and a member's address is never link-local to somebody else.
        if address.scope_id is not None:
            raise InvalidInput(field, "an IPv6 zone is not supported")
        return str(address)
    name = text.removesuffix(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise InvalidInput(field, "the host is neither a DNS name nor an IP address")
    if re.fullmatch(r"[0-9.]+", name):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise InvalidInput(field, "the host is not a valid IPv4 address") from None
    return text.lower()


@dataclass(frozen=True, slots=True)
class AddressMap:
    """From advertised addresses to reachable ones: for port-forwards, NAT and names of elsewhere.

    A line of its text form is `advertised-host:port reachable-host:port`; `#` starts a comment.
    """

    targets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | str, *, field: str = "") -> AddressMap:
        """Read a file; `InvalidInput` names the field or flag, the file and the line at fault."""
        where = f"{field}: {path}" if field else str(path)
        try:
            text = read_whole(Path(path), field=where).decode()
        except UnicodeDecodeError:
            raise InvalidInput(where, "cannot be read: it is not UTF-8") from None
        return cls.parse(text, field=where)

    @classmethod
    def parse(cls, text: str, *, field: str = "address map") -> AddressMap:
        """Read the text form; `InvalidInput` names the line at fault."""
        targets: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            where = f"{field}: line {number}"
            if len(words) != 2:
                raise InvalidInput(where, "needs two addresses: advertised, then reachable")
            advertised, reachable = (Endpoint.parse(word, field=where).target for word in words)
            if targets.get(advertised, reachable) != reachable:
                raise InvalidInput(where, f"{advertised} is already mapped to another address")
            targets[advertised] = reachable
        return cls(targets)

    def resolve(self, endpoint: Endpoint) -> Endpoint:
        """Where to dial for this endpoint. The name that TLS verifies stays the endpoint's own."""
        reachable = self.targets.get(endpoint.target)
        if reachable is None:
            return endpoint
        return Endpoint.parse(reachable, secure=endpoint.secure)
