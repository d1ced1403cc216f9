"""What fills a database, however the reading of it goes; tests/etcd/test_rescue.py reads real ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from etcdmaint.defrag import prefixes
from etcdmaint.defrag.prefixes import largest_prefixes
from etcdmaint.errors import RevisionCompacted
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.entries import Chunk, Entry

KEYS = [b"/registry/%s/n/%d" % (kind, n) for kind in (b"events", b"pods") for n in range(4)]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The revision read at is compacted after every chunk; where each reading began."""
    begun: list[bytes] = []

    class Reader:
        def __init__(self, *_: object, **__: object) -> None:
            """Reads nothing yet."""

        async def read(self, start: bytes, end: bytes, revision: int) -> AsyncGenerator[Any, None]:
            begun.append(start)
            left = [key for key in KEYS if key >= start]
            yield Chunk([Entry(key, b"x" * 10, 2, 1, 1, 0) for key in left[:3]], 100)
            if left[3:]:
                raise RevisionCompacted("gone")

    monkeypatch.setattr(prefixes, "RangeReader", Reader)
    return begun


async def test_every_key_counts_once_although_its_revision_goes_away(read: list[bytes]) -> None:
    found = await largest_prefixes(cast(MemberClient, None))
    assert [(p.name, p.keys, p.writes) for p in found] == [
        ("/registry/events/", 4, 8),
        ("/registry/pods/", 4, 8),
    ]
    assert len(read) == 3


async def test_half_of_it_is_not_taken_for_the_whole(read: list[bytes]) -> None:
    """Ctrl-C while it reads: the rescue is done, and says so."""
    asked = iter([False, False, True])
    assert await largest_prefixes(cast(MemberClient, None), stopping=lambda: next(asked)) == []
    assert len(read) == 1
