"""`serve`: probes and gRPC at once, the service's model first, then whatever the daemon asks for, until SIGTERM.

Ends with what keeps the model from coming: `__main__` writes it where the operator reads it, and the kubelet starts the container anew.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

import structlog

from pagoda_fetch.download.job import Order
from pagoda_fetch.serve import probes
from pagoda_fetch.serve.probes import BEAT, Vitals
from pagoda_fetch.serve.service import Fetches, listen
from pagoda_fetch.serve.settings import Settings
from pagoda_fetch.volume.lock import myself
from pagoda_fetch.volume.store import Store, disk_error, point

log = structlog.get_logger()
_LOG_EVERY = 10.0


async def run(settings: Settings) -> None:
    """Until SIGTERM; raises FetchError where the service's own model cannot be had."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    vitals = Vitals()
    http = probes.serve(vitals, settings.probes)
    fetches = Fetches(Store(settings.root, settings.limits.reserve), settings.around, myself(settings.pod))
    server, port = await listen(fetches, settings.port)
    log.info("listening", grpc=port, probes=http.server_port)
    beat = asyncio.create_task(_beat(vitals))
    try:
        await _until(stopped, settings, fetches, vitals)
    finally:
        beat.cancel()
        await fetches.stop()
        await server.stop(1.0)
        http.shutdown()
        http.server_close()


async def _until(stopped: asyncio.Event, settings: Settings, fetches: Fetches, vitals: Vitals) -> None:
    stop = asyncio.create_task(stopped.wait())
    own = asyncio.create_task(_own_model(settings, fetches, vitals))
    await asyncio.wait({stop, own}, return_when=asyncio.FIRST_COMPLETED)
    if own.done():
        own.result()
        await stop
    else:
        own.cancel()
        with suppress(asyncio.CancelledError):
            await own
    stop.cancel()


async def _own_model(settings: Settings, fetches: Fetches, vitals: Vitals) -> None:
    if settings.order is not None:
        await _bring(settings, settings.order, fetches, vitals)
    vitals.complete = True


async def _bring(settings: Settings, order: Order, fetches: Fetches, vitals: Vitals) -> None:
    clock, size_text = asyncio.get_running_loop().time, 0.0
    async for progress in fetches.watch(order):
        vitals.progress = progress
        if clock() - size_text >= _LOG_EVERY:
            size_text = clock()
            log.info(progress.phase, uri=order.address.uri, done=progress.done, total=progress.total)
    log.info("complete", uri=order.address.uri, digest=vitals.progress.digest, bytes=vitals.progress.total)
    if settings.link is not None:
        try:
            point(settings.link, settings.root / vitals.progress.path)
        except OSError as error:
            raise disk_error(error, settings.link) from None


async def _beat(vitals: Vitals) -> None:
    while True:
        vitals.beat()
        await asyncio.sleep(BEAT)
