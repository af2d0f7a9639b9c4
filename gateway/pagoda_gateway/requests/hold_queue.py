"""HoldQueue: requests that were accepted while no endpoint can take them. A bounded queue per service, woken by events, never by polling.

A ticket keeps its place until its request leaves, however often it is woken in vain. Called by lifecycle.py and router.py.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from pagoda_gateway.requests.errors import QueueFull

UNSYNCED: Final = ""
"""The queue of requests that wait until the gateway has listed the cluster's services and replicas."""


class Ticket:
    """One held request's place in the queue of `service`."""

    __slots__ = ("_woken", "service", "since_ms")

    def __init__(self, service: str, since_ms: float) -> None:
        self.service, self.since_ms = service, since_ms
        self._woken = asyncio.Event()

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


class HoldQueue:
    """The queues of all services; `limit` bounds their sum."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: defaultdict[str, dict[Ticket, None]] = defaultdict(dict)
        self._total = 0

    @property
    def total(self) -> int:
        """Requests held now."""
        return self._total

    def count(self, service: str) -> int:
        """Returns how many requests are held for this service."""
        return len(self._queues.get(service, ()))

    def oldest(self, service: str) -> float | None:
        """Returns since when the oldest request is held, by the clock that `enter` was given; None if none is."""
        return min((ticket.since_ms for ticket in self._queues.get(service, ())), default=None)

    def enter(self, service: str, now_ms: float = 0.0) -> Ticket:
        """Takes a place at the end of the queue; QueueFull at the limit."""
        if self._total >= self._limit:
            raise QueueFull(f"no replica is ready and {self._total} requests are already held, which is the limit ({self._limit})")
        ticket = Ticket(service, now_ms)
        self._queues[service][ticket] = None
        self._total += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Frees the place."""
        queue = self._queues[ticket.service]
        del queue[ticket]
        self._total -= 1
        if not queue:
            del self._queues[ticket.service]

    def move(self, ticket: Ticket, service: str) -> Ticket:
        """Returns a place at the end of another queue, because the name now belongs to that service. Never refused: the request was
        accepted already."""
        self.leave(ticket)
        moved = Ticket(service, ticket.since_ms)
        self._queues[service][moved] = None
        self._total += 1
        return moved

    def wake(self, service: str) -> None:
        """Wakes a queue from its head, so that the oldest request looks first."""
        for ticket in self._queues.get(service, ()):
            ticket.wake()

    def wake_all(self) -> None:
        """Wakes every queue, because names may have changed."""
        for service in list(self._queues):
            self.wake(service)
