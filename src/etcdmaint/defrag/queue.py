"""The queue inside one process: one run a cluster at a time, oldest first, and only so many in all (D3).

A cluster is known by its etcd cluster ID, so that two names for one etcd share a place. This is about
order and politeness; what keeps runs of different processes apart is the slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from etcdmaint.errors import SlotHeld


@dataclass(slots=True, eq=False)
class Ticket:
    """One run's place. `order` sorts by age, namespace and name."""

    name: str
    order: tuple[str, str]
    cluster_ref: str
    looked: bool = False
    cluster_id: int | None = None
    running: bool = False


class RunQueue:
    """Who may run now. All methods return at once; those who must wait ask again."""

    def __init__(self, limit: int = 8) -> None:
        self._limit = limit
        self._tickets: list[Ticket] = []

    @property
    def running(self) -> int:
        """How many runs are under way."""
        return sum(ticket.running for ticket in self._tickets)

    def arrive(self, name: str, created: str, cluster_ref: str) -> Ticket:
        """Take a place; with `created` empty before all others."""
        ticket = Ticket(name, (created, name), cluster_ref)
        self._tickets.append(ticket)
        return ticket

    def stand_back(self, ticket: Ticket) -> None:
        """The gate deferred this run: it does not hold up the ones behind it."""
        ticket.looked = True
        if not ticket.running:
            ticket.cluster_id = None

    def check(self, ticket: Ticket) -> None:
        """Raise SlotHeld when it is plain without a look that others go first.

        A hundred runs may wait for one cluster: they are not to ask its members each second whether
        they might.
        """
        if ticket.running:
            return
        for other in self._tickets:
            known = ticket.cluster_id is not None and other.cluster_id == ticket.cluster_id
            contends = not other.looked or other.cluster_id is not None
            if other is not ticket and (
                (known or (contends and other.cluster_ref == ticket.cluster_ref))
                and (other.running or other.order < ticket.order)
            ):
                raise SlotHeld(f"waits for {other.name}", holder=other.name)

    def start(self, ticket: Ticket, cluster_id: int) -> None:
        """Start, or raise SlotHeld naming the run to wait for."""
        ticket.looked = True
        ticket.cluster_id = cluster_id
        if ticket.running:
            return
        self.check(ticket)
        if self.running >= self._limit:
            raise SlotHeld(f"{self._limit} runs are under way, which is the limit", holder="")
        ticket.running = True

    def yield_turn(self, ticket: Ticket) -> None:
        """Give the turn back without leaving: the slot was not to be had."""
        ticket.running = False

    def leave(self, ticket: Ticket) -> None:
        """The run is over, or its process stops."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
