"""Counting: by resource and form, in a memory that does not grow with what is counted."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from etcdmaint.compression import census as census_module
from etcdmaint.compression import frame
from etcdmaint.compression.audit import Audit, audit, resume_audit, resume_token
from etcdmaint.compression.census import OTHERS, Census, Tally
from etcdmaint.compression.contents import Content, Form
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.walk import Progress, Timing
from etcdmaint.errors import ConnectionLost, InvalidInput
from etcdmaint.etcd.entries import Chunk, Entry

from . import objects
from .memory import Alone, MemoryEtcd
from .objects import entry

POLICY = Policy.load(
    b"""
apiVersion: apiserver.config.k8s.io/v1alpha1
kind: StorageCompressionConfiguration
resources:
  - {resources: [events], algorithm: None}
  - {resources: ["*.*"], algorithm: Deflate, minSize: 1024}
""",
    stage=Stage.ALPHA,
    min_compatibility_version="1.38",
)
PLANTED = [
    (b"/registry/configmaps/a/1", objects.protobuf(size=100)),
    (b"/registry/configmaps/a/2", objects.protobuf(size=5000)),
    (b"/registry/configmaps/b/3", objects.DEFLATED),
    (b"/registry/configmaps/b/4", objects.STORED),
    (b"/registry/configmaps/b/5", objects.DAMAGED_CHECKSUM),
    (b"/registry/events/a/e", objects.protobuf(size=5000)),
    (b"/registry/example.com/widgets/a/w", objects.JSON),
    (b"/registry/pods/a/p", objects.NEWER),
    (b"/registry/pods/a/q", objects.MALFORMED),
    (b"/registry/pods/a/r", b""),
    (b"/registry/pods/a/s", b"what is this"),
    (b"/registry/ranges/serviceips", objects.protobuf(size=5000)),
    (b"/registry/masterleases/10.0.0.1", objects.protobuf()),
    (b"/registry/secrets/a/s", b"k8s:enc:aesgcm:v1:one:xxxx"),
    (b"/registry/secrets/a/t", b"k8s:enc:aesgcm:v1:two:xxxxx"),
    (b"/registry/unheard-of/x", b"12"),
    (b"compact_rev_key", b"77"),
]
ENTRIES = [entry(key, value) for key, value in PLANTED]


def counted(entries: list[Entry] = ENTRIES, **options: object) -> Census:
    census = Census(Keyspace(), **options)  # type: ignore[arg-type]
    census.add(entries)
    return census


def values(census: Census) -> dict[str, dict[str, int]]:
    return {
        row.name: {str(form): tally.values for form, tally in row.forms.items()} for row in census
    }


WANTED = {
    "configmaps": {"protobuf": 2, "deflate frame": 1, "stored frame": 1, "checksum mismatch": 1},
    "events": {"protobuf": 1},
    "widgets.example.com": {"json": 1},
    "pods": {"newer format": 1, "malformed frame": 1, "empty": 1, "opaque": 1},
    "serviceipallocations": {"protobuf": 1},
    "apiServerIPInfo": {"protobuf": 1},
    "secrets": {"encrypted by aesgcm one": 1, "encrypted by aesgcm two": 1},
    "/registry/unheard-of/": {"opaque": 1},
    "compact_rev_key": {"opaque": 1},
}


def test_every_value_is_counted_where_it_belongs() -> None:
    census = counted()
    assert values(census) == WANTED
    assert census.total == Tally(len(PLANTED), sum(len(value) for _, value in PLANTED))


def test_the_order_of_the_keys_does_not_matter() -> None:
    shuffled = random.Random(7).sample(ENTRIES, len(ENTRIES))
    assert values(counted(shuffled)) == WANTED


def test_an_object_that_is_opaque_or_empty_is_damaged_and_another_key_is_not() -> None:
    """A1: under an object's key no serializer left that; compact_rev_key is no object."""
    census = counted()
    damaged = {row.name: row.damaged for row in census if row.damaged}
    assert damaged == {"configmaps": 1, "pods": 4}
    assert [record.key for record in census.damaged] == [
        b"/registry/configmaps/b/5",
        *(b"/registry/pods/a/" + name for name in (b"p", b"q", b"r", b"s")),
    ]
    assert census.damaged[0].mod_revision == 5


def test_what_the_policy_would_have_stored_otherwise_is_stale() -> None:
    """R47, R150, A17: frames where none belong count as well; what cannot be read is undecided."""
    census = counted(rule_for=POLICY.rule_for)
    stale = {row.name: (row.stale.values, row.undecided) for row in census}
    assert stale["configmaps"] == (1, 1), "the long bare one; the damaged one is undecided"
    assert stale["events"] == (0, 0), "excluded by the first entry"
    assert stale["secrets"] == (0, 2)
    assert stale["serviceipallocations"] == (0, 0), "the API server's own stores have no policy"
    without = counted(rule_for=Policy.absent().rule_for)
    assert without.rows["configmaps"].stale.values == 1, "the deflated one; an escape never is"


def test_what_encryption_would_have_written_otherwise_is_stale_without_a_policy() -> None:
    """R48, R57."""
    from etcdmaint.compression.encryption.chain import Decrypted

    def decrypt_for(_group: str, resource: str):  # type: ignore[no-untyped-def]
        if resource != "configmaps":
            return None
        return lambda stored, key: Decrypted(stored, key.endswith(b"2"), "identity", "", "")

    assert counted(decrypt_for=decrypt_for).rows["configmaps"].stale.values == 1


