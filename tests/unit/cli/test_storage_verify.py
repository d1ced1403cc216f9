"""`storage verify-downgrade` over an etcd in memory and API servers that say what a test wants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest

from etcdmaint.cli import apiserver, storage_verify
from etcdmaint.cli.apiserver import ListExpired
from etcdmaint.cli.scanning import Reading
from etcdmaint.compression.governor import Governor
from etcdmaint.compression.verification import ApiServer
from etcdmaint.compression.walk import Timing
from etcdmaint.kube import access
from tests.unit.compression import objects
from tests.unit.compression.memory import Alone, MemoryEtcd

from .commandline import CommandLine

NAMESPACE = b"/registry/namespaces/kube-system"


class Etcd(MemoryEtcd):
    async def range(self, key: bytes, **flags: Any) -> Any:
        await super().range(key, **flags)
        return SimpleNamespace(kvs=[each for each in self.at(self.revision) if each.key == key])


class Server:
    """Lists what etcd has, but for what a test changes."""

    etcd: Etcd
    listing: Callable[[str, int], None] = staticmethod(lambda resource, revision: None)
    process = "1"

    def __init__(self, _access: object, url: str, **_: object) -> None:
        self.url = url or "https://10.0.0.1:6443"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def cluster_uid(self) -> str:
        return "u"

    async def facts(self) -> ApiServer:
        return ApiServer(self.url, "v1.37.2", "", self.process)

    async def known_servers(self) -> int:
        return 1 if self.process == "1" else 2

    async def count(self, _group: str, resource: str, revision: int) -> int:
        self.listing(resource, revision)
        prefix = b"/registry/%s/" % resource.encode()
        return sum(each.key.startswith(prefix) for each in self.etcd.at(revision))


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Etcd:
    memory = Etcd()
    memory.put(NAMESPACE, objects.protobuf("kube-system", kind="Namespace"))
    for number in range(5):
        memory.put(b"/registry/pods/ns/%d" % number, objects.protobuf())

    @asynccontextmanager
    async def opened(*_: object, serializable: bool) -> AsyncIterator[Any]:
        assert not serializable
        source: Any = memory
        cluster: Any = None
        yield Reading(
            cluster, source, memory.clock, Governor(None, memory.clock), Alone(), Timing(), 5.0
        )

    async def anybody(_kubeconfig: str) -> None: ...

    monkeypatch.setattr(storage_verify, "reading", opened)
    monkeypatch.setattr(access, "load_access", anybody)
    monkeypatch.setattr(apiserver, "ApiServerClient", Server)
    monkeypatch.setattr(Server, "etcd", memory, raising=False)
    return memory


@pytest.fixture
def verified(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    etcdmaint = CommandLine(capsys, monkeypatch)

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        said = etcdmaint("storage", "verify-downgrade", "-o", "json", *arguments)
        assert said.out, said.err
        return said.code, json.loads(said.out), said.err

    return run


Verified = Callable[..., tuple[int, dict[str, Any], str]]


def test_a_clean_etcd_is_verified_at_one_revision(etcd: Etcd, verified: Verified) -> None:
    """R150."""
    code, found, _ = verified()
    assert (code, found["verified"], found["revision"]) == (0, True, etcd.revision)
    assert {row["resource"]: row["listed"] for row in found["resources"]} == {
        "namespaces": 1,
        "pods": 5,
    }


def test_what_was_not_looked_at_is_not_claimed(
    etcd: Etcd, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    etcdmaint = CommandLine(capsys, monkeypatch)
    assert "no frame is left." in etcdmaint("storage", "verify-downgrade").out
    said = etcdmaint("storage", "verify-downgrade", "--resource=pods")
    assert "no frame of pods is left." in said.out


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("who", ["etcd", "the API server"])
def test_a_revision_that_is_compacted_away_again_and_again_is_not_verified(
    etcd: Etcd, verified: Verified, monkeypatch: pytest.MonkeyPatch, times: int, who: str
) -> None:
    """R150: it starts again, and what never comes to an end is no proof."""
    left = [times]

    def compact() -> bool:
        left[0] -= 1
        if left[0] >= 0:
            etcd.put(b"/other", b"x")
        return left[0] >= 0

    def before(_chunk: int) -> None:
        if compact():
            etcd.compacted = etcd.revision

    def expire(_resource: str, _revision: int) -> None:
        if compact():
            raise ListExpired("gone")

    if who == "etcd":
        etcd.before = before
    else:
        monkeypatch.setattr(Server, "listing", staticmethod(expire))
    code, found, err = verified()
    assert code == (15 if times == 3 else 0)
    assert err.count("starting again") == min(times, 2)
    if times == 3:
        assert not found["verified"]
        assert "compacted away 3 times" in found["faults"][0]
        assert "--resource" in found["faults"][0]


def test_two_addresses_of_one_api_server_do_not_stand_for_two(
    etcd: Etcd, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R139, R148: a balancer's address and a server's own."""
    monkeypatch.setattr(Server, "process", "same")
    code, found, _ = verified("--apiserver=https://vip", "--apiserver=https://10.0.0.1:6443")
    assert code == 15
    assert "there are 2 API servers and 1 was asked" in found["faults"][0]
    assert found["resources"] == []


def test_what_is_served_under_two_groups_is_found_by_either_name(
    etcd: Etcd, verified: Verified
) -> None:
    etcd.put(b"/registry/events/ns/e", objects.protobuf(kind="Event"))
    code, found, _ = verified("--resource=events.events.k8s.io")
    assert code == 0
    assert [row["resource"] for row in found["resources"]] == ["events"]


def test_the_namespace_that_proves_it_may_not_be_missing(etcd: Etcd, verified: Verified) -> None:
    etcd.put(NAMESPACE, None)
    code, found, _ = verified()
    assert code == 15
    assert "no API server is proven to use this etcd" in found["faults"][0]
