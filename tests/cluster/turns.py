"""An etcd worth defragmenting, and the turn of a member, held still for as long as a test likes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from etcdmaint.defrag.lock import SLOT_KEY
from tests.cluster.operator_proxy import ApiProxy, Write
from tests.cluster.operators import until
from tests.controlplane.etcd import EtcdCluster
from tests.controlplane.fixtures import EtcdClusterFactory
from tests.controlplane.member import Member
from tests.controlplane.stalling import hold_snapshot


def filled(factory: EtcdClusterFactory, **options: Any) -> EtcdCluster:
    """An etcd large enough to be stalled, with something to reclaim."""
    etcd = factory(**options)
    etcd.fill(bytes_live=6_000_000, bytes_deleted=4_000_000)
    for member in etcd.members:
        assert member.id  # asked now, since a member in flight does not tell
    return etcd


@contextlib.contextmanager
def first_turn_stalled(
    proxy: ApiProxy, etcd: EtcdCluster, run: str = "now"
) -> Iterator[list[Member]]:
    """Hold the run's first Defragment in flight within the `with`; it opens at its intent."""
    held: list[Member] = []
    with contextlib.ExitStack() as stalled:

        def stall(write: Write) -> None:
            if write.in_flight and write.name == run and not held:
                member = next(m for m in etcd.members if m.name == write.in_flight)
                held.append(member)
                stalled.enter_context(hold_snapshot(member))

        proxy.after = stall
        yield held
    proxy.after = None


def in_flight(held: list[Member]) -> Member:
    """Wait until it is, and say which member it is."""
    until(lambda: held and held[0].defragmenting(), "a member is in flight")
    return held[0]


def slot_is_free(etcd: EtcdCluster) -> bool:
    """Whether nobody holds the cluster's slot."""
    return not etcd.etcdctl("get", SLOT_KEY.decode(), "--print-value-only").stdout.strip()
