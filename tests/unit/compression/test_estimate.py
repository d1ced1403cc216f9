"""What compression would save, by arithmetic that can be checked value by value."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.compression import frame
from etcdmaint.compression.capacity import Fill, Packer, way_there
from etcdmaint.compression.encryption.chain import Decrypted
from etcdmaint.compression.estimate import CANDIDATES, Estimator, Sizes
from etcdmaint.compression.frame import MAX_PLAINTEXT_BYTES
from etcdmaint.compression.policy import Policy, Stage
from etcdmaint.compression.resources import Keyspace
from etcdmaint.compression.transformer import Identity, Transformer
from etcdmaint.etcd.entries import Entry

from . import objects
from .objects import entry

RANDOM = random.Random(5)
PODS = [
    entry(b"/registry/pods/a/%d" % size, objects.protobuf(size=size))
    for size in (10, 100, 300, 700, 1000, 1500, 3000, 9000, 20_000)
]


def estimated(entries: list[Entry], **options: object) -> Estimator:
    estimator = Estimator(Keyspace(), **options)  # type: ignore[arg-type]
    estimator.add(entries)
    return estimator


def policy(min_size: int) -> Policy:
    text = (
        "{apiVersion: apiserver.config.k8s.io/v1alpha1, kind: StorageCompressionConfiguration, "
        f"resources: [{{resources: ['*.*'], algorithm: Deflate, minSize: {min_size}}}]}}"
    )
    return Policy.load(text.encode(), stage=Stage.ALPHA, min_compatibility_version="1.38")


@pytest.mark.parametrize("index", range(len(CANDIDATES)))
def test_at_each_min_size_it_is_what_a_writer_would_have_stored(index: int) -> None:
    """R35 to R37: the transformer itself is the truth."""
    writer = Transformer(policy(CANDIDATES[index]).rule_for("", "pods"), Identity())
    stored = [len(writer.to_storage(each.value, each.key)) for each in PODS]
    at = estimated(PODS).chosen(index)
    assert at.bare - at.framed == sum(len(each.value) for each in PODS) - sum(stored)
    assert at.values == sum(writer.to_storage(each.value, each.key) != each.value for each in PODS)


def test_what_does_not_compress_grows_by_nine_bytes() -> None:
    """R39, R160."""
    value = b"k8s\0" + RANDOM.randbytes(5000)
    # Not whole as an object: as JSON, whose inside is not looked at.
    value = b'{"' + RANDOM.randbytes(5000) + b"}"
    at = estimated([entry(b"/registry/a.b/c/d/e", value)]).chosen(2)
    assert at.framed - at.bare == 9


def test_frames_damage_and_giants_are_told_and_not_compressed() -> None:
    giant = b'{"' + b" " * MAX_PLAINTEXT_BYTES + b"}"
    found = estimated(
        [
            entry(b"/registry/pods/a/framed", objects.DEFLATED),
            entry(b"/registry/pods/a/giant", giant),
            entry(b"/registry/pods/a/damaged", objects.DAMAGED_CHECKSUM),
            entry(b"/registry/pods/a/encrypted", b"k8s:enc:aesgcm:v1:k:x"),
        ]
    )
    row = found.rows["pods"]
    assert (row.values, row.framed, row.above, row.unread) == (2, 1, 1, 2)
    assert found.chosen(0).values == 0
    assert row.bytes == len(frame.decode(objects.DEFLATED)) + len(giant)


def test_an_encrypted_value_keeps_its_envelope() -> None:
    """R19: what is compressed is the plaintext, what counts is what is stored."""
    plaintext = objects.protobuf(size=5000)
    stored = b"k8s:enc:secretbox:v1:k:" + bytes(40) + plaintext

    def decrypt_for(_group: str, _resource: str):  # type: ignore[no-untyped-def]
        return lambda _stored, _key: Decrypted(plaintext, False, "secretbox", "k", "")

    at = estimated([entry(b"/registry/pods/a/p", stored)], decrypt_for=decrypt_for).chosen(0)
    assert at.bare == len(stored)
    assert at.framed == len(frame.encode(plaintext)) + 63


def test_secrets_are_left_out_unless_somebody_insists() -> None:
    """R120, R138."""
    secrets = [entry(b"/registry/secrets/a/s", objects.protobuf(size=5000))]
    without = estimated(secrets)
    assert without.rows == {}
    assert without.secrets_left_out == 1
    assert without.live.bytes == 8192, "they take their room all the same"
    assert estimated(secrets, include_secrets=True).chosen(0).values == 1


def test_what_no_policy_reaches_is_left_out() -> None:
    keys = (b"/registry/ranges/serviceips", b"/registry/masterleases/1.2.3.4", b"other/key")
    found = estimated([entry(key, objects.protobuf(size=5000)) for key in keys])
    assert found.rows == {}
    assert found.live.bytes == 3 * 8192 - 4096


@given(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_quantile_is_right_to_one_part_in_32(sizes: list[int], share: float) -> None:
    counted = Sizes()
    for size in sizes:
        counted.add(size)
    exact = sorted(sizes)[max(-int(-share * len(sizes) // 1), 1) - 1]
    assert exact * 31 / 32 - 1 <= counted.quantile(share) <= exact


@pytest.mark.parametrize(
    ("size", "each"),
    [(100, 180), (1700, 2048), (2000, 4096), (3900, 4096), (9000, 10240), (200_000, 200_704)],
)
def test_a_leaf_takes_two_items_at_least_and_is_filled_to_nine_tenths(size: int, each: int) -> None:
    packer = Packer()
    for _ in range(1000):
        packer.add(size)
    assert packer.bytes / 1000 == pytest.approx(each, rel=0.01)


def test_nothing_takes_nothing() -> None:
    assert Packer().bytes == 0


GIB = 1 << 30


@pytest.mark.parametrize(
    ("fill", "live", "written", "batches", "verdict"),
    [
        (Fill(1 * GIB, 1 * GIB, 8 * GIB), 1 * GIB, 1 * GIB, 0, "fits"),
        (Fill(7 * GIB, 1 * GIB, 8 * GIB), 1 * GIB, 1 * GIB, 0, "fits"),
        (Fill(7 * GIB, 6 * GIB, 8 * GIB), 2 * GIB, 2 * GIB, 1, "then 1 batch"),
        (Fill(7.9 * GIB, 3 * GIB, 8 * GIB), 3 * GIB, 0.1 * GIB, 1, "then 1 batch"),
        (Fill(7 * GIB, 6 * GIB, 8 * GIB), 6 * GIB, 3 * GIB, 3, "then 3 batches"),
        (Fill(7 * GIB, 7 * GIB, 8 * GIB), 7.5 * GIB, 3 * GIB, None, "raise the quota"),
        (Fill(7.9 * GIB, 7 * GIB, 8 * GIB), 7.5 * GIB, 0, 0, "fits"),
        (Fill(7 * GIB, 7 * GIB, None), 7 * GIB, 3 * GIB, 0, "fits"),
        (Fill(7 * GIB, 7 * GIB, None, False), 7 * GIB, 3 * GIB, 0, "not known"),
    ],
)
def test_the_verdict_follows_from_the_peak(
    fill: Fill, live: int, written: int, batches: int | None, verdict: str
) -> None:
    """Rewriting writes everything once more before the old revisions can go."""
    way = way_there(fill, live=live, written=written, then=live - written // 2)
    assert way.batches == batches
    assert way.fits is {"fits": True, "not known": None}.get(verdict, False)
    assert verdict in way.verdict
    assert way.peak == max(fill.used, fill.in_use + written)
    assert way.then == live - written // 2
