"""What a change of policy does to a real etcd, with the library where an API server will have it.

No API server of today writes frames. `ApiServer` reads, compares and writes back by a compare-and-swap
on the revision, as kube-apiserver's GuaranteedUpdate does: an update that changes nothing is written
only where the value that was read is stale. A migration is one such update of every object.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from etcdmaint.compression import frame
from etcdmaint.compression.census import Census
from etcdmaint.compression.encryption.chain import EncryptionChain
from etcdmaint.compression.encryption.configuration import EncryptionConfiguration
from etcdmaint.compression.metrics import Direction, Metrics
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.transformer import Transformers
from etcdmaint.compression.verification import judge
from etcdmaint.errors import MessageTooLarge
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.entries import Entry
from etcdmaint.etcd.types import Compare, KeyValue, PutOp, prefix_end
from tests.controlplane.etcd import EtcdCluster
from tests.unit.compression import objects

from .planting import client_of

pytestmark = pytest.mark.etcd

FOLDER = b"/registry/configmaps/"
SMALL, RANDOM, MIDDLE = FOLDER + b"a/small", FOLDER + b"a/random", FOLDER + b"a/middle"
LARGE = tuple(FOLDER + b"b/large-%02d" % number for number in range(12))
OBJECTS = {
    SMALL: objects.protobuf("small", size=300),
    MIDDLE: objects.protobuf("middle", size=1_500),
    # A Secret's or an image's bytes, say: nothing makes them smaller.
    RANDOM: b"k8s\0"
    + objects.field(1, objects.field(1, b"v1") + objects.field(2, b"ConfigMap"))
    + objects.field(2, objects.field(3, random.Random(6264).randbytes(3_000))),
    **{key: objects.protobuf("large", size=4_000) for key in LARGE},
}
SELECTED = set(OBJECTS) - {SMALL}
SECRETBOX = b"""
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ['*.*']
  providers:
  - secretbox: {keys: [{name: one, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]}
"""


def policy(algorithm: str, rewrite: str = "Eager", min_size: int = 1024) -> Policy:
    entry = f"{{resources: [configmaps], algorithm: {algorithm}, rewrite: {rewrite}, minSize: {min_size}}}"
    return Policy.load(
        "apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: StorageCompressionConfiguration\n"
        f"resources: [{entry}]\n".encode(),
        stage=Stage.BETA,
        min_compatibility_version="1.38",
    )


ON, OFF, GONE = policy("Deflate"), policy("None"), Policy.absent()
DESELECTED = Policy.load(
    b"apiVersion: apiserver.config.k8s.io/v1alpha1\nkind: StorageCompressionConfiguration\n"
    b"resources: [{resources: [pods], algorithm: Deflate}]\n",
    stage=Stage.BETA,
    min_compatibility_version="1.38",
)


class Counted(Metrics):
    """The counter of rewrites, by direction; the rest is let go."""

    def __init__(self) -> None:
        self.rewrites: Counter[Direction] = Counter()

    def rewrite_needed(self, resource: str, direction: Direction) -> None:
        self.rewrites[direction] += 1


class ApiServer:
    """One process: its policy, read once, and its encryption."""

    def __init__(self, etcd: MemberClient, policy: Policy, encryption: EncryptionChain) -> None:
        self.metrics = Counted()  # type: ignore[abstract]  # what it does not count it need not have
        self._etcd = etcd
        self._transformers = Transformers(policy, encryption.for_resource, metrics=self.metrics)

    async def read(self, key: bytes) -> tuple[KeyValue, bytes, bool]:
        (found,) = (await self._etcd.range(key)).kvs
        transformer = self._transformers.for_key(key)
        assert transformer is not None
        return found, *transformer.from_storage(found.value, key)

    async def update(self, key: bytes, change: Callable[[bytes], bytes] = bytes) -> bool:
        """Whether it had to be written."""
        found, before, stale = await self.read(key)
        after = change(before)
        if after == before and not stale:
            return False
        transformer = self._transformers.for_key(key)
        assert transformer is not None
        answer = await self._etcd.txn(
            [Compare.mod_revision(key, found.mod_revision)],
            [PutOp(key, transformer.to_storage(after, key))],
        )
        return answer.succeeded

    async def migrate(self) -> set[bytes]:
        """The objects that were written."""
        return {key for key in OBJECTS if await self.update(key)}


class Etcd:
    """A store with all objects as a release without KEP-6264 wrote them."""

    def __init__(self, client: MemberClient, encryption: EncryptionChain) -> None:
        self.client = client
        self._encryption = encryption

    def started(self, policy: Policy) -> ApiServer:
        """An API server that starts with this policy now."""
        return ApiServer(self.client, policy, self._encryption)

    async def entries(self) -> list[Entry]:
        found = await self.client.range(FOLDER, prefix_end(FOLDER))
        return [
            Entry(each.key, each.value, each.version, each.create_revision, each.mod_revision, 0)
            for each in found.kvs
        ]

    async def revisions(self) -> dict[bytes, int]:
        return {each.key: each.mod_revision for each in await self.entries()}

    async def framed(self) -> set[bytes]:
        """Whose bytes, decrypted and nothing more, are a frame."""
        chain = self._encryption.for_resource("", "configmaps")
        return {
            each.key
            for each in await self.entries()
            if frame.is_framed(chain.from_storage(each.value, each.key)[0])
        }

    async def verified(self) -> bool:
        """What `storage verify-downgrade` says where the API server lists all that was created."""
        chain = self._encryption.for_resource("", "configmaps")
        census = Census(Keyspace(), decrypt_for=lambda *_: chain.decrypt)
        census.add(await self.entries())
        return all(finding.verified for finding in judge(census, {"configmaps": len(OBJECTS)}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member, with etcd's default limit of a request."""
    with EtcdCluster(tmp_path_factory.mktemp("rewrites"), size=1) as started:
        yield started


@asynccontextmanager
async def full(cluster: EtcdCluster, configuration: bytes = b"") -> AsyncIterator[Etcd]:
    loaded = EncryptionConfiguration.load(configuration) if configuration else None
    chain = EncryptionChain(loaded)
    async with client_of(cluster) as client:
        await client.delete_range(FOLDER, prefix_end(FOLDER))
        for key, value in OBJECTS.items():
            await client.put(key, chain.for_resource("", "configmaps").to_storage(value, key))
        yield Etcd(client, chain)


encryptions = pytest.mark.parametrize("encryption", [b"", SECRETBOX], ids=["bare", "encrypted"])


@encryptions
@pytest.mark.parametrize("without", [OFF, DESELECTED, GONE], ids=["None", "deselected", "no file"])
async def test_a_change_of_policy_costs_each_object_one_write_in_either_direction(
    cluster: EtcdCluster, encryption: bytes, without: Policy
) -> None:
    """R50, R55, R56, R148, R151, R152, R168, R169, R174: read back raw after each restart."""
    async with full(cluster, encryption) as etcd:
        assert await etcd.started(without).migrate() == set()
        assert await etcd.framed() == set()

        for server, framed in ((ON, SELECTED), (without, set()), (ON, SELECTED)):
            restarted = etcd.started(server)
            before = await etcd.revisions()
            # Reading needs no rewrite first, whatever half of them has become by now.
            assert {key: (await restarted.read(key))[1] for key in OBJECTS} == OBJECTS
            assert await restarted.migrate() == SELECTED
            after = await etcd.revisions()
            assert {key for key in OBJECTS if after[key] != before[key]} == SELECTED
            assert await etcd.framed() == framed
            # As many are there as were created, so an empty scan cannot pass.
            assert await etcd.verified() is not bool(framed)
            for _ in range(3):
                assert await restarted.migrate() == set()
            assert await etcd.revisions() == after
            assert {key: (await restarted.read(key))[1] for key in OBJECTS} == OBJECTS


async def test_what_is_framed_for_its_size_and_does_not_compress_is_stored(
    cluster: EtcdCluster,
) -> None:
    """R37, R44, R52, R168: a sibling that compresses is deflated, one below the floor stays bare."""
    async with full(cluster) as etcd:
        server = etcd.started(ON)
        await server.migrate()
        values = {each.key: each.value for each in await etcd.entries()}
        assert values[LARGE[0]][:5] == b"\0k8s\1"
        assert values[RANDOM] == frame.encode(OBJECTS[RANDOM])
        assert values[RANDOM][:5] == b"\0k8s\0"
        assert values[SMALL] == OBJECTS[SMALL]
        assert not await server.update(RANDOM)


async def test_a_migration_while_a_resource_is_selected_leaves_frames(cluster: EtcdCluster) -> None:
    """R148, R149, R154: it finds nothing stale, and what it writes for other reasons is framed anew."""
    async with full(cluster) as etcd:
        server = etcd.started(ON)
        assert await server.update(LARGE[0])
        # Half migrated, and both halves are read.
        assert await etcd.framed() == {LARGE[0]}
        assert (await server.read(LARGE[0]))[1] == (await server.read(LARGE[1]))[1]
        await server.migrate()
        assert await server.update(LARGE[0], lambda before: before + b"!")
        assert await server.migrate() == set()
        assert await etcd.framed() == SELECTED
        assert not await etcd.verified()


async def test_enabling_again_costs_what_was_written_in_between_and_no_more(
    cluster: EtcdCluster,
) -> None:
    """R153: nobody migrates back in the gap; cycles do not add up."""
    async with full(cluster) as etcd:
        await etcd.started(ON).migrate()
        for cycle in range(3):
            without = etcd.started(OFF)
            churned = set(LARGE[cycle : cycle + 4])
            for key in churned:
                assert await without.update(key, lambda before: before + b" ")
            assert await etcd.framed() == SELECTED - churned
            assert await etcd.started(ON).migrate() == churned
            assert await etcd.framed() == SELECTED


@pytest.mark.parametrize(
    ("before", "on_write"),
    [(ON, policy("None", "OnWrite")), (OFF, policy("Deflate", "OnWrite"))],
    ids=["None over frames", "Deflate over bare values"],
)
async def test_under_on_write_a_migration_changes_nothing_and_a_genuine_update_does(
    cluster: EtcdCluster, before: Policy, on_write: Policy
) -> None:
    """R177, R178, R179: every revision stays, every raw value stays, until a client writes."""
    async with full(cluster) as etcd:
        await etcd.started(before).migrate()
        found = await etcd.entries()
        server = etcd.started(on_write)
        assert not any([(await server.read(key))[2] for key in OBJECTS])
        assert await server.migrate() == set()
        assert await etcd.entries() == found
        assert not server.metrics.rewrites

        was = await etcd.framed()
        assert await server.update(LARGE[3], lambda value: value + b"!")
        assert await etcd.framed() == was ^ {LARGE[3]}
        assert (await server.read(LARGE[3]))[1] == OBJECTS[LARGE[3]] + b"!"


async def test_what_a_migration_under_on_write_leaves_is_never_verified(
    cluster: EtcdCluster,
) -> None:
    """R141, R148, R181: no counter moves and every frame is there; only an Eager migration will do."""
    async with full(cluster) as etcd:
        await etcd.started(ON).migrate()
        quiet = etcd.started(policy("None", "OnWrite"))
        await quiet.migrate()
        assert not quiet.metrics.rewrites
        assert await etcd.framed() == SELECTED
        assert not await etcd.verified()

        await etcd.started(OFF).migrate()
        assert await etcd.verified()


FLEETS = {
    "Deflate and None": ("Deflate", 1024, "None", 1024),
    "two sizes": ("Deflate", 1024, "Deflate", 3000),
}


@pytest.mark.parametrize("rewrite", ["OnWrite", "Eager"])
@pytest.mark.parametrize(("one", "floor", "other", "other_floor"), FLEETS.values(), ids=FLEETS)
async def test_a_fleet_that_disagrees_is_quiet_only_under_on_write(
    cluster: EtcdCluster, rewrite: str, one: str, floor: int, other: str, other_floor: int
) -> None:
    """R58, R180, R190: under Eager the counter climbs in both directions and nobody loses anything."""
    async with full(cluster) as etcd:
        servers = [
            etcd.started(policy(one, rewrite, floor)),
            etcd.started(policy(other, rewrite, other_floor)),
        ]
        content = OBJECTS[MIDDLE]
        for turn in range(6):
            # A genuine write, which takes the form of whoever serves it, and an update without news.
            content += b"!"
            assert await servers[turn % 2].update(MIDDLE, lambda before: before + b"!")
            assert (MIDDLE in await etcd.framed()) is (turn % 2 == 0)
            written = await servers[1 - turn % 2].update(MIDDLE)
            assert written is (rewrite == "Eager")
            for server in servers:
                assert (await server.read(MIDDLE))[1] == content
        climbed = servers[0].metrics.rewrites + servers[1].metrics.rewrites
        assert set(climbed) == (set(Direction) if rewrite == "Eager" else set())


class Widest:
    """The largest envelope that there can be: kms v2 with annotations of 32 KiB."""

    HEAD = b"k8s:enc:kms:v2:" + b"n" * 1_000 + b":" + bytes(32 * 1024) + bytes(4 * 1024)

    def to_storage(self, plaintext: bytes, _key: bytes, /) -> bytes:
        return self.HEAD + plaintext

    def from_storage(self, stored: bytes, _key: bytes, /) -> tuple[bytes, bool]:
        return stored[len(self.HEAD) :], False


async def test_whatever_was_framed_etcd_takes_bare_as_well(cluster: EtcdCluster) -> None:
    """R41, R42, R45, A7: at its default limit, under the widest envelope; compression lifts no limit."""
    ceiling = frame.MAX_PLAINTEXT_BYTES
    largest = b"kubernetes" * (ceiling // 10) + b"k" * (ceiling % 10)
    on, off = (Transformers(each, lambda *_: Widest()).for_key(MIDDLE) for each in (ON, OFF))
    assert on is not None
    assert off is not None
    async with client_of(cluster) as client:
        framed, bare = on.to_storage(largest, MIDDLE), off.to_storage(largest, MIDDLE)
        assert len(framed) < len(bare) / 20
        for value in (framed, bare):
            await client.put(MIDDLE, value)
            assert (await client.range(MIDDLE)).kvs[0].value == value
        # Above the ceiling it would compress as well, and fails as it always did.
        beyond = largest + b"k" * 64 * 1024
        assert on.to_storage(beyond, MIDDLE) == off.to_storage(beyond, MIDDLE)
        with pytest.raises(MessageTooLarge):
            await client.put(MIDDLE, on.to_storage(beyond, MIDDLE))
        await client.delete_range(MIDDLE)


async def test_a_frame_pinned_as_a_literal_is_read_at_its_place_in_etcd(
    cluster: EtcdCluster,
) -> None:
    """R16, R60, R171: by a process with any policy, and by one without."""
    key = FOLDER + b"default/pinned"
    pinned = bytes.fromhex("006b3873013d46812480084b4c1c05a321301a0223350400")
    async with full(cluster) as etcd:
        await etcd.client.put(key, pinned)
        for each in (ON, OFF, GONE, DESELECTED):
            assert (await etcd.started(each).read(key))[1] == b"a" * 1024
