"""Serves `pagoda.v1.Demand/Watch`: the demand of all services, then what changed, at most every 100 ms, and a frame every 500 ms anyway.

Started by serve/process.py. With `keda` it also answers KEDA (keda.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_DEMAND, GRPC_WATCH_DEMAND, STATE_FLOOR_MS, STATE_HEARTBEAT_MS
from pagoda_contracts.pb.demand_pb2 import Demand, WatchDemandRequest

from pagoda_gateway.demand.admission import Admission
from pagoda_gateway.demand.callers import Callers
from pagoda_gateway.demand.keda import ExternalScaler
from pagoda_gateway.demand.messages import DemandMessages
from pagoda_gateway.demand.quota_reports import QuotaReports
from pagoda_gateway.limits.ledger import WindowCount

log = structlog.get_logger()

_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second listener
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
]


class DemandServer:
    """The gRPC server."""

    def __init__(
        self,
        messages: DemandMessages,
        identity: str,
        clock_ms: Callable[[], float],
        callers: Callers | None = None,
        keda: ExternalScaler | None = None,
        quotas: Callable[[], list[WindowCount]] = list,
    ) -> None:
        self._quotas = quotas
        self._messages, self._identity, self._clock_ms, self._keda = messages, identity, clock_ms, keda
        self._server = grpc.aio.server(interceptors=[Admission(callers)], options=_OPTIONS)

    async def start(self, address: str) -> int:
        """Starts the server and returns its port; RuntimeError if the port is taken."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch, request_deserializer=WatchDemandRequest.FromString, response_serializer=Demand.SerializeToString
        )
        name = GRPC_WATCH_DEMAND.rpartition("/")[2]
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DEMAND, {name: method}),))
        if self._keda is not None:
            self._server.add_generic_rpc_handlers((self._keda.handler(),))
        port: int = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def close(self) -> None:
        """Ends all streams, so that watchers see at once that this gateway is gone."""
        await self._server.stop(None)

    async def _watch(self, request: WatchDemandRequest, _context: Any) -> AsyncIterator[Demand]:
        log.info("a watch of the demand began", watcher=request.watcher[:128])
        wanted, soon = set(request.services), self._messages.watch()
        sequence, round_sent, reports = 0, -1, QuotaReports(self._quotas)
        try:
            while True:
                soon.clear()
                round_sent, full, changed = self._messages.since(round_sent)
                chosen = [one for one in changed if not wanted or f"{one.namespace}/{one.name}" in wanted]
                sequence += 1
                now_ms = int(self._clock_ms())
                frame = Demand(gateway=self._identity, sequence=sequence, sent_at_ms=now_ms, full=full, services=chosen, peers=1)
                if (report := reports.due(now_ms)) is not None:
                    frame.quotas.CopyFrom(report)
                yield frame
                await asyncio.sleep(STATE_FLOOR_MS / 1000)
                await self._messages.changed_within(soon, (STATE_HEARTBEAT_MS - STATE_FLOOR_MS) / 1000)
        finally:
            self._messages.unwatch(soon)
            log.info("a watch of the demand ended", watcher=request.watcher[:128])
