"""Turns Secrets into what etcd's client needs, or says exactly which Secret and key is at fault.

Secrets are read when a connection is made and kept by nobody else. What a Secret holds never gets into
a message: only its name, its key and what is wrong there.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from etcdmaint.errors import CredentialsUnavailable, InvalidInput
from etcdmaint.etcd.access import Login, Tls
from etcdmaint.kube.client import Forbidden, KubeApi, NotFound
from etcdmaint.kube.resources import SECRETS


@dataclass(frozen=True, slots=True, repr=False)
class SecretData:
    """One Secret's content; its repr shows nothing."""

    namespace: str
    name: str
    data: dict[str, bytes]

    def fault(self, key: str, what: str) -> CredentialsUnavailable:
        """The error that names this Secret and key."""
        return CredentialsUnavailable(f"Secret {self.namespace}/{self.name}, key {key}: {what}")

    def require(self, key: str) -> bytes:
        """What is under a key, which must not be empty."""
        value = self.data.get(key)
        if not value:
            raise self.fault(key, "is missing" if value is None else "is empty")
        return value

    def text(self, key: str) -> str:
        """A user name or password: UTF-8 without the line end that `echo` leaves."""
        try:
            text = self.require(key).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise self.fault(key, "is not UTF-8 text") from None
        if not text:
            raise self.fault(key, "is empty")
        return text


async def read_secret(api: KubeApi, namespace: str, name: str) -> SecretData:
    """Read a Secret. Raises CredentialsUnavailable, or KubeError when the API does not answer."""
    try:
        secret = await api.get(SECRETS, namespace, name)
    except NotFound:
        raise CredentialsUnavailable(f"Secret {namespace}/{name} does not exist") from None
    except Forbidden as error:
        if error.status == 401:
            # Our own credentials, for the moment: nothing is wrong with the Secret.
            raise
        raise CredentialsUnavailable(
            f"Secret {namespace}/{name} may not be read by this operator"
        ) from None
    data: dict[str, bytes] = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            data[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            data[key] = b""
    return SecretData(namespace, name, data)


def make_tls(
    authority: SecretData,
    authority_key: str = "ca.crt",
    *,
    identity: SecretData | None = None,
    server_name: str | None = None,
) -> Tls:
    """The CA under its key, and the pair `tls.crt` and `tls.key`; neither of the pair is fine too.

    Raises CredentialsUnavailable naming the Secret and the key that is missing or holds rubbish.
    """
    ca = authority.require(authority_key)
    certificate = key = None
    if identity is not None and (identity.data.get("tls.crt") or identity.data.get("tls.key")):
        certificate, key = identity.require("tls.crt"), identity.require("tls.key")
    tls = Tls(ca=ca, certificate=certificate, key=key, server_name=server_name)
    try:
        tls.validate()
    except InvalidInput as error:
        if error.field == "ca" or identity is None:
            raise authority.fault(authority_key, error.fault) from None
        where = "tls.crt" if error.field == "certificate" else "tls.key"
        raise identity.fault(where, error.fault) from None
    return tls


def make_login(secret: SecretData, *, user: str | None = None) -> Login:
    """`username` (root where it is absent, or the one given) and `password`."""
    if user is None:
        user = secret.text("username") if "username" in secret.data else "root"
    return Login(user, secret.text("password"))
