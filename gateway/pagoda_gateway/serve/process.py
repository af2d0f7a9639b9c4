"""Builds the gateway's parts, runs them, and leaves so that nothing is lost. Called by __main__; holds no logic of requests.

SIGTERM: unready at once; for `grace` new connections are still taken while endpoints propagate, and clients are told to close theirs;
then the listener closes, running requests finish within `drain-timeout`, exit 0.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

import structlog
import uvloop
from aiohttp import web

from pagoda_gateway.demand.callers import callers_of
from pagoda_gateway.demand.server import Board, DemandServer
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.handlers import Api, metrics_application
from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.hold_queue import Hold
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.router import Router
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.serve.probes import Health, Probes
from pagoda_gateway.serve.settings import Settings
from pagoda_gateway.watch.fleet import Fleet
from pagoda_gateway.watch.own_token import OwnToken
from pagoda_gateway.watch.state_streams import Streams
from pagoda_gateway.watch.static_file import FleetFile

log = structlog.get_logger()

_TURN_S: Final = 1.0
# After the requests are finished only their last bytes are to be written.
_FLUSH_S: Final = 5.0


def main(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        parts = await _build(settings, stack)
        async with asyncio.TaskGroup() as background:  # one that fails ends the process: restart is the recovery
            tasks = [background.create_task(work) for work in (_discover(parts.fleet, settings), _turn(parts.health))]
            await stop.wait()
            await _leave(parts, settings)
            for task in tasks:
                task.cancel()


class Parts(NamedTuple):
    """What the process is made of, as far as `_run` needs it."""

    fleet: Fleet
    api: Api
    runner: web.AppRunner
    health: Health


async def _build(settings: Settings, stack: AsyncExitStack) -> Parts:
    """Everything wired and listening; the stack closes it in reverse."""
    fleet, hold = Fleet(), Hold(settings.hold_limit)
    metrics, tally = Metrics(fleet, hold, _clock_ms), Tally(_clock_ms())
    router = Router(fleet, hold, metrics, settings.hold_timeout, _clock_ms, tally)
    board = Board(fleet, hold, tally, _clock_ms)
    own = OwnToken(settings.token) if settings.token is not None else None
    streams = Streams(fleet, settings.identity, _clock_ms, own)
    stack.push_async_callback(streams.close)
    fleet.on_state, fleet.on_names = router.state_changed, router.names_changed
    router.demand_changed = board.changed
    fleet.on_join, fleet.on_part = streams.follow, streams.forget
    upstream = Upstream(settings.connect_timeout, own)
    stack.push_async_callback(upstream.close)
    limits = Limits(settings.body_limit, settings.body_timeout, settings.body_budget)
    api = Api(fleet, router, upstream, metrics, limits)
    health = Health(lambda: fleet.synced and not api.stopping)
    probes = Probes(health, settings.host, settings.probes_port)
    stack.callback(probes.close)
    scraped = await stack.enter_async_context(_listening(metrics_application(metrics), settings.host, settings.metrics_port))
    demand = DemandServer(board, settings.identity, _clock_ms, callers_of(settings))
    stack.push_async_callback(demand.close)
    watched = await demand.start(f"{settings.host}:{settings.demand_port}")
    runner = await stack.enter_async_context(_listening(api.application(), settings.host, settings.http_port))
    log.info("listening", http=runner.addresses[0][1], metrics=scraped.addresses[0][1], probes=probes.port, demand=watched)
    return Parts(fleet, api, runner, health)


def _clock_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


@asynccontextmanager
async def _listening(app: web.Application, host: str, port: int) -> AsyncIterator[web.AppRunner]:
    """Cancels a request's work when its client leaves; takes bodies as they are."""
    runner = web.AppRunner(app, access_log=None, auto_decompress=False, handler_cancellation=True, shutdown_timeout=_FLUSH_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
        yield runner
    finally:
        await runner.cleanup()


async def _discover(fleet: Fleet, settings: Settings) -> None:
    if settings.fleet is not None:
        await FleetFile(fleet, settings.fleet).run()
        return
    from pagoda_gateway.watch.cluster import watch  # 60 MB of client that a static fleet does not need

    await watch(fleet, settings.kubeconfig)


async def _turn(health: Health) -> None:
    while True:
        health.turn()
        await asyncio.sleep(_TURN_S)


async def _leave(parts: Parts, settings: Settings) -> None:
    parts.api.stopping = True
    log.info("leaving", grace_s=settings.grace, under_way=parts.api.under_way)
    await asyncio.sleep(settings.grace)
    for site in list(parts.runner.sites):
        await site.stop()
    await parts.api.finish(settings.drain_timeout)
    log.info("left")
