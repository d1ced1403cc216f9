"""TLS from bytes and logins: what is refused, and what must never be seen."""

from __future__ import annotations

import os
import ssl

import pytest

from etcdmaint.errors import InvalidInput
from etcdmaint.etcd.access import Access, Login, Tls
from tests.controlplane.certificates import CertificateAuthority

AUTHORITY = CertificateAuthority()
CLIENT = AUTHORITY.issue("client")
OTHER = AUTHORITY.issue("other")


def test_no_repr_shows_a_secret() -> None:
    """D51: a password or a key is in no repr, whatever holds it."""
    access = Access(
        tls=Tls(AUTHORITY.certificate, b"CERT", b"PRIVATE"), login=Login("root", "hunter2")
    )
    assert "hunter2" not in repr(access)
    assert "PRIVATE" not in repr(access)
    assert "CERT" not in repr(access)
    assert "root" in repr(access)


def test_a_password_is_not_taken_where_it_would_go_in_the_clear() -> None:
    """D51: a login without TLS is refused before anything is dialled."""
    with pytest.raises(InvalidInput, match="only sent over TLS"):
        Access(login=Login("root", "hunter2"))


@pytest.mark.parametrize(
    ("tls", "field", "fault"),
    [
        ((b"", None, None), "ca", "no PEM"),
        ((b"rubbish", None, None), "ca", "no PEM"),
        ((b"\xff-----BEGIN CERTIFICATE-----", None, None), "ca", "damaged"),
        (
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", None, None),
            "ca",
            "holds",
        ),
        ((AUTHORITY.certificate, b"x", CLIENT.key), "certificate", "no PEM"),
        ((AUTHORITY.certificate, CLIENT.certificate, b"x"), "key", "no PEM"),
        ((AUTHORITY.certificate, CLIENT.certificate, CLIENT.certificate), "key", "no PEM"),
        ((AUTHORITY.certificate, CLIENT.certificate, OTHER.key), "key", "does not belong"),
        (
            (AUTHORITY.certificate, CLIENT.certificate, CLIENT.key[:60] + CLIENT.key[70:]),
            "key",
            "damaged",
        ),
    ],
)
def test_rubbish_in_place_of_a_pem_is_named_by_its_field(tls, field, fault) -> None:
    with pytest.raises(InvalidInput, match=fault) as refused:
        Tls(*tls).validate()
    assert refused.value.field == field


def test_a_bundle_may_have_comments_in_any_script() -> None:
    """As those of Fedora and of curl have."""
    bundle = "# NetLock Arany Főtanúsítvány\n".encode() + AUTHORITY.certificate
    assert Tls(bundle).context().get_ca_certs()
    with pytest.raises(InvalidInput, match="damaged"):
        Tls(AUTHORITY.certificate.replace(b"MI", "MIé".encode(), 1)).validate()


@pytest.mark.parametrize("given", [(b"c", None), (None, b"k")])
def test_a_certificate_and_its_key_come_together(given) -> None:
    with pytest.raises(InvalidInput, match="come together"):
        Tls(AUTHORITY.certificate, *given)


@pytest.mark.parametrize("system", ["Linux", "another"])
def test_key_material_reaches_pythons_ssl_without_a_file(monkeypatch, system) -> None:
    """D51: what ssl is given as a path lies in memory only, and nothing is left open."""
    loaded: list[str] = []
    really = ssl.SSLContext.load_cert_chain

    def load(self, certificate, key, password):
        loaded.extend([os.readlink(certificate), os.readlink(key)])
        return really(self, certificate, key, password)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    if system != "Linux":
        monkeypatch.delattr(os, "memfd_create")
    before = set(os.listdir("/proc/self/fd"))
    context = Tls(AUTHORITY.certificate, CLIENT.certificate, CLIENT.key).context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    kind = "/memfd:" if system == "Linux" else "pipe:"
    assert [path.startswith(kind) for path in loaded] == [True, True]
    assert set(os.listdir("/proc/self/fd")) == before


def test_only_the_given_authority_is_trusted() -> None:
    trusted = Tls(AUTHORITY.certificate).context().get_ca_certs()
    assert [dict(pair[0] for pair in ca["subject"])["commonName"] for ca in trusted] == [
        "etcdmaint test CA"
    ]
