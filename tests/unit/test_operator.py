"""What the operator does to its own process before it begins."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from etcdmaint.operator import raise_file_limit


@pytest.fixture
def hard_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_of_open_files_does_not_limit_the_clusters(hard_limit: int) -> None:
    """A container's soft limit of 1024 files is reached with a few hundred clusters."""
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit, hard_limit)


def test_a_limit_that_the_system_does_not_take_is_left(
    hard_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with monkeypatch.context() as patched:
        patched.setattr(resource, "setrlimit", refuse)
        raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
