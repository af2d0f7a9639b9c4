"""A gateway's parts, connected as its process connects them, without discovery and listeners. Time stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.limits.registry import Registry
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.handlers import Api
from pagoda_gateway.proxy.observe import Observe
from pagoda_gateway.proxy.overflow import Overflow as OverflowTargets
from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.budget import Budget
from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.requests.in_flight import InFlight
from pagoda_gateway.requests.lifecycle import Counters
from pagoda_gateway.requests.limiter import Limiter, LocalStore
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.recent import Recent
from pagoda_gateway.requests.router import Router
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.requests.terms import HoldRules
from pagoda_gateway.requests.usage import Usage
from pagoda_gateway.routing.endpoint import Frame
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Replica, Service

SERVICE = "ns/s"


class GatewayHarness:
    """`changed` is set when the demand of a service changed."""

    def __init__(self, hold_timeout_s: float = 3600.0, hold_limit: int = 10, budget: int = 1 << 24, ping_s: float = 3600.0) -> None:
        self.now_ms = 5_000.0
        self.cache, self.queue, self.tally = EndpointCache(), HoldQueue(hold_limit), Tally()
        self.metrics = Metrics(self.cache, self.queue, self.clock_ms)
        self.ring = KeyRing()
        self.authenticate = Authenticate(self.ring, self.metrics, lambda: datetime(2026, 1, 1, tzinfo=UTC), anonymous=True)
        self.registry = Registry(self.ring, None)
        self.usage = Usage(self.metrics, None)
        self.observe = Observe(self.clock_ms, self.metrics)
        self.budget = Budget(budget)
        self.counters = Counters(self.cache, self.queue, self.metrics, self.tally, self.budget, self.clock_ms)
        self.counters.demand_changed = lambda _service: self.changed.set()
        self.router, self.in_flight = Router(self.counters, HoldRules(hold_timeout_s, ping_s), lambda: self.now_ms), InFlight(self.counters)
        self.limiter = Limiter(self.registry, LocalStore(1, lambda: round(self.now_ms)), self.metrics.over_quota, self.router.names)
        self.cache.on_state_change, self.cache.on_names_change = self.router.state_changed, self.router.names_changed
        self.changed = asyncio.Event()
        self.sequence = 0

    def clock_ms(self) -> float:
        return self.now_ms

    def synced(self) -> None:
        """Discovery has listed everything."""
        self.cache.mark_synced("services")
        self.cache.mark_synced("replicas")

    def service(self, key: str = SERVICE, model: str = "m", created: str = "2026-01-01T00:00:00Z", **fields: Any) -> None:
        self.cache.put_service(Service(key, "", created, (model,), **fields))

    def frame(
        self, phase: str = "ready", name: str = "ns/a", service: str = SERVICE, address: str = "", running: int = 0, rows: int = 0
    ) -> None:
        """A replica's frame, made now. The replica is added if it is new."""
        self.cache.put_replica(Replica(name, service, "", address or f"{name}:8000", "", draining=False))
        self.sequence += 1
        frame = Frame(self.sequence, phase, running, 0, 0, max_concurrency=rows)
        self.cache.update_state(name, frame, self.now_ms, self.now_ms)

    def api(
        self, upstream: Upstream, limits: Limits, authenticate: Authenticate | None = None, overflow: OverflowTargets | None = None
    ) -> Api:
        """Its routes."""
        parts = (authenticate or self.authenticate, self.observe, self.limiter, self.usage, Recent(self.clock_ms), overflow)
        return Api(self.cache, self.in_flight, self.router, upstream, limits, *parts)

    @asynccontextmanager
    async def serving(self, authenticate: Authenticate | None = None) -> AsyncIterator[int]:
        """Its API over HTTP, at this port."""
        async with AsyncExitStack() as stack:
            upstream = Upstream(300.0)
            stack.push_async_callback(upstream.close)
            runner = web.AppRunner(self.api(upstream, Limits(1 << 20, 300), authenticate).application(), handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield runner.addresses[0][1]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when that is so. Each request that comes, is held or ends changes the demand."""
        async with asyncio.timeout(300):
            while not holds():
                self.changed.clear()
                await self.changed.wait()
