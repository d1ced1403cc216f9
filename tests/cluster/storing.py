"""A kube-apiserver whose objects lie in etcd in every form that it has, and thousands of copies."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace, Location
from etcdmaint.compression.transformer import Transformers
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import KeyValue, prefix_end
from tests.controlplane.apiserver import ControlPlane
from tests.controlplane.gateway import text
from tests.controlplane.kubeapi import ApiError
from tests.controlplane.processes import wait_until
from tests.kms_plugin import KmsPlugin

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
POLICY = b"""
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
  - {resources: [secrets, "*.*"], algorithm: Deflate, minSize: 512}
"""
SEED = "seed-00000"


@dataclass(frozen=True)
class Kind:
    """A kind of object, and how it is encrypted once that is turned on."""

    group: str
    version: str
    plural: str
    kind: str
    provider: str = ""
    key_name: str = ""
    content: str = "protobuf"

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def path(self) -> str:
        api = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{api}/namespaces/default/{self.plural}"

    def key(self, name: str) -> bytes:
        return Keyspace().key(Location(self.group, self.plural, "default", name))


KINDS = (
    Kind("", "v1", "secrets", "Secret", "kms:v2", "vault"),
    Kind("", "v1", "configmaps", "ConfigMap", "aesgcm", "gcm"),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", "secretbox", "box"),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", "aescbc", "cbc"),
    Kind("", "v1", "events", "Event"),
    Kind("example.com", "v1", "widgets", "Widget", "secretbox", "wild", "json"),
)


def configuration(plugin: KmsPlugin, *, writes: bool) -> bytes:
    """One provider for each kind; without `writes` they only read, and identity writes."""

    def entry(resource: str, provider: dict[str, Any]) -> dict[str, Any]:
        providers = [provider, {"identity": {}}]
        return {"resources": [resource], "providers": providers if writes else providers[::-1]}

    def keyed(provider: str, name: str) -> dict[str, Any]:
        secret = base64.b64encode(name.encode().ljust(32, b".")).decode()
        return {provider: {"keys": [{"name": name, "secret": secret}]}}

    kms = {"kms": {"apiVersion": "v2", "name": "vault", "endpoint": plugin.endpoint}}
    return json.dumps(
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": [
                entry("secrets", kms),
                entry("configmaps", keyed("aesgcm", "gcm")),
                entry("serviceaccounts", keyed("secretbox", "box")),
                entry("leases.coordination.k8s.io", keyed("aescbc", "cbc")),
                entry("*.example.com", keyed("secretbox", "wild")),
            ],
        }
    ).encode()


@dataclass
class Stored:
    """The API server, its etcd, and the keys."""

    plane: ControlPlane
    plugin: KmsPlugin
    file: Path

    def encrypt(self, *, writes: bool) -> None:
        """Restart the API server so that it encrypts what it writes, or does not."""
        self.file.write_bytes(configuration(self.plugin, writes=writes))
        self.plane.restart()
        self.plane.wait_established("widgets.example.com")
        wait_until(lambda: self._renewed(encrypted=writes), "it has renewed its own Lease", 60.0)

    def _renewed(self, *, encrypted: bool) -> bool:
        """Whether it has written, since its restart, what it writes again and again by itself."""
        key = Keyspace().key(Location("coordination.k8s.io", "leases", "kube-system", ""))
        range_ = {"key": text(key), "range_end": text(prefix_end(key))}
        found = self.plane.etcd.members[0].gateway.post("/v3/kv/range", range_)["kvs"]
        values = [base64.b64decode(kv["value"]) for kv in found]
        return all(value.startswith(b"k8s:enc:") is encrypted for value in values)

    def chain(self) -> EncryptionChain:
        return EncryptionChain(EncryptionConfiguration.load(self.file.read_bytes()))

    def create(self, kind: Kind, name: str = SEED, size: int = 1500) -> None:
        """One object by the API."""
        api = f"{kind.group}/{kind.version}".lstrip("/")
        body: dict[str, Any] = {
            "apiVersion": api,
            "kind": kind.kind,
            "metadata": {"name": name, "annotations": {"note": "some words " * (size // 11)}},
        }
        if kind.kind == "Event":
            body["involvedObject"] = {"namespace": "default"}
        self.plane.api.request("POST", kind.path, body)

    @asynccontextmanager
    async def etcd(self) -> AsyncIterator[MemberClient]:
        endpoint = Endpoint.parse(self.plane.etcd.client_urls[0])
        async with MemberClient(endpoint, Access(), timeout=10.0) as client:
            yield client

    async def read(self, kind: Kind, name: str = SEED) -> KeyValue:
        async with self.etcd() as client:
            return (await client.range(kind.key(name))).kvs[0]

    async def copy(self, kind: Kind, first: int, number: int, *, framed: bool = False) -> None:
        """Copies of the seed, numbered from `first` on, encrypted as the API server encrypts.

        They are real objects: it lists them. But for `framed`, which no release of today reads.
        """
        seed = await self.read(kind)
        policy = (
            Policy.load(POLICY, stage=Stage.ALPHA, min_compatibility_version="1.38")
            if framed
            else Policy.absent()
        )
        with self.chain() as chain:
            layers = Transformers(policy, chain.for_resource).for_resource(kind.group, kind.plural)
            plaintext, _ = layers.from_storage(seed.value, seed.key)
            async with self.etcd() as client:
                for start in range(first, first + number, 100):
                    # Each has a revision of its own, as all that an API server writes: its watch
                    # cache may show a part of what shares one.
                    async with asyncio.TaskGroup() as batch:
                        for index in range(start, min(start + 100, first + number)):
                            name = f"seed-{index:05d}"
                            mine = plaintext.replace(SEED.encode(), name.encode())
                            key = kind.key(name)
                            batch.create_task(client.put(key, layers.to_storage(mine, key)))

    async def delete(self, kind: Kind, first: str, end: str) -> None:
        """Every object from the first name on, up to but without the end."""
        async with self.etcd() as client:
            await client.delete_range(kind.key(first), kind.key(end))

    def listed(self, path: str, revision: int, patience: float = 60.0) -> int:
        """How many objects the API server has at this revision, by the tests' own hand."""
        query = f"resourceVersion={revision}&resourceVersionMatch=Exact"
        deadline = time.monotonic() + patience
        while True:
            try:
                return len(self.plane.api.request("GET", f"{path}?{query}")["items"])
            except ApiError as error:
                # It has a cache, which may not have come so far, or be made anew.
                if error.status not in (429, 503, 504) or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)
