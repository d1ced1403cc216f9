"""Every vector of encryption at rest: made by Kubernetes' own transformers, read and written by ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from etcdmaint.compression import frame
from etcdmaint.compression.encryption import ciphers, kms_v2
from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration, problems
from etcdmaint.errors import (
    DecryptionFailed,
    EncryptionError,
    EncryptionKeyMissing,
    FrameError,
    InvalidInput,
)
from tests.kms_plugin import KmsPlugin
from tests.unit.compression.vectors import octets, parameters, same

FRAME_ERRORS = {
    "checksum": "ChecksumMismatch",
    "unsupported": "UnsupportedAlgorithm",
    "malformed": "MalformedFrame",
}
# Where no key is meant for the value; in every other case of an error a key that is does not open it.
NO_KEY = {
    "identity transformer tried to read encrypted data",
    "no matching prefix found",
    "no matching key was found for the provided AES transformer",
    "no matching key was found for the provided Secretbox transformer",
    # The plugin does not know the key, or is told another one.
    "failed to decrypt DEK, error: rpc error: code = InvalidArgument desc = unknown key",
    (
        "failed to decrypt DEK, error: rpc error: code = InvalidArgument desc = "
        "the annotation does not match"
    ),
    "rpc error: code = InvalidArgument desc = unknown key",
    # What it opens is no key; nothing says that the value is damaged.
    "crypto/aes: invalid key size 31",
    "invalid seed length 31 used for key generation",
}
READS = parameters("encryption", operation="read")
WRITES = [
    case
    for case in READS
    # kms v1 is only read.
    if case.values[0].get("random") and b"kms:v1" not in octets(case.values[0]["stored"])[:16]
]
LOADS = parameters("encryption", operation="load")


class Plugins:
    """The plugins that the cases want, kept from one case to the next."""

    def __init__(self) -> None:
        self._running: dict[str, KmsPlugin] = {}

    def serve(self, wanted: list[dict[str, Any]]) -> None:
        for one in wanted:
            socket = f"@vectors-kms-{one['name']}-{os.getpid()}"
            if socket not in self._running:
                self._running[socket] = KmsPlugin(socket, one["keys"]).start()
            self._running[socket].keys = one["keys"]
            self._running[socket].annotate = one.get("annotate", False)

    def stop(self) -> None:
        for plugin in self._running.values():
            plugin.stop()

    def rewrite(self, config: str) -> str:
        """Other workers of the same test run have plugins of the same name."""
        lines = config.splitlines(keepends=True)
        return "".join(
            f"{line.rstrip()}-{os.getpid()}\n"
            if "endpoint: unix:///@vectors-kms-" in line
            else line
            for line in lines
        )


@pytest.fixture(scope="module")
def plugins() -> Iterator[Plugins]:
    serving = Plugins()
    yield serving
    serving.stop()


def open_chain(
    plugins: Plugins, config: str | None, wanted: list[dict[str, Any]]
) -> EncryptionChain:
    plugins.serve(wanted)
    if config is None:
        return EncryptionChain()
    return EncryptionChain(EncryptionConfiguration.load(plugins.rewrite(config).encode()))


@pytest.mark.parametrize("case", [case for case in READS if case.values[0]["outcome"] == "ok"])
def test_a_value_is_read_as_kube_apiserver_reads_it(plugins: Plugins, case: dict[str, Any]) -> None:
    """R19, R29, R48, R63, R95, R96: plaintext, staleness, and the frame inside."""
    stored, key = octets(case["stored"]), case["etcd_key"].encode()
    with open_chain(plugins, case["config"], case.get("kms", [])) as chain:
        read = chain.for_resource(case["group"], case["resource"]).decrypt(stored, key)

    assert same(read.plaintext, case["plaintext"])
    assert read.stale is case["stale"]
    if stored.startswith(b"k8s:enc:kms"):
        assert stored.startswith(f"k8s:enc:{read.provider}:{read.key_name}:".encode())
    elif stored.startswith(b"k8s:enc:") and read.provider != "identity":
        assert stored.startswith(f"k8s:enc:{read.provider}:v1:{read.key_name}:".encode())
    if case.get("frame") == "ok":
        assert same(frame.decode(read.plaintext), case["object"])
    elif case.get("frame") in FRAME_ERRORS:
        with pytest.raises(FrameError) as refusal:
            frame.decode(read.plaintext)
        assert type(refusal.value).__name__ == FRAME_ERRORS[case["frame"]]
    elif case.get("frame") == "none":
        assert frame.decode(read.plaintext) == read.plaintext


@pytest.mark.parametrize("case", [case for case in READS if case.values[0]["outcome"] == "error"])
def test_a_value_that_kube_apiserver_refuses_is_refused(
    plugins: Plugins, case: dict[str, Any]
) -> None:
    """R31, R95: no key for it, or a key that is meant for it and does not open it."""
    stored, key = octets(case["stored"]), case["etcd_key"].encode()
    with open_chain(plugins, case["config"], case.get("kms", [])) as chain:
        one = chain.for_resource(case["group"], case["resource"])
        with pytest.raises(EncryptionError) as refusal:
            one.from_storage(stored, key)

    expected = EncryptionKeyMissing if case["upstream_error"] in NO_KEY else DecryptionFailed
    assert isinstance(refusal.value, expected), refusal.value
    assert refusal.value.corrupt is (expected is DecryptionFailed)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize("case", WRITES)
def test_a_writer_with_the_same_randomness_stores_the_same_bytes(
    plugins: Plugins, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17, R19, R29, R30: byte for byte what kube-apiserver stores."""
    stored, key = octets(case["stored"]), case["etcd_key"].encode()
    drawn = bytes.fromhex(case["random"])
    with open_chain(
        plugins, case.get("written_with") or case["config"], case.get("kms", [])
    ) as chain:
        one = chain.for_resource(case["group"], case["resource"])
        plaintext = one.from_storage(stored, key)[0]
        if b"kms:v2" in stored[:16]:
            use_the_seed_of(stored, chain, one, monkeypatch)
        monkeypatch.setattr(ciphers.os, "urandom", Draw(drawn))
        written = one.to_storage(plaintext, key)

    assert written == stored


