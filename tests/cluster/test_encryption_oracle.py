"""Beside Kubernetes' own transformers, on thousands of mutated files and values: no difference.

The vectors are chosen, and a kube-apiserver is slow to ask. Here the packages that it is built from
answer over a pipe: a small Go program of the same pinned module, built once into the cache.
"""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.compression.encryption.chain import EncryptionChain, ResourceChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration, problems
from etcdmaint.errors import EncryptionError
from tests.controlplane.golang import NoGo
from tests.controlplane.gosource import go_program
from tests.controlplane.programs import PROGRAMS
from tests.unit.compression.encryption.files import IDENTITY, configured, document, entry, keyed

# The first build links a tenth of Kubernetes.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SOURCE = Path(__file__).with_name("encryption_oracle.go")
SECRET = base64.b64encode(b"0123456789abcdef" * 2).decode()
FILES = [
    f"""\
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
  - resources: [secrets, configmaps]
    providers:
      - aesgcm:
          keys:
            - name: key1
              secret: {SECRET}
            - name: key2
              secret: c2VjcmV0IGlzIHNlY3VyZQ==
      - identity: {{}}
  - resources:
      - '*.apps'
      - pods.example.com
    providers:
      - secretbox: {{keys: [{{name: a, secret: {SECRET}}}]}}
  - resources: ['*.*']
    providers:
      - aescbc:
          keys:
          - {{name: b, secret: "{SECRET}"}}
""",
    f"""\
apiVersion: v1
kind: EncryptionConfig
resources:
- resources: [secrets]
  providers: [{{aescbc: {{keys: [{{name: k, secret: {SECRET}}}]}}}}, {{identity: {{}}}}]
""",
]
# Words to put in place of others: names, selectors, and what YAML 1.1 takes for something else.
WORDS = """
secrets configmaps pods.example.com *. *.* * *.apps *.example.com deployments.apps secrets. Secrets
events events.events.k8s.io *.events.k8s.io ingresses.extensions pods.* serviceipallocations
apiserverpeeripinfo . key1 a:b größe null ~ 1e3 1_000 0x10 0o7 0b1 1:30 1:30.5 1.0 .5 -1 +2 1. 1.5e3
2026-01-31 2001-12-14t21:59:43.10-05:00 yes no on Off y n Y N true True .inf .nan = "" '' [a] {a:b}
[] {} &a *a v1 EncryptionConfig identity aesgcm aescbc secretbox keys name secret resources providers
c2hvcnQ= @@@@ c2VjcmV0IGlzIHNlY3VyZQ c2VjcmV0IGlzIHNlY3VyZQ== MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3
AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA== AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA====
"""
ANY_WORD = re.compile(r"[^\s\[\]{},'\":]+")
NAME = re.compile(r"(?<=name: )[^\s,}]+|secrets|configmaps|pods.example.com|(?<=')\S+(?=')")


class Oracle:
    """Kubernetes' answer to one question at a time."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def accepts(self, config: bytes) -> bool:
        return not self._ask(Config=config)["Error"]

    def write(self, plaintext: bytes, key: bytes) -> bytes:
        return base64.b64decode(self._ask(Key=key, Plain=plaintext, Write=True)["Value"] or "")

    def read(self, stored: bytes, key: bytes) -> tuple[bytes, bool] | None:
        answer = self._ask(Key=key, Stored=stored)
        if answer["Error"]:
            return None
        return base64.b64decode(answer["Value"] or ""), answer["Stale"]

    def _ask(self, **question: bytes | bool) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        encoded = {
            name: value if isinstance(value, bool) else base64.b64encode(value).decode()
            for name, value in question.items()
        }
        self._process.stdin.write(json.dumps(encoded).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    try:
        program = go_program(SOURCE, PROGRAMS["kube-apiserver"].module_dir)
    except NoGo as error:
        pytest.skip(f"no Go to build Kubernetes' own transformers with: {error}")
    asked = Oracle(program)
    yield asked
    asked.close()


def mutated_file(rng: random.Random) -> bytes:
    text = rng.choice(FILES)
    for _ in range(rng.choice([1, 1, 1, 2])):
        lines = text.splitlines(keepends=True)
        match rng.randrange(8):
            case 0:
                del lines[rng.randrange(len(lines))]
                text = "".join(lines)
            case 1:
                lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                text = "".join(lines)
            case kind:
                pattern = ANY_WORD if kind < 4 else NAME
                word = rng.choice(list(pattern.finditer(text)))
                text = text[: word.start()] + rng.choice(WORDS.split()) + text[word.end() :]
    return text.encode()


def test_a_mutated_configuration_is_accepted_or_refused_as_kubernetes_does(oracle: Oracle) -> None:
    """R29, R31: selectors, names, keys, and YAML as Go's decoder reads it."""
    rng = random.Random(6264)
    verdicts: Counter[bool] = Counter()
    for _ in range(4000):
        config = mutated_file(rng)
        accepted = oracle.accepts(config)
        assert (problems(config) == ()) is accepted, config.decode()
        verdicts[accepted] += 1

    assert min(verdicts.values()) > 400, "both verdicts are tried"


