"""What is loaded by whom: a file is validated without any cipher, and gRPC comes with a plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEVER = {"pydantic", "kopf", "kubernetes", "aiohttp", "prometheus_client"}
LOAD = "from etcdmaint.compression.encryption.configuration import EncryptionConfiguration as C; "
CHAIN = "from etcdmaint.compression.encryption.chain import EncryptionChain; "
HEAD = "apiVersion: v1\\nkind: EncryptionConfig\\nresources: [{resources: [secrets], providers: ["
BOX = "{secretbox: {keys: [{name: a, secret: " + "A" * 43 + "=}]}}"
KMS = "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///@nobody'}}"


@pytest.mark.parametrize(
    ("code", "absent", "present"),
    [
        ("import etcdmaint.compression.encryption", {"grpc", "google", "cryptography", "nacl"}, ()),
        (f'{LOAD}C.load(b"{HEAD}{BOX}]}}]")', {"grpc", "google", "cryptography", "nacl"}, {"yaml"}),
        (f'{LOAD}{CHAIN}EncryptionChain(C.load(b"{HEAD}{BOX}]}}]"))', {"grpc", "google"}, {"nacl"}),
        (f'{LOAD}{CHAIN}EncryptionChain(C.load(b"{HEAD}{KMS}]}}]"))', set(), {"grpc"}),
    ],
    ids=["the package", "validating a file", "a chain without a plugin", "a chain with a plugin"],
)
def test_nothing_is_loaded_that_is_not_needed(
    code: str, absent: set[str], present: set[str]
) -> None:
    """A-decision on extras: no gRPC without a plugin, no pydantic ever."""
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    )

    assert not loaded & (NEVER | absent)
    assert loaded >= set(present)
