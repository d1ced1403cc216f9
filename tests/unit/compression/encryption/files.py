"""Encryption configurations for tests, in few words."""

from __future__ import annotations

import base64
import json
from typing import Any

from etcdmaint.compression.encryption.configuration import EncryptionConfiguration

IDENTITY: dict[str, Any] = {"identity": {}}


def key(name: str, size: int = 32) -> dict[str, str]:
    """A key whose bytes follow from its name."""
    secret = (name.encode() * size)[:size]
    return {"name": name, "secret": base64.b64encode(secret).decode()}


def keyed(provider: str, *names: str, size: int = 32) -> dict[str, Any]:
    return {provider: {"keys": [key(name, size) for name in names]}}


def kms(endpoint: str, name: str = "vault", version: str = "v2", **more: Any) -> dict[str, Any]:
    """Of a plugin that a busy machine may keep waiting for longer than the three seconds of Kubernetes."""
    kept = {"apiVersion": version, "name": name, "endpoint": endpoint, "timeout": "60s"}
    return {"kms": {**kept, **more}}


def entry(providers: list[dict[str, Any]], *resources: str) -> dict[str, Any]:
    return {"resources": list(resources) or ["secrets"], "providers": providers}


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": list(entries),
        },
        indent=1,
    ).encode()


def configured(*providers: dict[str, Any]) -> EncryptionConfiguration:
    """A configuration of `secrets` alone."""
    return EncryptionConfiguration.load(document(entry(list(providers))))
