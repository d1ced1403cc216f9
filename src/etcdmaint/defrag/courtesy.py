"""Whom those who only read an etcd stand back for: whoever holds the cluster's slot.

Asked again and again while they read; `compression.walk.Courtesy` is what they ask. This module must
not know what is read, nor take the slot itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from etcdmaint.defrag.lock import read_slot
from etcdmaint.defrag.process import is_dead, shown
from etcdmaint.errors import EtcdError
from etcdmaint.etcd.cluster import ClusterClient


@dataclass(frozen=True, slots=True)
class SlotCourtesy:
    """`timeout` (seconds) is for each member that is asked."""

    cluster: ClusterClient
    timeout: float = 2.0

    async def holder(self) -> str:
        """The holder, for people; "" where nobody who may be alive is known to hold it."""
        for member in self.cluster.members:
            if member.is_learner:
                continue
            try:
                # A member that is being defragmented does not answer; another one does.
                held = await read_slot(self.cluster.client(member.id), timeout=self.timeout)
            except EtcdError:
                continue
            return shown(held.value.holder) if held and not is_dead(held.value.holder) else ""
        return ""
