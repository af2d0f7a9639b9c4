"""HoldQueue: requests that were accepted while no endpoint can take them. A bounded queue per service, woken by events, never by polling.

A change begins a sweep: one request looks at a time, in the order of routing/turns.py, whether the one before it found an endpoint or not.
If one finds that every endpoint is full, the sweep ends. Changes during a sweep begin one more at its end: begun anew at each change, a
sweep of many requests never came to the last ones. A ticket keeps its place until its request leaves, however often it looks in vain.
Called by lifecycle.py and router.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagoda_gateway.limits.rules import Policy
from pagoda_gateway.requests.errors import LoadShed, QueueFull
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.shed import Fill, shed_share
from pagoda_gateway.routing.turns import Key, Turns, emptied, in_order, joined, rank_of, taken

UNSYNCED: Final = ""
"""The queue of requests that wait until the gateway has listed the cluster's services and replicas."""


class Claim(NamedTuple):
    """Whose request it is, and how it shares with others: `rank`, lower is sooner, and `weight` among tenants of the same rank. `first`: it
    had its turn already, and its replica refused it, so it goes before others of its tenant."""

    tenant: str = ""
    rank: int = 0
    weight: int = 1
    first: bool = False


ALONE: Final = Claim()


def claim_of(request: RoutingRequest, policy: Policy) -> Claim:
    """Returns how a request of a tenant with this policy shares with others."""
    return Claim(request.tenant, rank_of(request.tier, policy.priority), policy.weight)


class Ticket:
    """One held request's place in the queue of `service`."""

    __slots__ = ("_woken", "claim", "service", "since_ms")

    def __init__(self, service: str, since_ms: float, claim: Claim) -> None:
        self.service, self.since_ms, self.claim = service, since_ms, claim
        self._woken = asyncio.Event()

    @property
    def key(self) -> Key:
        """Its line."""
        return Key(self.claim.rank, self.claim.tenant)

    @property
    def woken(self) -> bool:
        """Whether a wake-up came that `wait` has not returned yet."""
        return self._woken.is_set()

    def wake(self) -> None:
        """Ends the wait, because something changed."""
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Returns at the next wake-up, or at once if one came already; TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            await self._woken.wait()
        self._woken.clear()


@dataclass(slots=True)
class _Queue:
    """One service's tickets by line. `looking`: tickets that are woken and have not looked; `order`: those that look next in this sweep;
    `late`: those that came since it began; `full`: the last sweep ended because every endpoint was full; `again`: one more is due."""

    turns: Turns = field(default_factory=Turns)
    lines: dict[Key, dict[Ticket, None]] = field(default_factory=dict)
    looking: set[Ticket] = field(default_factory=set)
    order: Iterator[Ticket] = field(default_factory=lambda: iter(()))
    late: dict[Ticket, None] = field(default_factory=dict)
    full: bool = False
    again: bool = False
    count: int = 0

    def tickets(self) -> Iterator[Ticket]:
        return (ticket for line in self.lines.values() for ticket in line)

    def add(self, ticket: Ticket, now_ms: float) -> None:
        line = self.lines.setdefault(ticket.key, {})
        if ticket.claim.first:
            self.lines[ticket.key] = {ticket: None} | line
        else:
            line[ticket] = None
        self.late[ticket] = None
        self.count += 1
        self.turns = joined(self.turns, ticket.key, ticket.claim.weight, now_ms)

    def drop(self, ticket: Ticket, now_ms: float, *, served: bool) -> None:
        if served:
            self.turns = taken(self.turns, ticket.key, now_ms)
        line = self.lines[ticket.key]
        del line[ticket]
        self.late.pop(ticket, None)
        self.count -= 1
        if not line:
            del self.lines[ticket.key]
            self.turns = emptied(self.turns, ticket.key)

    def in_order(self, now_ms: float) -> Iterator[Ticket]:
        lines = {key: iter(tuple(line)) for key, line in self.lines.items()}
        counts = {key: len(line) for key, line in self.lines.items()}
        return (next(lines[key]) for key in in_order(self.turns, counts, now_ms))

    def sweep(self, now_ms: float) -> None:
        """All look, one after the other, when those that look now have."""
        self.again = bool(self.looking)
        if not self.looking:
            self.full = False
            self.order = self.in_order(now_ms)
            self.late.clear()
            self.hand_on(now_ms)

    def end(self) -> None:
        """Every endpoint is full: nobody else looks."""
        self.full, self.order = True, iter(())

    def hand_on(self, now_ms: float) -> None:
        """The next one looks, unless one does."""
        if self.looking:
            return
        if (ticket := None if self.full else self._next()) is not None:
            self.looking.add(ticket)
            ticket.wake()
        elif self.again:
            self.sweep(now_ms)

    def _next(self) -> Ticket | None:
        waiting = (ticket for ticket in self.order if ticket in self.lines.get(ticket.key, ()))
        if (ticket := next(waiting, None)) is None and (ticket := next(iter(self.late), None)) is not None:
            del self.late[ticket]
        return ticket


