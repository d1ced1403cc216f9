"""Encryption at rest against a real kube-apiserver: it writes and we read, we write and it reads."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etcdmaint.compression.encryption.chain import EncryptionChain, ResourceChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
from etcdmaint.compression.frame import describe, is_framed
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace, Location
from etcdmaint.compression.transformer import Transformers
from etcdmaint.errors import DecryptionFailed, EncryptionKeyMissing
from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import Compare, KeyValue, PutOp, prefix_end
from tests.controlplane.apiserver import ControlPlane
from tests.kms_plugin import KmsPlugin

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

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


@dataclass(frozen=True)
class Resource:
    """One resource of the API, where it lies in etcd, and the provider that encrypts it here."""

    group: str
    version: str
    plural: str
    kind: str
    provider: str
    key_name: str

    def key(self, name: str) -> bytes:
        return Keyspace().key(Location(self.group, self.plural, "default", name))

    def path(self, name: str = "") -> str:
        api = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{api}/namespaces/default/{self.plural}{'/' if name else ''}{name}"

    @property
    def selector(self) -> str:
        return f"{self.plural}.{self.group}".rstrip(".")


RESOURCES = [
    Resource("", "v1", "secrets", "Secret", "kms:v2", "vault"),
    Resource("", "v1", "configmaps", "ConfigMap", "aesgcm", "gcm-1"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", "secretbox", "box-1"),
    Resource("coordination.k8s.io", "v1", "leases", "Lease", "aescbc", "cbc-1"),
    Resource("example.com", "v1", "widgets", "Widget", "secretbox", "wild-1"),
]
EACH = pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: f"{r.selector} {r.provider}")


def _keyed(provider: str, names: list[str]) -> list[dict[str, Any]]:
    keys = [
        {"name": name, "secret": base64.b64encode(name.encode().ljust(32, b"."))} for name in names
    ]
    return [{provider: {"keys": [{**key, "secret": key["secret"].decode()} for key in keys]}}]


def configuration(plugin: KmsPlugin, generations: list[int]) -> bytes:
    """The file, with the keys of these generations; the first one writes."""
    kms = {"apiVersion": "v2", "name": "vault", "endpoint": plugin.endpoint, "timeout": "30s"}
    entries = [{"resources": ["secrets"], "providers": [{"kms": kms}]}]
    for resources, provider, name in (
        ("configmaps", "aesgcm", "gcm"),
        ("serviceaccounts", "secretbox", "box"),
        ("leases.coordination.k8s.io", "aescbc", "cbc"),
        ("*.example.com", "secretbox", "wild"),
    ):
        providers = _keyed(provider, [f"{name}-{generation}" for generation in generations])
        entries.append({"resources": [resources], "providers": [*providers, {"identity": {}}]})
    return json.dumps(
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": entries,
        }
    ).encode()


@dataclass
class Encrypted:
    """A control plane whose values are encrypted, and the means to change how."""

    plane: ControlPlane
    plugin: KmsPlugin
    file: Path

    def restart(self) -> None:
        self.plane.restart()
        self.plane.wait_established("widgets.example.com")

    def open_chain(self) -> EncryptionChain:
        return EncryptionChain(EncryptionConfiguration.load(self.file.read_bytes()))

    def create(self, resource: Resource, name: str, marker: str) -> None:
        api = f"{resource.group}/{resource.version}".lstrip("/")
        body: dict[str, Any] = {
            "apiVersion": api,
            "kind": resource.kind,
            "metadata": {"name": name, "annotations": {"marker": marker}},
        }
        self.plane.api.request("POST", resource.path(), body)

    def marker(self, resource: Resource, name: str) -> str:
        found = self.plane.kubectl(
            *("get", resource.selector, name, "--namespace=default"),
            "--output=jsonpath={.metadata.annotations.marker}",
        )
        return found.stdout

    @asynccontextmanager
    async def etcd(self) -> AsyncIterator[MemberClient]:
        endpoint = Endpoint.parse(self.plane.etcd.client_urls[0])
        async with MemberClient(endpoint, Access()) as client:
            yield client

    async def read(self, key: bytes) -> KeyValue:
        async with self.etcd() as client:
            return (await client.range(key)).kvs[0]

    async def read_all(self, resource: Resource) -> tuple[KeyValue, ...]:
        prefix = Keyspace().prefix(resource.group, resource.plural)
        async with self.etcd() as client:
            return (await client.range(prefix, prefix_end(prefix))).kvs

    async def replace(self, found: KeyValue, value: bytes) -> bool:
        """Compare and swap; False where somebody else was quicker."""
        async with self.etcd() as client:
            unchanged = Compare.mod_revision(found.key, found.mod_revision)
            result = await client.txn([unchanged], [PutOp(found.key, value, found.lease)])
        return result.succeeded


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("encrypted")
    file = folder / "encryption.yaml"
    # A socket's path has room for about a hundred bytes.
    with (
        tempfile.TemporaryDirectory(prefix="kms") as short,
        KmsPlugin(f"{short}/kms.sock", ["kid-1"], annotate=True) as plugin,
    ):
        file.write_bytes(configuration(plugin, [1]))
        with ControlPlane(folder, encryption_config=file) as plane:
            plane.apply(WIDGETS)
            plane.wait_established("widgets.example.com")
            yield Encrypted(plane, plugin, file)


@EACH
async def test_what_kube_apiserver_writes_is_read_with_its_key_and_current(
    encrypted: Encrypted, resource: Resource
) -> None:
    """R29, R32, R63: built-in resources and custom ones, as they lie in etcd."""
    encrypted.create(resource, "theirs", "written by kube-apiserver")
    found = await encrypted.read(resource.key("theirs"))

    with encrypted.open_chain() as chain:
        one = chain.for_resource(resource.group, resource.plural)
        read = one.decrypt(found.value, found.key)

    assert found.value.startswith(one.prefix)
    assert found.value.count(b"k8s:enc:") == 1
    assert b"written by kube-apiserver" in read.plaintext
    assert read[1:4] == (False, resource.provider, resource.key_name)
    assert read.key_id == ("kid-1" if resource.provider == "kms:v2" else "")


@EACH
async def test_what_we_write_by_compare_and_swap_is_read_by_kube_apiserver(
    encrypted: Encrypted, resource: Resource
) -> None:
    """R17, R29, R30: the same object, changed and encrypted by us, comes out of `kubectl get`."""
    encrypted.create(resource, "ours", "before")
    found = await encrypted.read(resource.key("ours"))

    with encrypted.open_chain() as chain:
        one = chain.for_resource(resource.group, resource.plural)
        plaintext, _ = one.from_storage(found.value, found.key)
        changed = plaintext.replace(b"before", b"afters")
        assert await encrypted.replace(found, one.to_storage(changed, found.key))

    assert encrypted.marker(resource, "ours") == "afters"


@EACH
async def test_a_value_moved_to_another_key_is_refused_where_the_key_is_authenticated(
    encrypted: Encrypted, resource: Resource
) -> None:
    """R30, R31, R95: by kube-apiserver and by us alike."""
    encrypted.create(resource, "moved", "from here")
    encrypted.create(resource, "target", "to here")
    found = await encrypted.read(resource.key("moved"))
    target = await encrypted.read(resource.key("target"))
    assert await encrypted.replace(target, found.value)
    bound = resource.provider in ("aesgcm", "kms:v2")

    with encrypted.open_chain() as chain:
        one = chain.for_resource(resource.group, resource.plural)
        if bound:
            with pytest.raises(DecryptionFailed):
                one.from_storage(found.value, target.key)
        else:
            assert b"from here" in one.from_storage(found.value, target.key)[0]
    theirs = encrypted.plane.kubectl(
        "get", resource.selector, "target", "--namespace=default", check=False
    )
    assert (theirs.returncode != 0) is bound, theirs.stderr
    # Not left behind: one value that cannot be read breaks every list and watch.
    assert await encrypted.replace(await encrypted.read(target.key), target.value)


POLICY = b"""
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
  - resources: [secrets, "*.*"]
    algorithm: Deflate
