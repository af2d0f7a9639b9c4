"""Listens to every gateway: one stream to each address, whose frames it gives to `signals`. Started by process.py.

Names are resolved by DNS (the chart's headless Service has one address per gateway), which needs no right on the API server. It decides
nothing: `signals` judges silence.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog
from pagoda_contracts.names import GRPC_WATCH_DEMAND, STATE_DEAD_MS
from pagoda_contracts.pb.demand_pb2 import Demand, QuotaReport, WatchDemandRequest
from pagoda_kube.streams import OnePerAddress, Stream, read_forever

from pagoda_operator.client.daemons import OwnToken
from pagoda_operator.client.signals import Signals

log = structlog.get_logger()

_TICK_S: Final = 1.0
# Twice as long as a gateway may be silent: the connection itself then counts as dead.
_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000


class QuotaSink(Protocol):
    """Takes what gateways report of quotas."""

    def hear(self, gateway: str, report: QuotaReport) -> None: ...
    def forget(self, gateway: str) -> None: ...


class Listener:
    """One task per gateway."""

    def __init__(
        self, gateways: tuple[str, ...], signals: Signals, identity: str, own: OwnToken | None = None, quotas: QuotaSink | None = None
    ) -> None:
        self._signals, self._own, self._quotas = signals, own, quotas
        self._request = WatchDemandRequest(watcher=f"operator/{identity}")
        self._streams = OnePerAddress(gateways, self._listen, self._forget)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._tick())
            both.create_task(self._streams.run())

    async def _tick(self) -> None:
        while True:
            self._signals.tick()
            await asyncio.sleep(_TICK_S)

    def _forget(self, address: str) -> None:
        self._signals.forget(address)
        if self._quotas is not None:
            self._quotas.forget(address)
        log.info("gateway_gone", gateway=address)

    async def _listen(self, address: str) -> None:
        self._signals.follow(address)
        stream = Stream(address, GRPC_WATCH_DEMAND, self._request, Demand.FromString, self._metadata, _REDIAL_S)
        await read_forever(
            stream,
            lambda frame: self._hear(address, frame),
            lambda why: log.info("demand_stream_broke", gateway=address, why=why),
        )

    def _hear(self, address: str, frame: Demand) -> None:
        self._signals.hear(address, frame)
        if self._quotas is not None and frame.HasField("quotas"):
            self._quotas.hear(address, frame.quotas)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return self._own.metadata() if self._own is not None else ()