class HoldQueue:
    """The queues of all services; `limit` bounds their sum. Times are those of the caller's clock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[str, _Queue] = {}
        self._tenants = Counter[str]()
        self._total = 0

    @property
    def total(self) -> int:
        """Requests held now."""
        return self._total

    def count(self, service: str) -> int:
        """Returns how many requests are held for this service."""
        queue = self._queues.get(service)
        return queue.count if queue is not None else 0

    def oldest(self, service: str) -> float | None:
        """Returns since when the oldest request is held, by the clock that `enter` was given; None if none is."""
        queue = self._queues.get(service)
        return min((ticket.since_ms for ticket in queue.tickets()), default=None) if queue is not None else None

    def enter(self, service: str, now_ms: float = 0.0, claim: Claim = ALONE, most: int | None = None, luck: float = 1.0) -> Ticket:
        """Takes a place at the end of its tenant's line; QueueFull at the limit of all services, or at `most` of this one. LoadShed before
        that, if `luck`, drawn from 0 to 1, says so. A request that had its turn before is not shed."""
        if self._total >= self._limit:
            raise QueueFull(f"no replica has room and {self._total} requests are already held, which is the limit ({self._limit})")
        if most is not None and self.count(service) >= most:
            raise QueueFull(
                f"no replica of {service} has room and {self.count(service)} requests are already held for it; at most {most} are"
            )
        share = 0.0 if claim.first else max(shed_share(claim.rank, fill) for fill in self._fills(service, claim.tenant, most))
        if luck < share:
            held = f"{self._total} requests are held, of these {self._tenants[claim.tenant]} of this tenant"
            raise LoadShed(f"no replica has room and {held}; {share:.0%} of such requests are refused now")
        return self._added(Ticket(service, now_ms, claim), now_ms)

    def _fills(self, service: str, tenant: str, most: int | None) -> Iterator[Fill]:
        yield Fill(self._tenants[tenant], self._total, self._limit)
        if most is not None and (queue := self._queues.get(service)) is not None:
            yield Fill(sum(len(line) for key, line in queue.lines.items() if key.tenant == tenant), queue.count, most)

    def _added(self, ticket: Ticket, now_ms: float) -> Ticket:
        self._queues.setdefault(ticket.service, _Queue()).add(ticket, now_ms)
        self._tenants[ticket.claim.tenant] += 1
        self._total += 1
        return ticket

    def leave(self, ticket: Ticket, now_ms: float = 0.0, *, served: bool = False) -> None:
        """Frees the place. `served`: it had its turn. The next one looks, if this one was about to."""
        queue = self._queues[ticket.service]
        looked = ticket in queue.looking
        queue.drop(ticket, now_ms, served=served)
        queue.looking.discard(ticket)
        self._tenants[ticket.claim.tenant] -= 1
        self._tenants += Counter()  # drops those with nothing
        self._total -= 1
        if not queue.lines:
            del self._queues[ticket.service]
        elif looked:
            queue.hand_on(now_ms)

    def move(self, ticket: Ticket, service: str, now_ms: float = 0.0) -> Ticket:
        """Returns a place in another queue, because the name now belongs to that service. Never refused: it was accepted already."""
        self.leave(ticket, now_ms)
        return self._added(Ticket(service, ticket.since_ms, ticket.claim), now_ms)

    def wake(self, service: str, now_ms: float = 0.0) -> None:
        """Something changed for this service: its requests look again, one after the other."""
        if (queue := self._queues.get(service)) is not None:
            queue.sweep(now_ms)

    def came(self, ticket: Ticket, now_ms: float = 0.0) -> None:
        """This one may find an endpoint. It looks behind those that wait: they have looked since the last change, unless all was full."""
        queue = self._queues[ticket.service]
        if queue.full and not queue.looking:
            queue.sweep(now_ms)
        else:
            queue.hand_on(now_ms)

    def looked(self, ticket: Ticket, now_ms: float = 0.0, *, full: bool) -> None:
        """This one found no endpoint. The next one looks, unless it would find none either, because all are `full`."""
        queue = self._queues[ticket.service]
        queue.looking.discard(ticket)
        if full:
            queue.end()
        queue.hand_on(now_ms)

    def wake_all(self, now_ms: float = 0.0) -> None:
        """Names may have changed: every request looks, in order."""
        for queue in self._queues.values():
            queue.full, queue.order = False, iter(())
            queue.late.clear()
            for ticket in list(queue.in_order(now_ms)):
                queue.looking.add(ticket)
                ticket.wake()