"""


@EACH
async def test_what_the_transformer_writes_is_framed_first_and_encrypted_last(
    encrypted: Encrypted, resource: Resource
) -> None:
    """R17, R19, R26, R27, R28: the raw value is one envelope, and a frame lies inside it."""
    encrypted.create(resource, "framed", "long enough to be framed " * 100)
    found = await encrypted.read(resource.key("framed"))
    policy = Policy.load(POLICY, stage=Stage.ALPHA, min_compatibility_version="1.38")

    with encrypted.open_chain() as chain:
        both = Transformers(policy, chain.for_resource).for_key(found.key)
        alone = chain.for_resource(resource.group, resource.plural)
        assert both is not None
        plaintext, stale = both.from_storage(found.value, found.key)
        assert stale, "bare, where the policy wants a frame"
        assert await encrypted.replace(found, both.to_storage(plaintext, found.key))
        written = await encrypted.read(found.key)
        inside, _ = alone.from_storage(written.value, written.key)
        assert both.from_storage(written.value, written.key) == (plaintext, False)
    # kube-apiserver has no KEP-6264 and could not read its own object.
    assert await encrypted.replace(written, found.value)

    assert written.value.startswith(alone.prefix)
    assert written.value.count(b"k8s:enc:") == 1
    assert is_framed(inside)
    assert describe(inside).declared_length == len(plaintext)
    assert len(written.value) < len(found.value) / 2


async def test_resources_that_no_entry_names_stay_plain_for_both(encrypted: Encrypted) -> None:
    """R32, R63: the internal stores too, which no wildcard reaches."""
    found = await encrypted.read(b"/registry/namespaces/default")
    ranges = await encrypted.read(b"/registry/ranges/servicenodeports")

    with encrypted.open_chain() as chain:
        plain = chain.for_resource("", "namespaces")
        assert plain.from_storage(found.value, found.key) == (found.value, False)
        secrets = chain.for_resource("", "secrets")
        with pytest.raises(EncryptionKeyMissing, match="not encrypted"):
            secrets.from_storage(found.value, found.key)
        internal = chain.for_resource("", "servicenodeportallocations")
        assert internal.from_storage(ranges.value, ranges.key) == (ranges.value, False)


async def test_after_a_rotation_old_values_are_stale_and_rewriting_them_frees_the_old_key(
    encrypted: Encrypted,
) -> None:
    """R48, R57: rotate, rewrite with our chain, take the old keys away; kube-apiserver reads all."""
    for resource in RESOURCES:
        encrypted.create(resource, "rotated", f"still {resource.kind}")
    encrypted.plugin.keys = ["kid-2", "kid-1"]
    encrypted.file.write_bytes(configuration(encrypted.plugin, [2, 1]))
    encrypted.restart()

    with encrypted.open_chain() as chain:
        for resource in RESOURCES:
            one = chain.for_resource(resource.group, resource.plural)
            found = await encrypted.read(resource.key("rotated"))
            assert one.from_storage(found.value, found.key)[1], "stale under the new keys"
            # Every object of every namespace: one that cannot be read would end each list.
            while await rewrite_stale(encrypted, resource, one):
                pass
            again = await encrypted.read(found.key)
            plaintext = one.from_storage(found.value, found.key)[0]
            assert one.from_storage(again.value, again.key) == (plaintext, False)
    encrypted.plugin.keys = ["kid-2"]
    encrypted.file.write_bytes(configuration(encrypted.plugin, [2]))
    encrypted.restart()

    for resource in RESOURCES:
        assert encrypted.marker(resource, "rotated") == f"still {resource.kind}"


async def rewrite_stale(encrypted: Encrypted, resource: Resource, one: ResourceChain) -> int:
    stale = 0
    for found in await encrypted.read_all(resource):
        plaintext, old = one.from_storage(found.value, found.key)
        if old:
            stale += 1
            # A value that kube-apiserver writes meanwhile is looked at again.
            await encrypted.replace(found, one.to_storage(plaintext, found.key))
    return stale