def test_the_largest_and_the_most_written_are_kept_and_no_more() -> None:
    entries = [
        entry(b"/registry/pods/a/%03d" % number, b"x" * number, version=100 - number)
        for number in range(100)
    ]
    census = counted(random.Random(3).sample(entries, 100), top=3)
    assert [record.size for record in census.largest] == [99, 98, 97]
    assert [record.version for record in census.busiest] == [100, 99, 98]


def test_hostile_keys_and_values_do_not_grow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "_MOST_ROWS", 50)
    monkeypatch.setattr(census_module, "_MOST_FORMS", 50)
    entries = [
        entry(b"/registry/a.b/%d/x" % number, b"k8s:enc:aesgcm:v1:%d:x" % number)
        for number in range(500)
    ]
    entries += [
        entry(b"/registry/pods/a/%d" % number, b"k8s:enc:aesgcm:v1:%d:x" % number)
        for number in range(500)
    ]
    census = counted(entries)
    assert len(census.rows) == 51
    assert max(len(row.forms) for row in census) <= 50 + len(Content)
    assert census.total.values == 1000
    assert census.rows[OTHERS].total.values > 400


async def counting(state: Audit, etcd: MemoryEtcd) -> Audit:
    """All of it, with nobody else there."""
    return await audit(state, etcd, clock=etcd.clock, courtesy=Alone(), timing=Timing())


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Endless(MemoryEtcd):
    """So many keys of any number of resources, made as they are read."""

    def __init__(self, keys: int) -> None:
        super().__init__()
        self._keys = keys
        self.resident: list[int] = []

    async def count(self, start: bytes, end: bytes, revision: int = 0) -> int:
        return self._keys

    async def read(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Chunk, None]:
        value = objects.JSON
        for first in range(0, self._keys, 20_000):
            made = [
                Entry(
                    b"/registry/g%d.example.com/r/a/n-%d" % (number // 50, number),
                    value,
                    1,
                    2,
                    5,
                    0,
                )
                for number in range(first, first + 20_000)
            ]
            yield Chunk(made, sum(len(each.key) + len(each.value) for each in made))
            self.resident.append(resident())


async def test_an_audit_of_many_keys_takes_no_more_memory_than_one_of_a_tenth() -> None:
    """By the function that the command line and the operator share; the keys alone would be 20 MB."""
    etcd = Endless(400_000)
    state = Audit(Census(Keyspace(), keep=100))
    await counting(state, etcd)
    assert state.consistent
    assert state.census.total.values == state.progress.keys == 400_000
    assert len(state.census.rows) == 5_001
    assert etcd.resident[-1] - etcd.resident[1] < 12 << 20


def test_control_characters_of_keys_are_escaped_in_names() -> None:
    hostile = b"/registry/a.\xff/b\xc2\x9b2J\xe2\x80\xae/x/y"
    keys = (b"/registry/\x1b[2J/x", b"\x1b]0;x\x07", hostile)
    census = counted([entry(key, b"") for key in keys])
    assert all(row.name.isprintable() for row in census)
    assert "b\\x9b2J\\u202e.a.\\xff" in census.rows


def test_what_is_written_down_is_read_back() -> None:
    census = counted(top=2)
    again = Census(Keyspace(), top=2)
    again.restore(json.loads(json.dumps(census.dump())))
    assert values(again) == values(census)
    assert again.damaged == census.damaged
    assert again.largest == census.largest
    assert again.dump() == census.dump()


async def test_a_scan_that_is_broken_off_and_resumed_counts_what_an_unbroken_one_does() -> None:
    etcd = MemoryEtcd()
    for key, value in PLANTED:
        etcd.put(key, value)
    whole = await counting(Audit(Census(Keyspace())), etcd)

    def fail(chunk: int) -> None:
        if chunk > 4:
            etcd.fault = ConnectionLost("gone")

    etcd.before = fail
    broken = Audit(Census(Keyspace()))
    with pytest.raises(ConnectionLost):
        await counting(broken, etcd)
    token = resume_token(broken, 7, "q")
    etcd.before = lambda _: None
    resumed = Audit(Census(Keyspace()))
    resume_audit(resumed, token, 7, "q")
    await counting(resumed, etcd)
    assert resumed.census.dump() == whole.census.dump()
    assert resumed.progress.keys == whole.progress.keys == len(PLANTED)
    assert resumed.consistent
    assert token.isascii()


@pytest.mark.parametrize(
    ("cluster", "question", "fault"),
    [(8, "q", "another etcd cluster"), (7, "other", "other flags")],
)
def test_a_token_is_good_for_one_cluster_and_one_question(
    cluster: int, question: str, fault: str
) -> None:
    token = resume_token(Audit(counted(), Progress()), 7, "q")
    with pytest.raises(InvalidInput, match=fault):
        resume_audit(Audit(Census(Keyspace())), token, cluster, question)


@pytest.mark.parametrize("token", ["", "x", "!!!", "eJwDAAAAAAE", "é", "A" * 5000])
def test_rubbish_is_no_token(token: str) -> None:
    with pytest.raises(InvalidInput, match="--resume"):
        resume_audit(Audit(Census(Keyspace())), token, 7, "q")


def test_keys_of_a_frame_are_not_looked_for_where_there_are_none() -> None:
    """R24, raw tooling 8.2: a stored frame begins with the bytes of an envelope's magic at offset 1."""
    form, _, _ = census_module.examine(frame.encode(b"\x00"), b"k")
    assert form == Form(Content.STORED)
