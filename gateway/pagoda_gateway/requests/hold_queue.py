"""Requests accepted while no endpoint can take them: a bounded line per service, woken by events, never by polling.

A ticket keeps its place until its request leaves, however often it is woken for nothing. Called by route.py.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from pagoda_gateway.requests.errors import QueueFull

UNSYNCED = ""
"""The line of those who wait for the gateway's first look at the cluster."""


class Ticket:
    """One held request's place in the line of `service`."""

    __slots__ = ("_woken", "service", "since_ms")

    def __init__(self, service: str, since_ms: float) -> None:
        self.service, self.since_ms = service, since_ms
        self._woken = asyncio.Event()

    @property
    def woken(self) -> bool:
        """Is there a wake-up it has not seen yet?"""
        return self._woken.is_set()

    def wake(self) -> None:
        """Something changed: look again."""
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Returns at the next wake-up, at once if one came already; TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            await self._woken.wait()
        self._woken.clear()


class Hold:
    """All lines; `limit` bounds their sum."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: defaultdict[str, dict[Ticket, None]] = defaultdict(dict)
        self._total = 0

    @property
    def total(self) -> int:
        """Requests held now."""
        return self._total

    def count(self, service: str) -> int:
        """Requests held now for this service."""
        return len(self._lines.get(service, ()))

    def oldest(self, service: str) -> float | None:
        """Since when the one who waits longest does, by the clock that `enter` was given; None where nobody waits."""
        return min((ticket.since_ms for ticket in self._lines.get(service, ())), default=None)

    def services(self) -> list[str]:
        """Lines that are not empty."""
        return list(self._lines)

    def enter(self, service: str, now_ms: float = 0.0) -> Ticket:
        """A place at the end of the line; QueueFull at the limit."""
        if self._total >= self._limit:
            raise QueueFull(f"{self._total} requests are held already (limit {self._limit}) while no replica is ready")
        ticket = Ticket(service, now_ms)
        self._lines[service][ticket] = None
        self._total += 1
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Frees the place: served, given up or disconnected."""
        line = self._lines[ticket.service]
        del line[ticket]
        self._total -= 1
        if not line:
            del self._lines[ticket.service]

    def move(self, ticket: Ticket, service: str) -> Ticket:
        """To the end of another line: the name it asks for has moved. Never refused: it was let in already."""
        self.leave(ticket)
        moved = Ticket(service, ticket.since_ms)
        self._lines[service][moved] = None
        self._total += 1
        return moved

    def wake(self, service: str) -> None:
        """Wakes a line from its head: whoever came first looks first."""
        for ticket in self._lines.get(service, ()):
            ticket.wake()

    def wake_all(self) -> None:
        """Wakes every line: who answers to a name may have changed."""
        for service in list(self._lines):
            self.wake(service)