CHAIN = [
    keyed("aescbc", "a", "b", size=16),
    keyed("aesgcm", "a", "a:b"),
    IDENTITY,
    keyed("secretbox", "x", "a"),
    keyed("aesgcm", "a:b", "b"),
    keyed("aescbc", "a", size=32),
]


def mutated_value(rng: random.Random, writers: list[ResourceChain], key: bytes) -> bytes:
    plaintext = rng.choice([b"", b"k8s\0", rng.randbytes(rng.randrange(60)), b"k8s:enc:", b"\0k8s"])
    value = bytearray(rng.choice(writers).to_storage(plaintext, key))
    match rng.randrange(6):
        case 0 if value:
            value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        case 1 if value:
            del value[rng.randrange(len(value)) :]
        case 2:
            value += rng.randbytes(rng.randrange(1, 33))
        case 3:
            other = rng.choice(writers).to_storage(rng.randbytes(rng.randrange(40)), key)
            value[rng.randrange(len(value) + 1) :] = other[rng.randrange(len(other) + 1) :]
        case 4:
            parts = bytes(value).split(b":")
            if len(parts) > 4:
                words = [b"aesgcm", b"aescbc", b"secretbox", b"a", b"b", b"v1", b"v2", b"x", b"kms"]
                parts[rng.choice([2, 3, 4])] = rng.choice(words)
            value = bytearray(b":".join(parts))
    return bytes(value)


def test_a_mutated_value_is_read_or_refused_as_kubernetes_does(oracle: Oracle) -> None:
    """R29, R31, R48, R95, R96: plaintext and staleness; where it panics we refuse."""
    rng = random.Random(6264)
    assert oracle.accepts(document(entry(CHAIN)))
    one = EncryptionChain(configured(*CHAIN)).for_resource("", "secrets")
    # Each key alone, as the first that it is.
    writers = [
        EncryptionChain(configured({kind: {"keys": [key]}})).for_resource("", "secrets")
        for provider in CHAIN
        for kind, body in provider.items()
        for key in body.get("keys", [])
    ] + [EncryptionChain().for_resource("", "secrets")]
    seen: Counter[str] = Counter()
    for _ in range(40_000):
        key = rng.choice([b"/registry/secrets/default/s1", b"/k"])
        stored = mutated_value(rng, writers, key)
        read_under = key + b"x" * (rng.random() < 0.2)
        try:
            ours: tuple[bytes, bool] | None = one.from_storage(stored, read_under)
        except EncryptionError as error:
            ours = None
            seen[error.reason] += 1
        else:
            seen["stale" if ours[1] else "current"] += 1
        assert ours == oracle.read(stored, read_under), (stored.hex(), read_under)

    assert set(seen) == {"EncryptionKeyMissing", "DecryptionFailed", "stale", "current"}
    assert min(seen.values()) > 100


@pytest.mark.parametrize("provider", ["aescbc", "aesgcm", "secretbox", "identity"])
def test_each_reads_what_the_other_writes(oracle: Oracle, provider: str) -> None:
    """R29, R30."""
    element = IDENTITY if provider == "identity" else keyed(provider, "one")
    assert oracle.accepts(document(entry([element])))
    one: ResourceChain = EncryptionChain(
        EncryptionConfiguration.load(document(entry([element])))
    ).for_resource("", "secrets")
    rng = random.Random(6264)
    for size in [*range(70), 1000, 1 << 20]:
        plaintext, key = rng.randbytes(size), rng.randbytes(rng.randrange(40))
        assert one.from_storage(oracle.write(plaintext, key), key) == (plaintext, False)
        assert oracle.read(one.to_storage(plaintext, key), key) == (plaintext, False)
