"""Compression over the real encryption: the two halves joined, on values that Kubernetes made.

The plugin of kms has tests of its own; here are the providers that need no process beside this one.
"""

from __future__ import annotations

from typing import Any

import pytest

from etcdmaint.compression import frame
from etcdmaint.compression.encryption.chain import EncryptionChain, ResourceChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
from etcdmaint.compression.policy import Algorithm, Rule
from etcdmaint.compression.transformer import Transformer
from etcdmaint.errors import EncryptionError

from .vectors import octets, parameters, same

SELECTED = Rule(entry=0, algorithm=Algorithm.DEFLATE, min_size=64)
CLASSES = {
    "checksum": frame.ChecksumMismatch,
    "unsupported": frame.UnsupportedAlgorithm,
    "malformed": frame.MalformedFrame,
}


def without_plugin(kind: str) -> list[Any]:
    return [case for case in parameters("encryption", kind=kind) if "kms" not in case.values[0]]


def chain(case: dict[str, Any]) -> ResourceChain:
    configuration = case["config"] and EncryptionConfiguration.load(case["config"].encode())
    return EncryptionChain(configuration or None).for_resource(case["group"], case["resource"])


@pytest.mark.parametrize("case", without_plugin("chain"))
def test_a_value_that_kubernetes_encrypted_comes_through_both_layers(case: dict[str, Any]) -> None:
    """R17, R19, R26 to R29, R48, R57, R61: and goes back in as exactly one envelope around a frame."""
    delegate = chain(case)
    subject = Transformer(SELECTED, delegate, resource=case["resource"])
    key = case["etcd_key"].encode()
    plaintext, stale = subject.from_storage(octets(case["stored"]), key)

    framed = case["frame"] == "ok"
    assert same(plaintext, case["object"] if framed else case["plaintext"])
    assert stale is (case["stale"] or framed is not SELECTED.frames(plaintext))

    written = subject.to_storage(plaintext, key)
    assert written.startswith(delegate.prefix)
    assert written.count(b"k8s:enc:") == bool(delegate.prefix)
    inside, _ = delegate.from_storage(written, key)
    assert frame.is_framed(inside) is SELECTED.frames(plaintext)
    assert subject.from_storage(written, key) == (plaintext, False)


@pytest.mark.parametrize("case", without_plugin("chain_rejected"))
def test_a_damaged_value_fails_in_the_layer_that_can_tell(case: dict[str, Any]) -> None:
    """R31, R95, R96: authenticated encryption stops it, elsewhere the checksum does."""
    subject = Transformer(SELECTED, chain(case), resource=case["resource"])
    stored, key = octets(case["stored"]), case["etcd_key"].encode()
    refusal = EncryptionError if case["outcome"] == "error" else CLASSES[case["frame"]]
    with pytest.raises(refusal):
        subject.from_storage(stored, key)
