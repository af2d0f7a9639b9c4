"""DemandMessages: the current ServiceDemand of all services, computed once for all watchers. Called by server.py.

Requests change a service's message at once. Replicas' states come twice a second from each replica, so they wait for the next 500 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from pagoda_contracts.names import STATE_HEARTBEAT_MS
from pagoda_contracts.pb.demand_pb2 import ServiceDemand

from pagoda_gateway.demand.service_demand import Facts, Held, service_demand
from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.watch.cache import EndpointCache


class DemandMessages:
    """The last message of each service, and in which round it changed last. Rounds are what `since` counts."""

    def __init__(self, cache: EndpointCache, queue: HoldQueue, tally: Tally, clock_ms: Callable[[], float]) -> None:
        self._cache, self._queue, self._tally, self._clock_ms = cache, queue, tally, clock_ms
        self._messages: dict[str, tuple[int, ServiceDemand]] = {}
        self._changed: set[str] = set()
        self._round = 0
        self._deleted_round = 0  # the round in which a service was deleted last, which increments cannot express
        self._updated_ms = float("-inf")
        self._watchers: set[asyncio.Event] = set()

    def changed(self, service: str) -> None:
        """Requests of this service came, were held or ended. Wakes the watchers."""
        if self._watchers:
            self._changed.add(service)
            for watcher in self._watchers:
                watcher.set()

    def watch(self) -> asyncio.Event:
        """Returns an event that is set when something changed. The caller clears it, and ends with `unwatch`."""
        event = asyncio.Event()
        self._watchers.add(event)
        return event

    async def changed_within(self, event: asyncio.Event, seconds: float) -> None:
        """Returns when the event is set, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    def unwatch(self, event: asyncio.Event) -> None:
        """Ends a watch."""
        self._watchers.discard(event)

    def since(self, sent: int) -> tuple[int, bool, list[ServiceDemand]]:
        """Returns the current round, whether the list is complete, and the messages that changed after round `sent` (-1: all)."""
        self._update()
        full = sent < self._deleted_round
        return self._round, full, [message for number, message in self._messages.values() if full or number > sent]

    def of(self, service: str) -> ServiceDemand | None:
        """Returns the current message of one service ("namespace/name"), None if there is no such service."""
        self._update()
        number_and_message = self._messages.get(service)
        return number_and_message[1] if number_and_message is not None else None

    @property
    def complete(self) -> bool:
        """Whether all services are known. Before that, a missing one may exist."""
        return self._cache.synced

    def _update(self) -> None:
        """Computes the messages: of all services twice a second, and in between of those whose requests changed."""
        now_ms = self._clock_ms()
        everything = now_ms - self._updated_ms >= STATE_HEARTBEAT_MS / 2
        services = {service.key: service for service in self._cache.services()}
        self._round += 1
        for key in services if everything else self._changed & services.keys():
            service = services[key]
            held = Held(self._queue.count(key), self._queue.oldest(key))
            message = service_demand(Facts(service, self._cache.endpoints(service), held, self._tally.of(key)), now_ms)
            if key not in self._messages or self._messages[key][1] != message:
                self._messages[key] = self._round, message
        self._changed.clear()
        if everything:
            self._updated_ms = now_ms
            self._delete(self._messages.keys() - services.keys())
            self._tally.keep(set(services))

    def _delete(self, gone: set[str]) -> None:
        for key in gone:
            del self._messages[key]
            self._deleted_round = self._round
