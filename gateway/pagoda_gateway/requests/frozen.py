"""Frozen: takes requests back from replicas that do not answer and do not close their connections either. Used by router.py.

A process that is stopped keeps its sockets: what waits for it would wait until it is killed. Its state falls silent, though, and after
3 s it is judged to take no request (routing/verdict.py). Then those that it has are taken back as well, if another replica can take them
and nothing has come for them in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from pagoda_contracts.names import STATE_DEAD_MS

from pagoda_gateway.requests.errors import Died
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.pick import any_routable
from pagoda_gateway.routing.verdict import Verdict, judge
from pagoda_gateway.watch.cache import EndpointCache

_EVERY_MS: Final = 250
# A gateway that was stopped itself finds old frames and late answers: it reads on before it judges.
_LATE_MS: Final = 2 * _EVERY_MS
_FROZEN: Final = (Verdict.SILENT, Verdict.STUCK)


class Heard(Protocol):
    """A request under way: its service, when its replica was last heard of, and whether it can be answered by this one alone."""

    service: str
    heard_ms: float
    fixed: bool


class Frozen:
    """Requests under way, by the endpoint that has them."""

    def __init__(self, cache: EndpointCache, clock_ms: Callable[[], float]) -> None:
        self._cache, self._clock_ms = cache, clock_ms
        self._waiting: dict[int, tuple[Endpoint, dict[asyncio.Timeout, Heard]]] = {}
        self._looked_ms: float | None = None

    @asynccontextmanager
    async def watch(self, endpoint: Endpoint, life: Heard) -> AsyncIterator[None]:
        """One request at an endpoint; Died if it is taken back."""
        patience = asyncio.timeout(None)
        _, here = self._waiting.setdefault(id(endpoint), (endpoint, {}))
        here[patience] = life
        try:
            async with patience:
                yield
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise Died("frozen", "the replica is silent, and so is its answer") from error
        finally:
            here.pop(patience, None)
            if not here:
                self._waiting.pop(id(endpoint), None)

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            await asyncio.sleep(_EVERY_MS / 1000)
            self.look()

    def look(self) -> None:
        """Takes back what waits on frozen replicas. Does nothing if it comes late."""
        now_ms, before_ms = self._clock_ms(), self._looked_ms
        self._looked_ms = now_ms
        if before_ms is None or now_ms - before_ms > _LATE_MS:
            return
        for endpoint, here in list(self._waiting.values()):
            if judge(endpoint, now_ms) not in _FROZEN:
                continue
            for patience, life in list(here.items()):
                silent = now_ms - life.heard_ms > STATE_DEAD_MS and not life.fixed
                if silent and self._elsewhere(endpoint, life.service, now_ms):
                    del here[patience]  # it ends in a later turn of the loop, perhaps after the next look
                    patience.reschedule(asyncio.get_running_loop().time())

    def _elsewhere(self, frozen: Endpoint, service: str, now_ms: float) -> bool:
        """Returns whether another replica can take its requests. What discovery has dropped is not frozen: it drains or is gone."""
        known = self._cache.service(service)
        endpoints = self._cache.endpoints(known) if known else []
        if not any(endpoint is frozen for endpoint in endpoints):
            return False
        return any_routable([endpoint for endpoint in endpoints if endpoint is not frozen], now_ms)
