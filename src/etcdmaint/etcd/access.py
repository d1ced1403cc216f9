"""How one may talk to an etcd: TLS from PEM bytes, a login, and a map of addresses.

Key material goes from memory to memory: gRPC takes it as bytes, Python's ssl wants a file and is
given one that exists only in memory. No repr here shows a secret.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

from etcdmaint.errors import InvalidInput
from etcdmaint.etcd.endpoint import AddressMap


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM bytes: the CA that signs the members (or their own certificates), and what we show them.

    `server_name` replaces the host of the endpoint as the name to verify.
    """

    ca: bytes = field(repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise InvalidInput(missing, "a client certificate and its key come together")

    def validate(self) -> None:
        """Raise `InvalidInput` with field `ca`, `certificate` or `key` where a PEM is rubbish.

        gRPC itself would only say that the handshake failed.
        """
        self.context()

    def context(self) -> ssl.SSLContext:
        """The same access for Python's ssl: verifies chain and host name; TLS 1.2 or newer.

        Raises `InvalidInput` as `validate` does.
        """
        if b"-----BEGIN CERTIFICATE-----" not in self.ca:
            # And Python would take the machine's own store instead of nothing.
            raise InvalidInput("ca", "holds no PEM certificate")
        try:
            # Bundles have comments in every script; what is no ASCII inside of a certificate is damage.
            text = self.ca.decode("ascii", errors="backslashreplace")
            context = ssl.create_default_context(cadata=text)
        except (ssl.SSLError, ValueError) as fault:
            raise InvalidInput("ca", "holds a damaged certificate") from fault
        # As gRPC and etcd's own tools do: a server's own certificate may be what is trusted, and those that
        # are not to the letter of the standard (refused on from Python 3.13) are taken.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is None or self.key is None:
            return context
        if b"-----BEGIN CERTIFICATE-----" not in self.certificate:
            raise InvalidInput("certificate", "holds no PEM certificate")
        if b"PRIVATE KEY-----" not in self.key:
            raise InvalidInput("key", "holds no PEM private key")
        with _memory_file(self.certificate) as certificate, _memory_file(self.key) as key:
            try:
                # The password keeps OpenSSL from asking for one on the terminal.
                context.load_cert_chain(certificate, key, password="-")  # noqa: S106  # it is none
            except (ssl.SSLError, ValueError) as fault:
                mismatch = isinstance(fault, ssl.SSLError) and fault.reason == "KEY_VALUES_MISMATCH"
                raise InvalidInput(
                    "key",
                    "does not belong to the certificate"
                    if mismatch
                    else "it or the certificate is damaged, or it is encrypted",
                ) from fault
        return context


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    descriptor = _descriptor_of(content)
    try:
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _descriptor_of(content: bytes) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        os.write(descriptor, content)
        return descriptor
    # Not on Linux: a pipe is memory too. OpenSSL reads each file once, from start to end.
    descriptor, end = os.pipe()
    os.set_blocking(end, False)
    with open(end, "wb", buffering=0) as pipe:
        pipe.write(content)
    return descriptor


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd's own auth."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Access:
    """Everything but the address. A login needs TLS: a password is never sent in the clear."""

    tls: Tls | None = None
    login: Login | None = None
    address_map: AddressMap = field(default_factory=AddressMap)

    def __post_init__(self) -> None:
        if self.login is not None and self.tls is None:
            raise InvalidInput("auth", "a password is only sent over TLS: give the CA as well")
