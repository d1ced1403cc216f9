"""Pages of a range: every key once, and etcd never has to count everything again and again."""

from __future__ import annotations

import bisect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etcdmaint.etcd.window import NO_END, Window

MOST = 1000
PAGE = 200


def read(
    keys: list[bytes], start: bytes = b"\0", end: bytes = NO_END, *, most: int, page: int
) -> tuple[list[bytes], int, int]:
    """What comes out of etcd with these keys; how many it has counted, and in how many calls."""
    window = Window(start, end, most)
    found: list[bytes] = []
    counted = calls = 0
    more = True
    while more or window.widen():
        first = bisect.bisect_left(keys, window.position)
        last = len(keys) if window.bound == NO_END else bisect.bisect_left(keys, window.bound)
        calls += 1
        counted += max(last - first, 0)
        some = keys[first : min(first + page, last)]
        more = last - first > page
        if some:
            found += some
            window.passed(some, last - first)
    return found, counted, calls


@given(
    st.lists(st.binary(min_size=1, max_size=6), unique=True, max_size=80),
    st.integers(1, 5),
    st.integers(0, 6),
    st.sampled_from([NO_END, b"\xff", b"b", b"\x01\xff"]),
)
def test_every_key_comes_once_and_in_order(
    keys: list[bytes], page: int, most: int, end: bytes
) -> None:
    keys.sort()
    wanted = [key for key in keys if end == NO_END or key < end]
    found, _, _ = read(keys, b"\0", end, most=most, page=page)
    assert found == [key for key in wanted if key >= b"\0"]


@given(st.lists(st.text("ab/\xff", min_size=1, max_size=8), unique=True, max_size=60))
def test_keys_that_are_prefixes_of_each_other_are_no_trouble(names: list[str]) -> None:
    keys = sorted(name.encode("latin-1") for name in names)
    assert read(keys, most=1, page=2)[0] == keys
    assert read(keys, most=1, page=1)[0] == keys


RANDOM = random.Random(3)
SHAPES = {
    "many namespaces": [b"/registry/pods/ns-%04d/p-%03d" % (n % 1000, n // 1000) for n in range(50_000)],
    "one namespace, numbered": [b"/registry/pods/default/p-%06d" % n for n in range(50_000)],
    "one namespace, random names": [
        b"/registry/events/default/web-%08x.%016x" % (RANDOM.getrandbits(32), RANDOM.getrandbits(64))
        for _ in range(50_000)
    ],
    "many resources": [
        b"/registry/group-%03d.io/things/ns-%d/x-%04d" % (n % 300, n % 7, n // 300)
        for n in range(50_000)
    ],
    "small resources before a large one": [
        *(b"/registry/a%03d/ns/x-%d" % (n // 30, n) for n in range(10_000)),
        *(b"/registry/pods/ns-%d/%s" % (n % 10, b"%x" % (n * 7919)) for n in range(40_000)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("keys", SHAPES.values(), ids=SHAPES)
def test_etcd_counts_each_key_some_times_and_not_once_a_page(keys: list[bytes]) -> None:
    """Pages of the whole range would count each key 125 times."""
    keys = sorted(set(keys))
    found, counted, calls = read(keys, most=MOST, page=PAGE)
    assert found == keys
    assert counted / len(keys) < 20
    assert calls < 3 * len(keys) / PAGE


def test_a_small_range_is_one_window() -> None:
    keys = [b"%03d" % number for number in range(900)]
    assert read(keys, most=MOST, page=PAGE) == (keys, 900 + 700 + 500 + 300 + 100, 5)
