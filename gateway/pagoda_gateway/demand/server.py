"""Serves `pagoda.v1.Demand/Watch`: what is known of all services, then what changed, at most every 100 ms, and a frame every 500 ms anyway.

Started by serve.py. Requests are told at once, replicas' states with the next 500 ms: they come twice a second from each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_DEMAND, GRPC_WATCH_DEMAND, STATE_FLOOR_MS, STATE_HEARTBEAT_MS
from pagoda_contracts.pb.demand_pb2 import Demand, ServiceDemand, WatchDemandRequest

from pagoda_gateway.demand.callers import Callers, NotLetIn
from pagoda_gateway.demand.service_demand import Facts, Line, describe
from pagoda_gateway.requests.hold_queue import Hold
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.watch.fleet import Fleet

log = structlog.get_logger()

# Operators and other gateways: a handful. A stranger's calls must not crowd them out of memory.
_MAX_CALLS: Final = 64
_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
]


class Board:
    """What was last told of each service, and in which round it became so."""

    def __init__(self, fleet: Fleet, hold: Hold, tally: Tally, clock_ms: Callable[[], float]) -> None:
        self._fleet, self._hold, self._tally, self._clock_ms = fleet, hold, tally, clock_ms
        self._told: dict[str, tuple[int, ServiceDemand]] = {}
        self._dirty: set[str] = set()
        self._round = 0
        self._whole = 0  # the round in which a service went: increments cannot say so
        self._looked_ms = float("-inf")
        self._watchers: set[asyncio.Event] = set()

    def changed(self, service: str) -> None:
        """Requests of this service came, were held or ended: watchers are told soon."""
        if self._watchers:
            self._dirty.add(service)
            for watcher in self._watchers:
                watcher.set()

    def watch(self) -> asyncio.Event:
        """Set whenever there is something to tell soon; to be given back to `unwatch`."""
        event = asyncio.Event()
        self._watchers.add(event)
        return event

    def unwatch(self, event: asyncio.Event) -> None:
        """Nobody waits for it any more."""
        self._watchers.discard(event)

    def since(self, seen: int) -> tuple[int, bool, list[ServiceDemand]]:
        """The round now, whether it is everything, and what is new since the round `seen` (-1: everything)."""
        self._look()
        full = seen < self._whole
        return self._round, full, [told for number, told in self._told.values() if full or number > seen]

    def _look(self) -> None:
        """All services twice a second, those with news in between."""
        now_ms = self._clock_ms()
        everything = now_ms - self._looked_ms >= STATE_HEARTBEAT_MS / 2
        services = {service.key: service for service in self._fleet.services()}
        self._round += 1
        for key in services if everything else self._dirty & services.keys():
            service = services[key]
            line = Line(self._hold.count(key), self._hold.oldest(key))
            told = describe(Facts(service, self._fleet.endpoints(service), line, self._tally.of(key)), now_ms)
            if key not in self._told or self._told[key][1] != told:
                self._told[key] = self._round, told
        self._dirty.clear()
        if everything:
            self._looked_ms = now_ms
            self._drop(self._told.keys() - services.keys())
            self._tally.keep(set(services))

    def _drop(self, gone: set[str]) -> None:
        for key in gone:
            del self._told[key]
            self._whole = self._round


class DemandServer:
    """The gRPC side."""

    def __init__(self, board: Board, identity: str, clock_ms: Callable[[], float], callers: Callers | None = None) -> None:
        self._board, self._identity, self._clock_ms, self._callers = board, identity, clock_ms, callers
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)

    async def start(self, address: str) -> int:
        """The port; RuntimeError where it is taken."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch, request_deserializer=WatchDemandRequest.FromString, response_serializer=Demand.SerializeToString
        )
        name = GRPC_WATCH_DEMAND.rpartition("/")[2]
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DEMAND, {name: method}),))
        port: int = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def close(self) -> None:
        """Ends all streams: whoever watches sees at once that this gateway is gone."""
        await self._server.stop(None)

    async def _let_in(self, context: Any) -> None:
        """Ends the call of whoever is not to know; without `callers` everybody is."""
        if self._callers is None:
            return
        try:
            self._callers.role(context.invocation_metadata() or ())
        except NotLetIn as error:
            log.warning("demand is not for this caller", why=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED if error.known else grpc.StatusCode.UNAUTHENTICATED, str(error))

    async def _watch(self, request: WatchDemandRequest, context: Any) -> AsyncIterator[Demand]:
        await self._let_in(context)
        log.info("demand is watched", watcher=request.watcher[:128])
        wanted, soon = set(request.services), self._board.watch()
        sequence, seen = 0, -1
        try:
            while True:
                soon.clear()
                seen, full, told = self._board.since(seen)
                chosen = [one for one in told if not wanted or f"{one.namespace}/{one.name}" in wanted]
                sequence += 1
                yield Demand(
                    gateway=self._identity, sequence=sequence, sent_at_ms=int(self._clock_ms()), full=full, services=chosen, peers=1
                )
                await asyncio.sleep(STATE_FLOOR_MS / 1000)
                await _set_within(soon, (STATE_HEARTBEAT_MS - STATE_FLOOR_MS) / 1000)
        finally:
            self._board.unwatch(soon)
            log.info("demand is no longer watched", watcher=request.watcher[:128])


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
