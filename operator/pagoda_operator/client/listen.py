"""Listens to every gateway: resolves their addresses, keeps one stream to each, and gives its frames to `signals`. Started by process.py.

Names are resolved by DNS (the chart's headless Service has one address per gateway), which needs no right on the API server. It decides
nothing: `signals` judges silence.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from typing import Final

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_WATCH_DEMAND, STATE_DEAD_MS
from pagoda_contracts.pb.demand_pb2 import Demand, WatchDemandRequest

from pagoda_operator.client.daemons import OwnToken
from pagoda_operator.client.signals import Signals

log = structlog.get_logger()

# A new gateway is found after this long at the latest; CoreDNS keeps an answer for 5 s.
_RESOLVE_S: Final = 2.0
_TICK_S: Final = 1.0
# Twice as long as a gateway may be silent: the connection itself then counts as dead.
_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000
_BACKOFF_S: Final = (0.05, 2.0)
_CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),  # a full frame of 5,000 replicas has 0.5 MB
]


class Listener:
    """One task per gateway."""

    def __init__(self, gateways: tuple[str, ...], signals: Signals, identity: str, own: OwnToken | None = None) -> None:
        self._gateways, self._signals, self._own = gateways, signals, own
        self._request = WatchDemandRequest(watcher=f"operator/{identity}")
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._tick())
                both.create_task(self._follow())
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            self._signals.tick()
            await asyncio.sleep(_TICK_S)

    async def _follow(self) -> None:
        while True:
            try:
                found = await resolve(self._gateways)
            except OSError as error:
                log.info("gateways_unresolved", gateways=self._gateways, error=str(error))
            else:
                self._sync_streams(found)
            await asyncio.sleep(_RESOLVE_S)

    def _sync_streams(self, found: set[str]) -> None:
        for address in self._tasks.keys() - found:
            self._tasks.pop(address).cancel()
            self._signals.forget(address)
            log.info("gateway_gone", gateway=address)
        for address in found - self._tasks.keys():
            self._signals.follow(address)
            self._tasks[address] = asyncio.create_task(self._listen(address), name=f"demand {address}")

    async def _listen(self, address: str) -> None:
        pause = _BACKOFF_S[0]
        async with grpc.aio.insecure_channel(address, options=_CHANNEL) as channel:
            watch = channel.unary_stream(
                GRPC_WATCH_DEMAND, request_serializer=WatchDemandRequest.SerializeToString, response_deserializer=Demand.FromString
            )
            while True:
                metadata = self._own.metadata() if self._own is not None else ()
                try:
                    async for frame in _until_silent(watch(self._request, wait_for_ready=True, metadata=metadata)):
                        self._signals.hear(address, frame)
                        pause = _BACKOFF_S[0]
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    log.info("demand_stream_broke", gateway=address, why=_reason(error))
                except Exception:  # a bug of ours; without this the task would end unnoticed, and the gateway's reports with it
                    log.exception("demand_stream_bug", gateway=address)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause = min(2 * pause, _BACKOFF_S[1])


async def resolve(names: tuple[str, ...]) -> set[str]:
    """Every address of every host:port. A name may have none: no gateway runs."""
    found: set[str] = set()
    for name in names:
        host, _, port = name.rpartition(":")
        try:
            answers = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA):
                raise
            continue
        found |= {f"[{address[0]}]:{port}" if ":" in str(address[0]) else f"{address[0]}:{port}" for *_, address in answers}
    return found


async def _until_silent(call: grpc.aio.UnaryStreamCall[WatchDemandRequest, Demand]) -> AsyncIterator[Demand]:
    """Frames as they come; TimeoutError after too long a silence. The call is cancelled in every case."""
    try:
        while True:
            async with asyncio.timeout(_REDIAL_S):
                frame = await call.read()
            if frame is grpc.aio.EOF:
                return
            yield frame
    finally:
        call.cancel()


def _reason(error: grpc.aio.AioRpcError | TimeoutError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else f"silent for {_REDIAL_S:g} s"
