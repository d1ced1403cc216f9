"""What `etcdmaint compact once` says of a round, and what does not end `compact watch`.

tests/etcd/test_compaction_cli.py has real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest

from etcdmaint.cli.compact import _follow, _tell
from etcdmaint.cli.exits import ExitCode
from etcdmaint.compaction.election import Result, Round, State
from etcdmaint.errors import ClusterNotHealthy, ConnectionLost


@pytest.mark.parametrize(
    ("held", "code", "text"),
    [
        (Round(Result.LOST, State(3, 90), 70), ExitCode.DONE, "compacts to revision 70"),
        (Round(Result.LOST, State(0, 90)), ExitCode.DONE, "changed or deleted the key"),
        (Round(Result.LOST, State(), new_world=True), ExitCode.FAILED, "is younger now"),
        (
            Round(Result.BOOTSTRAP, State(), new_world=True),
            ExitCode.FAILED,
            "nothing was compacted",
        ),
    ],
)
def test_a_round_that_compacts_nothing_says_why(
    held: Round, code: ExitCode, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """C9, C10, C11, C15."""
    assert _tell(held, State(2, 80)) == code
    said = capsys.readouterr()
    assert text in said.out + said.err


class _Flaky:
    """A cluster of one voter: its stream breaks, then its seeds lead elsewhere for a moment."""

    def __init__(self) -> None:
        self.members = [SimpleNamespace(id=1, is_learner=False)]
        self.streams = self.refreshed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def client(self, _: int) -> _Flaky:
        return self

    async def range(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(kvs=[], header=SimpleNamespace(revision=7))

    async def refresh(self) -> None:
        self.refreshed += 1
        if self.refreshed == 1:
            raise ClusterNotHealthy("MixedClusters", "endpoints lead to different clusters")

    @asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[Any]]:
        self.streams += 1
        yield self._changes()

    async def _changes(self) -> AsyncIterator[Any]:
        if self.streams == 1:
            raise ConnectionLost("the connection broke")
        raise KeyboardInterrupt
        yield


class _Connection:
    command_timeout = 1.0

    def __init__(self, cluster: _Flaky) -> None:
        self._cluster = cluster

    async def open(self) -> _Flaky:
        return self._cluster


async def test_watch_goes_on_where_the_endpoints_lead_to_different_clusters_for_a_moment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """C22, C24: whoever follows a cluster through its replacement is not left alone by a moment of two."""
    cluster = _Flaky()
    following: Any = _Connection(cluster)
    with pytest.raises(KeyboardInterrupt):
        await _follow(following, pause=0.0)
    assert cluster.streams == 2
    assert (
        "endpoints lead to different clusters; tries again each second" in capsys.readouterr().err
    )
