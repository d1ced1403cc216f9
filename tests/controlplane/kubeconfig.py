"""Kubeconfig files for the users of a test control plane.

They are complete in themselves (certificates inside, verified TLS), so that an operator given one
talks to the API server exactly as it would to a real one.
"""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from .certificates import CertificateAuthority, KeyPair


@dataclass(frozen=True, slots=True)
class User:
    """Who somebody is to the API server, and what proves it: a token or a certificate."""

    name: str
    groups: tuple[str, ...]
    token: str = ""
    certificate: KeyPair | None = None


def write_kubeconfig(path: Path, url: str, authority: bytes, user: User) -> None:
    """Write a kubeconfig with one cluster, one user and one context, readable by its owner."""
    name = "etcdmaint-test"
    proof = (
        {
            "client-certificate-data": _text(user.certificate.certificate),
            "client-key-data": _text(user.certificate.key),
        }
        if user.certificate is not None
        else {"token": user.token}
    )
    cluster = {"server": url, "certificate-authority-data": _text(authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user.name, "user": proof}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user.name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    # JSON is YAML, and needs no library.
    path.write_text(json.dumps(content, indent=2))


def context_for(authority: CertificateAuthority) -> ssl.SSLContext:
    """A context that trusts this authority alone."""
    return ssl.create_default_context(cadata=authority.certificate.decode())


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
