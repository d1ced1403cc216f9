"""The ConfigMap of a policy: ours alone is written, as it should be, and only when it is not."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest

from etcdmaint.api.names import POLICY_HASH_ANNOTATION
from etcdmaint.errors import LeadershipLost
from etcdmaint.kube.client import Conflict
from etcdmaint.kube.resources import COMPRESSIONS, CONFIG_MAPS, ObjectRef, Resource
from etcdmaint.kube.storage_compression_publishing import (
    FILE_NAME,
    Publication,
    config_map,
    find,
    publish,
)
from tests.unit.api.compression_cases import KEP_SAMPLE, entry
from tests.unit.kube.fakes import FakeApi, FakeFence
from tests.unit.kube.test_storage_compression_file import file_of
from tests.unit.kube.test_storage_compression_gate import V1_37

REF = ObjectRef(COMPRESSIONS, "ns", "policy", "uid-1")
FILE, OTHER = file_of(KEP_SAMPLE), file_of(entry())


class StoringApi(FakeApi):
    """An API server that also creates and replaces."""

    version: Any = V1_37

    async def create(self, resource: Resource, namespace: str, body: dict[str, Any]) -> Any:
        self._answer()
        self.disturb()
        key = (resource.plural, namespace, body["metadata"]["name"])
        if key in self.objects:
            raise Conflict("exists")
        self.writes.append(("create", key[2], body))
        return self.put(
            resource, {**copy.deepcopy(body), "metadata": {**body["metadata"], "uid": "u"}}
        )

    async def replace(self, resource: Resource, namespace: str, body: dict[str, Any]) -> Any:
        self._answer()
        self.disturb()
        found = self._find(resource, namespace, body["metadata"]["name"])
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        self.writes.append(("update", body["metadata"]["name"], body))
        return self.put(resource, copy.deepcopy(body))

    async def server_version(self) -> Any:
        self._answer()
        return self.version

    @property
    def config_map(self) -> dict[str, Any]:
        """The one of the policy."""
        return self.objects["configmaps", "ns", "policy-storage-compression"]


async def published(api: StoringApi, file: Any = FILE, before: str = "") -> Publication:
    found = await find(api, REF)  # type: ignore[arg-type]
    return await publish(api, FakeFence(), REF, file, found, before)  # type: ignore[arg-type]


async def test_it_is_created_once_and_then_left_alone() -> None:
    """Byte-stable: no change in the object, no change in the ConfigMap."""
    api = StoringApi()
    assert await published(api) is Publication.CREATED
    made = copy.deepcopy(api.config_map)
    assert made["data"] == {FILE_NAME: FILE.data.decode()}
    digest = hashlib.sha256(made["data"][FILE_NAME].encode()).hexdigest()
    assert made["metadata"]["annotations"] == {POLICY_HASH_ANNOTATION: f"sha256:{digest}"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("StorageCompressionConfiguration", "uid-1")
    assert "blockOwnerDeletion" not in owner
    for _ in range(3):
        assert await published(api, before=FILE.hash) is Publication.UNCHANGED
    assert api.config_map == made
    assert len(api.writes) == 1


async def test_another_policy_is_an_update() -> None:
    api = StoringApi()
    await published(api)
    assert await published(api, OTHER, FILE.hash) is Publication.UPDATED
    assert api.config_map["data"] == {FILE_NAME: OTHER.data.decode()}
    assert api.config_map["metadata"]["annotations"][POLICY_HASH_ANNOTATION] == OTHER.hash


def _another_file(obj: dict[str, Any]) -> None:
    obj["data"][FILE_NAME] = "resources: []\n"


def _another_hash(obj: dict[str, Any]) -> None:
    obj["metadata"]["annotations"][POLICY_HASH_ANNOTATION] = "sha256:00"


def _no_annotations(obj: dict[str, Any]) -> None:
    del obj["metadata"]["annotations"]


def _more_data(obj: dict[str, Any]) -> None:
    obj["data"]["more"] = "x"


def _no_data(obj: dict[str, Any]) -> None:
    del obj["data"]


def _binary_data(obj: dict[str, Any]) -> None:
    obj["binaryData"] = {"x": "eA=="}


@pytest.mark.parametrize(
    "change",
    [_another_file, _another_hash, _no_annotations, _more_data, _no_data, _binary_data],
)
async def test_whatever_somebody_changed_is_put_right(change: Any) -> None:
    api = StoringApi()
    await published(api)
    made = copy.deepcopy(api.config_map)
    change(api.config_map)
    assert await published(api, before=FILE.hash) is Publication.RESTORED
    made["metadata"]["resourceVersion"] = api.config_map["metadata"]["resourceVersion"]
    assert api.config_map == made


async def test_a_deleted_one_is_made_again_and_called_restored() -> None:
    api = StoringApi()
    await published(api)
    api.objects.clear()
    assert await published(api, before=FILE.hash) is Publication.RESTORED


async def test_what_people_note_in_its_metadata_stays() -> None:
    api = StoringApi()
    await published(api)
    api.config_map["metadata"]["annotations"]["team"] = "storage"
    api.config_map["metadata"]["labels"]["team"] = "storage"
    assert await published(api, before=FILE.hash) is Publication.UNCHANGED
    await published(api, OTHER, FILE.hash)
    assert api.config_map["metadata"]["annotations"]["team"] == "storage"
    assert api.config_map["metadata"]["labels"]["team"] == "storage"


@pytest.mark.parametrize("owners", [None, [], [{"uid": "uid-2"}]])
async def test_one_that_is_not_ours_is_never_touched(owners: Any) -> None:
    """Not even where it has our very file."""
    api = StoringApi()
    foreign = config_map(REF, FILE)
    foreign["metadata"]["ownerReferences"] = owners
    api.put(CONFIG_MAPS, foreign)
    before = copy.deepcopy(api.objects)
    assert await published(api) is Publication.NAME_TAKEN
    assert await published(api, OTHER, FILE.hash) is Publication.NAME_TAKEN
    assert api.objects == before


async def test_who_was_quicker_is_not_overwritten() -> None:
    """Compare and swap."""
    api = StoringApi()
    await published(api)

    def change() -> None:
        api.put(CONFIG_MAPS, api.config_map)

    api.disturb = change
    with pytest.raises(Conflict):
        await published(api, OTHER, FILE.hash)
    assert api.config_map["data"] == {FILE_NAME: FILE.data.decode()}


async def test_nothing_is_written_without_the_lease() -> None:
    api = StoringApi()
    fence = FakeFence(api.clock, until=0.0)
    found = await find(api, REF)  # type: ignore[arg-type]
    with pytest.raises(LeadershipLost):
        await publish(api, fence, REF, FILE, found, "")  # type: ignore[arg-type]
    assert api.objects == {}
