"""Secrets: what is wrong is said with the Secret and the key, and never with what they hold."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.errors import CredentialsUnavailable
from etcdmaint.kube.client import Forbidden
from etcdmaint.kube.credentials import SecretData, make_login, make_tls, read_secret
from etcdmaint.kube.resources import SECRETS
from tests.controlplane.certificates import CertificateAuthority
from tests.unit.kube.fakes import FakeApi

AUTHORITY = CertificateAuthority("test")
PAIR = AUTHORITY.issue("client")
OTHER = AUTHORITY.issue("other")


def secret(**data: bytes) -> SecretData:
    return SecretData("ns", "s", {key.replace("_", "."): value for key, value in data.items()})


CA = secret(ca_crt=AUTHORITY.certificate)


async def test_a_secret_is_decoded_as_the_api_has_it() -> None:
    api = FakeApi()
    data = {"password": base64.b64encode(b"pw\n").decode(), "odd": "%%%"}
    api.put(SECRETS, {"metadata": {"name": "s"}, "data": data})
    found = await read_secret(api, "ns", "s")  # type: ignore[arg-type]
    assert found.text("password") == "pw"
    with pytest.raises(CredentialsUnavailable, match="key odd: is empty"):
        found.require("odd")
    assert "pw" not in repr(found)


async def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(CredentialsUnavailable, match="Secret ns/gone does not exist"):
        await read_secret(FakeApi(), "ns", "gone")  # type: ignore[arg-type]


@pytest.mark.parametrize(("status", "raised"), [(403, CredentialsUnavailable), (401, Forbidden)])
async def test_who_is_not_known_for_a_moment_does_not_blame_the_secret(
    status: int, raised: type[Exception]
) -> None:
    """A 401 in passing must not end a connection that works."""

    class Refusing(FakeApi):
        async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
            raise Forbidden("no", status=status)

    with pytest.raises(raised):
        await read_secret(Refusing(), "ns", "s")  # type: ignore[arg-type]  # a stand-in of its shape


def test_a_bundle_and_a_pair_make_tls() -> None:
    identity = secret(tls_crt=PAIR.certificate, tls_key=PAIR.key)
    tls = make_tls(CA, identity=identity, server_name="etcd.example")
    assert tls.certificate == PAIR.certificate
    assert tls.server_name == "etcd.example"
    assert make_tls(CA, identity=secret(ca_crt=b"ignored")).certificate is None


@pytest.mark.parametrize(
    ("authority", "identity", "told"),
    [
        (secret(), None, "key ca.crt: is missing"),
        (secret(ca_crt=b""), None, "key ca.crt: is empty"),
        (secret(ca_crt=b"hush"), None, "key ca.crt: holds no PEM certificate"),
        (
            secret(
                ca_crt=b"-----BEGIN CERTIFICATE-----\nhush\n-----END CERTIFICATE-----\n",
            ),
            None,
            "key ca.crt: holds a damaged certificate",
        ),
        (CA, secret(tls_crt=PAIR.certificate), "key tls.key: is missing"),
        (CA, secret(tls_key=PAIR.key), "key tls.crt: is missing"),
        (CA, secret(tls_crt=b"hush", tls_key=PAIR.key), "key tls.crt: holds no PEM certificate"),
        (
            CA,
            secret(tls_crt=PAIR.certificate, tls_key=b"hush"),
            "key tls.key: holds no PEM private",
        ),
        (CA, secret(tls_crt=PAIR.certificate, tls_key=OTHER.key), "key tls.key: does not belong"),
    ],
)
def test_what_is_wrong_is_said_with_secret_and_key(
    authority: SecretData, identity: SecretData | None, told: str
) -> None:
    """D51, section 8."""
    with pytest.raises(CredentialsUnavailable) as refused:
        make_tls(authority, identity=identity)
    assert told in str(refused.value)
    assert "Secret ns/s" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_login_is_root_unless_it_says_otherwise() -> None:
    assert make_login(secret(password=b"p")).user == "root"
    assert make_login(secret(username=b"backup\n", password=b"p")).user == "backup"
    assert make_login(secret(username=b"ignored", password=b"p"), user="root").user == "root"


@pytest.mark.parametrize(
    "data", [{}, {"password": b""}, {"password": b"\n"}, {"password": b"\xff\xfe"}]
)
def test_a_password_that_is_none_is_refused(data: dict[str, bytes]) -> None:
    with pytest.raises(CredentialsUnavailable, match="key password"):
        make_login(secret(**data))


def test_keys_never_touch_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D51: by a memory file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    make_tls(CA, identity=secret(tls_crt=PAIR.certificate, tls_key=PAIR.key))
    assert list(tmp_path.iterdir()) == []
