"""The cluster's slot: one key in the etcd itself that says who is defragmenting it (D60 to D64).

Whoever defragments this cluster, by whatever name it reaches it, must hold the key. It hangs on an etcd
lease, so that it goes when its holder has gone for good, but not while a member is blocked. The value is
a protocol between versions of this program: docs/concepts/slot.md has it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from etcdmaint.defrag.process import is_dead, shown
from etcdmaint.errors import EtcdError, LeadershipLost, SlotHeld, SlotLost
from etcdmaint.etcd.client import MemberClient
from etcdmaint.etcd.types import Compare, DeleteOp, PutOp

SLOT_KEY = b"etcdmaint.io/lock"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotValue:
    """What the key holds. `member` is the one in flight, with its metrics from before the RPC (D36)."""

    holder: str
    epoch: str
    run: str = ""
    uid: str = ""
    member: int | None = None
    since: str = ""
    defrag_count: int | None = None
    process_start: float | None = None

    def encode(self) -> bytes:
        """As JSON, with the member's ID in hexadecimal as etcdctl prints it."""
        return json.dumps(
            {
                "v": VERSION,
                "holder": self.holder,
                "epoch": self.epoch,
                "run": self.run,
                "uid": self.uid,
                "member": None if self.member is None else f"{self.member:016x}",
                "since": self.since,
                "defragCount": self.defrag_count,
                "processStart": self.process_start,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a value; one that no version of this program wrote is held by somebody unknown."""
        try:
            fields = json.loads(data)
            member = fields.get("member")
            count, start = fields.get("defragCount"), fields.get("processStart")
            return cls(
                holder=str(fields["holder"])[:512],
                epoch=str(fields["epoch"])[:512],
                run=str(fields.get("run", ""))[:512],
                uid=str(fields.get("uid", ""))[:128],
                member=int(member, 16) if isinstance(member, str) else None,
                since=str(fields.get("since", ""))[:64],
                defrag_count=count if isinstance(count, int) else None,
                process_start=float(start) if isinstance(start, int | float) else None,
            )
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return cls(holder="somebody who writes another format", epoch="")


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """The key as it stands in etcd."""

    value: SlotValue
    mod_revision: int


def age(since: str, now: datetime) -> str:
    """How long ago, for people: `, for 0:12:31`, or "" where the time is not readable."""
    try:
        began = datetime.fromisoformat(since)
        return f", for {str(now - began).split('.')[0]}"
    except (ValueError, TypeError):
        return ""


async def read_slot(client: MemberClient, *, timeout: float | None = None) -> HeldSlot | None:
    """Read the slot, linearizably (RPC Range)."""
    result = await client.range(SLOT_KEY, timeout=timeout)
    for found in result.kvs:
        return HeldSlot(SlotValue.decode(found.value), found.mod_revision)
    return None


def blocked_by(held: HeldSlot | None, holder: str) -> SlotValue | None:
    """Whoever else has the slot; None when it is free, the holder's, or of one who is proven dead (D63)."""
    if held is None or held.value.holder == holder or is_dead(held.value.holder):
        return None
    return held.value


class Slot:
    """This run's hold on the cluster. Each call is given a member that can answer it now."""

    def __init__(
        self, *, holder: str, epoch: str, run: str, uid: str, timeout: float = 5.0
    ) -> None:
        self._mine = SlotValue(holder=holder, epoch=epoch, run=run, uid=uid)
        self._timeout = timeout
        self.lease = 0
        self.ttl = 0
        self.looked = False
        """Whether it is known who had it."""
        self.previous: SlotValue | None = None
        """What our own predecessor left there: the evidence of D36."""

    def owns(self, value: SlotValue) -> bool:
        """Whether the value was written by this very process for this run."""
        mine = self._mine
        return (value.holder, value.epoch, value.uid) == (mine.holder, mine.epoch, mine.uid)

    async def acquire(
        self,
        client: MemberClient,
        ttl: int,
        now: datetime,
        *,
        is_active: Callable[[str, str], Awaitable[bool]],
        member: int | None = None,
        break_lock: bool = False,
    ) -> None:
        """Take the slot, or take it over from a predecessor of ours, by one compare-and-swap (D61, D62).

        `is_active` tells of another run of our own holder whether it is still to be finished: then it
        goes first. `member` is the one in flight: without a mark of who had asked it nothing is known of
        it, which is not the same as that nobody was asked. `break_lock` removes whoever has it. Raises
        SlotHeld when somebody else has the slot, SpaceExceeded when etcd takes no writes and nobody else
        has it.
        """
        held = await read_slot(client, timeout=self._timeout)
        self.looked = True
        other = blocked_by(held, self._mine.holder)
        if held is not None and other is not None:
            if not break_lock:
                raise SlotHeld(
                    f"the cluster is held by {shown(other.holder)}"
                    f"{f' for {other.run}' if other.run else ''}{age(other.since, now)}",
                    holder=other.holder,
                )
            # Not overwritten: under NOSPACE etcd takes no put, but a delete.
            await self._remove(client, held)
            held = None
        elif held is not None and held.value.uid == self._mine.uid:
            self.previous = held.value
        elif (
            held is not None
            and held.value.holder == self._mine.holder
            and await is_active(held.value.run, held.value.uid)
        ):
            raise SlotHeld(f"waits for {held.value.run}", holder=held.value.run)
        value = replace(self._mine, since=now.isoformat(timespec="seconds"), member=member)
        if self.previous is not None:
            # Until the member that our predecessor left in flight is dealt with, its mark must survive.
            value = replace(
                value,
                member=self.previous.member,
                defrag_count=self.previous.defrag_count,
                process_start=self.previous.process_start,
            )
        lease, granted = await client.lease_grant(ttl, timeout=self._timeout)
        try:
            swapped = await self._swap(client, value, held.mod_revision if held else 0, lease)
        except BaseException:
            # The key may be ours: only the answer was lost. A mark that we took over must not go then.
            if self.previous is None:
                await self._revoke(client, lease)
            raise
        if not swapped:
            await self._revoke(client, lease)
            raise SlotHeld("somebody else has just taken the cluster", holder="")
        # The lease that the key hung on is not ours to revoke; it expires, and the key stays.
        self.lease, self.ttl = lease, granted

    async def mark(
        self,
        client: MemberClient,
        member: int | None,
        now: datetime,
        *,
        defrag_count: int | None = None,
        process_start: float | None = None,
    ) -> None:
        """Write which member is in flight, with its metrics from before the RPC."""
        held = await self._read_own(client)
        value = replace(
            self._mine,
            since=now.isoformat(timespec="seconds"),
            member=member,
            defrag_count=defrag_count,
            process_start=process_start,
        )
        if not await self._swap(client, value, held.mod_revision, self.lease):
            raise SlotLost("somebody else has just taken the cluster's slot")

    async def verify(self, client: MemberClient) -> None:
        """Raise SlotLost unless the slot still carries our holder and epoch (D37).

        Raises LeadershipLost when a successor carries this very run on: then nothing may be recorded.
        """
        await self._read_own(client)

    async def _read_own(self, client: MemberClient) -> HeldSlot:
        held = await read_slot(client, timeout=self._timeout)
        if held is None:
            raise SlotLost("the cluster's slot has expired or was removed")
        if self.owns(held.value):
            return held
        mine, theirs = self._mine, held.value
        if (theirs.holder, theirs.uid) == (mine.holder, mine.uid):
            raise LeadershipLost("another process carries this run on")
        raise SlotLost(f"the cluster's slot is held by {shown(theirs.holder)} now")

    async def beat(self, client: MemberClient) -> None:
        """Keep the lease alive once."""
        await client.lease_keep_alive(self.lease, timeout=self._timeout)

    async def release(self, client: MemberClient) -> None:
        """Give the slot back if it is still ours."""
        held = await read_slot(client, timeout=self._timeout)
        if held is not None and self.owns(held.value):
            await client.lease_revoke(self.lease, timeout=self._timeout)

    async def _swap(
        self, client: MemberClient, value: SlotValue, mod_revision: int, lease: int
    ) -> bool:
        result = await client.txn(
            [Compare.mod_revision(SLOT_KEY, mod_revision)],
            [PutOp(SLOT_KEY, value.encode(), lease=lease)],
            timeout=self._timeout,
        )
        return result.succeeded

    async def _remove(self, client: MemberClient, held: HeldSlot) -> None:
        unchanged = Compare.mod_revision(SLOT_KEY, held.mod_revision)
        result = await client.txn([unchanged], [DeleteOp(SLOT_KEY)], timeout=self._timeout)
        if not result.succeeded:
            raise SlotHeld("somebody else has just taken the cluster", holder="")

    async def _revoke(self, client: MemberClient, lease: int) -> None:
        try:
            await client.lease_revoke(lease, timeout=self._timeout)
        except EtcdError:
            return
