"""An etcd full of what scans are about: values of every form, and one of each kind of damage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from etcdmaint.etcd.access import Access
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.endpoint import Endpoint
from etcdmaint.etcd.types import PutOp
from tests.controlplane.etcd import EtcdCluster
from tests.unit.compression import objects

HOSTILE = b"/registry/pods/\x1b[2J\xff/%00\n'\";--"


def values() -> dict[bytes, bytes]:
    """Key to value."""
    planted: dict[bytes, bytes] = {}
    for number in range(600):
        planted[b"/registry/configmaps/ns-%d/c-%03d" % (number % 7, number)] = objects.protobuf(
            size=number * 5
        )
    for number in range(300):
        planted[b"/registry/leases/ns-%d/l-%03d" % (number % 7, number)] = objects.protobuf()
    for number in range(200):
        planted[b"/registry/example.com/widgets/ns-1/w-%03d" % number] = objects.JSON
    for number in range(40):
        planted[b"/registry/pods/ns-1/framed-%d" % number] = objects.DEFLATED
        planted[b"/registry/pods/ns-2/stored-%d" % number] = objects.STORED
        planted[b"/registry/secrets/ns-%d/s-%d" % (number % 2, number)] = (
            b"k8s:enc:aesgcm:v1:key-%d:" % (number % 2) + bytes(40)
        )
    planted |= {
        b"/registry/configmaps/ns-1/large": objects.protobuf(size=1_500_000),
        b"/registry/pods/ns-3/checksum": objects.DAMAGED_CHECKSUM,
        b"/registry/pods/ns-3/newer": objects.NEWER,
        b"/registry/pods/ns-3/malformed": objects.MALFORMED,
        b"/registry/pods/ns-3/envelope": objects.BROKEN_ENVELOPE,
        b"/registry/pods/ns-3/empty": b"",
        b"/registry/pods/ns-3/opaque": b"\x01" + objects.DEFLATED[1:],
        b"/registry/pods/ns-3/yaml": objects.YAML,
        b"/registry/pods/ns-3/cbor": objects.CBOR,
        b"/registry/ranges/serviceips": objects.protobuf(kind="RangeAllocation"),
        b"/registry/masterleases/10.0.0.1": objects.protobuf(kind="Endpoints"),
        b"/registry/unheard-of/x": b"12",
        HOSTILE: objects.protobuf("\x1b[31mred"),
        b"compact_rev_key": b"7",
        b"\xff\xfe": b"\xff",
    }
    return planted


TRUTH = {
    ("configmaps", "protobuf"): 601,
    ("leases.coordination.k8s.io", "protobuf"): 300,
    ("widgets.example.com", "json"): 200,
    ("pods", "deflate frame"): 40,
    ("pods", "stored frame"): 40,
    ("pods", "checksum mismatch"): 1,
    ("pods", "newer format"): 1,
    ("pods", "malformed frame"): 1,
    ("pods", "broken protobuf envelope"): 1,
    ("pods", "empty"): 1,
    ("pods", "opaque"): 1,
    ("pods", "yaml"): 1,
    ("pods", "cbor"): 1,
    ("pods", "protobuf"): 1,
    ("secrets", "encrypted aesgcm key-0"): 20,
    ("secrets", "encrypted aesgcm key-1"): 20,
    ("serviceipallocations", "protobuf"): 1,
    ("apiServerIPInfo", "protobuf"): 1,
    ("/registry/unheard-of/", "opaque"): 1,
    ("compact_rev_key", "opaque"): 1,
    ("\\xff\\xfe", "opaque"): 1,
}


def told(document: dict) -> Counter[tuple[str, str]]:
    """What a scan's JSON counts, in the form of TRUTH."""
    found: Counter[tuple[str, str]] = Counter()
    for row in document["resources"]:
        for form in row["forms"]:
            name = " ".join(filter(None, (form["content"], form["provider"], form["keyName"])))
            found[row["resource"], name] += form["values"]
    return found


def plant(cluster: EtcdCluster, planted: Iterable[tuple[bytes, bytes]]) -> None:
    """Write them, many in a transaction."""

    async def write() -> None:
        async with client_of(cluster) as client:
            batch: list[PutOp] = []
            for key, value in planted:
                size = sum(len(op.value) for op in batch) + len(value)
                if batch and (len(batch) == 100 or size > 500_000):
                    await client.txn([], batch)
                    batch = []
                batch.append(PutOp(key, value))
            await client.txn([], batch)

    # A test's own loop may be running here.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(write())).result()


def client_of(cluster: EtcdCluster, index: int = 0) -> MemberClient:
    """A client of one member."""
    return MemberClient(Endpoint.parse(cluster.client_urls[index]), Access(), timeout=10.0)