def use_the_seed_of(
    stored: bytes, chain: EncryptionChain, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed that was drawn when the vector was made, as the plugin of the vectors opens it."""
    body = stored.split(b":", 5)[5]
    wrapped = kms_v2.parse_object(body).wrapped
    seed = chain._plugins[0].decrypt(wrapped)
    with monkeypatch.context() as patch:
        patch.setattr(kms_v2.os, "urandom", lambda size: seed[:size].ljust(size, b"\0"))
        one.to_storage(b"", b"")


class Draw:
    """Random bytes that are known beforehand."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    def __call__(self, size: int) -> bytes:
        drawn, self._stream = self._stream[:size], self._stream[size:]
        assert len(drawn) == size
        return drawn


@pytest.mark.parametrize("case", [case for case in LOADS if case.values[0]["outcome"] == "ok"])
def test_a_configuration_gives_each_resource_its_writer(case: dict[str, Any]) -> None:
    """R29, R32: selectors, wildcards, entries in their order."""
    chain = EncryptionChain(EncryptionConfiguration.load(case["config"].encode()))

    for row in case["lookups"]:
        one = chain.for_resource(row["group"], row["resource"])
        assert one.prefix == row["prefix"].encode(), row
        assert one.to_storage(b"x", b"/k").startswith(one.prefix or b"x")


@pytest.mark.parametrize("case", [case for case in LOADS if case.values[0]["outcome"] == "error"])
def test_a_configuration_that_kube_apiserver_refuses_is_refused(case: dict[str, Any]) -> None:
    """R31: with the path that kube-apiserver names, where it names one, and nothing of the content."""
    found = problems(case["config"].encode())

    assert found
    upstream = case["upstream_error"].removeprefix("error while parsing file: ")
    if upstream.startswith("resources"):
        assert upstream.split(":")[0] in {problem.field for problem in found}
    with pytest.raises(InvalidInput) as refusal:
        EncryptionConfiguration.load(case["config"].encode())
    assert all(problem.fault in str(refusal.value) for problem in found)
    for line in case["config"].splitlines():
        secret = line.partition("secret:")[2].strip(' "')
        assert not secret or secret not in str(refusal.value)
