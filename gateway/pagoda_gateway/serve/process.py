"""Builds the gateway's parts, runs them, and stops so that nothing is lost. Called by __main__; holds no logic of requests.

After SIGTERM the gateway is unready at once. For `lame-duck` it still takes new connections while its endpoint is removed, and
answers `connection: close`; a second signal ends this time. Then the listener closes, running requests finish within `drain-timeout`, and
the process exits with 0.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import uuid4

import structlog
import uvloop
from aiohttp import web
from pagoda_kube.api import allow_deep_objects

from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.demand.callers import callers_of
from pagoda_gateway.demand.keda import ExternalScaler
from pagoda_gateway.demand.messages import DemandMessages
from pagoda_gateway.demand.peers import Peers
from pagoda_gateway.demand.server import DemandServer
from pagoda_gateway.limits.registry import Registry
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.proxy.handlers import Api, metrics_application
from pagoda_gateway.proxy.listener import Listener, default_bounds, listening
from pagoda_gateway.proxy.observe import Observe
from pagoda_gateway.proxy.overflow import Overflow
from pagoda_gateway.proxy.tracing import Tracing, tracing
from pagoda_gateway.proxy.upstream import Upstream
from pagoda_gateway.requests.budget import Budget
from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.requests.in_flight import InFlight
from pagoda_gateway.requests.lifecycle import Counters
from pagoda_gateway.requests.limiter import Limiter, LocalStore, Store
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.outside import read_targets
from pagoda_gateway.requests.recent import Recent
from pagoda_gateway.requests.router import Router
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.requests.terms import HoldRules
from pagoda_gateway.requests.usage import Usage
from pagoda_gateway.serve.files import keys_of, quotas_of
from pagoda_gateway.serve.probes import Health, Probes
from pagoda_gateway.serve.settings import Settings
from pagoda_gateway.serve.tls import grpc_credentials, tls_context
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.own_token import OwnToken
from pagoda_gateway.watch.state_streams import StateStreams
from pagoda_gateway.watch.static_file import StaticFile

if TYPE_CHECKING:
    from pagoda_gateway.extproc.server import ExtProcServer

T = TypeVar("T")
log = structlog.get_logger()

_BEAT_S: Final = 1.0


def main(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    allow_deep_objects()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))


async def _run(settings: Settings) -> None:
    signals = Signals()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.came)
    async with AsyncExitStack() as stack:
        parts = await _build(settings, stack)
        async with asyncio.TaskGroup() as background:  # one that fails ends the process: a restart recovers
            work = (_discover(parts, settings), _beat(parts.health), parts.peers.run(), parts.store.run(), parts.api.router.frozen.run())
            tasks = [background.create_task(one) for one in work]
            await signals.stop.wait()
            await _drain(parts, settings, signals.hurry)
            for task in tasks:
                task.cancel()


class Signals:
    """SIGTERM and SIGINT: the first one begins the drain, the second one ends its lame duck."""

    def __init__(self) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()

    def came(self) -> None:
        """Counts a signal."""
        (self.hurry if self.stop.is_set() else self.stop).set()


class Parts(NamedTuple):
    """The parts of the process that `_run` needs."""

    cache: EndpointCache
    ring: KeyRing
    registry: Registry
    store: Store
    api: Api
    listener: Listener
    health: Health
    peers: Peers
    ext_proc: ExtProcServer | None


async def _build(settings: Settings, stack: AsyncExitStack) -> Parts:
    """Connects all parts and listens; the stack closes them in reverse order."""
    counters = _counters(settings)
    cache = counters.cache
    own = OwnToken(settings.token) if settings.token is not None else None
    ring = keys_of(settings)
    registry = quotas_of(settings, ring)
    router = _router(counters, settings)
    _read_states(cache, StateStreams(cache, settings.identity, _clock_ms, own), stack)
    upstream = Upstream(settings.connect_timeout, own)
    stack.push_async_callback(upstream.close)
    limits = Limits(settings.body_limit, settings.body_timeout)
    authenticate = Authenticate(ring, counters.metrics, _utc, settings.anonymous)
    store = _store(counters, settings, stack)
    limiter = Limiter(registry, store, counters.metrics.over_quota, router.names)
    usage = Usage(counters.metrics, log.info if settings.usage_lines else None)
    observe = Observe(_clock_ms, counters.metrics, settings.access_log, _tracing(settings, stack))
    answers = (usage, Recent(_clock_ms), _overflow(settings, stack))
    api = Api(cache, InFlight(counters), router, upstream, limits, authenticate, observe, limiter, *answers)
    health = Health(lambda: cache.synced and ring.synced and registry.synced and not api.stopping)
    probes = Probes(health, settings.host, settings.probes_port)
    stack.callback(probes.close)
    metrics = await stack.enter_async_context(_scraped(metrics_application(counters.metrics), settings.host, settings.metrics_port))
    peers = Peers((settings.peers,) if settings.peers else (), settings.identity, _clock_ms, own)
    ext_proc, ext_proc_port = await _serve_ext_proc(api, health, own, settings, stack)
    demand = await _serve_demand(counters, settings, peers, store, stack)
    tls = _from_files(tls_context, settings)
    listener = await stack.enter_async_context(listening(api.application(), settings.host, settings.http_port, tls, default_bounds()))
    ports = {"metrics": metrics.addresses[0][1], "probes": probes.port, "demand": demand, "ext_proc": ext_proc_port}
    log.info("listening", http=listener.port, tls=tls is not None, **ports)
    return Parts(cache, ring, registry, store, api, listener, health, peers, ext_proc)


def _store(counters: Counters, settings: Settings, stack: AsyncExitStack) -> Store:
    """Quotas are counted in the common store, or here by this gateway's share."""
    local = LocalStore(settings.quota_gateways, _wall_ms)
    if settings.quota_store is None:
        return local
    from pagoda_gateway.requests.shared_store import SharedStore, connected  # 0.1 s of client that most installs do not need

    try:
        client = connected(settings.quota_store.read_text().strip())
    except (OSError, ValueError) as error:
        sys.exit(f"pagoda-gateway: quota-store: {error}")
    shared = SharedStore(client, local, f"{settings.identity}-{uuid4().hex[:8]}", counters.metrics.quota_store)
    stack.push_async_callback(shared.close)
    return shared


def _overflow(settings: Settings, stack: AsyncExitStack) -> Overflow | None:
    if settings.overflow_targets is None:
        return None
    try:
        made = Overflow(read_targets(settings.overflow_targets))
    except (OSError, ValueError) as error:
        sys.exit(f"pagoda-gateway: overflow-targets: {error}")
    stack.push_async_callback(made.close)
    return made


def _from_files(made: Callable[[Path, Path], T], settings: Settings) -> T | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        return made(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        sys.exit(f"pagoda-gateway: tls: {error}")


def _tracing(settings: Settings, stack: AsyncExitStack) -> Tracing | None:
    if settings.traces_endpoint is None:
        return None
    try:
        made = tracing(settings.traces_endpoint)
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-gateway: traces-endpoint: {missing.name} is missing; in a checkout: pip install '.[gateway,otel]'")
    stack.push_async_callback(made.close)
    return made


def _counters(settings: Settings) -> Counters:
    cache, queue = EndpointCache(settings.reserved_names), HoldQueue(settings.hold_limit)
    return Counters(cache, queue, Metrics(cache, queue, _clock_ms), Tally(_clock_ms()), Budget(settings.body_budget), _clock_ms)


def _router(counters: Counters, settings: Settings) -> Router:
    router = Router(counters, HoldRules(settings.hold_timeout, settings.hold_ping_after, settings.quota_gateways), _wall_ms)
    counters.cache.on_state_change, counters.cache.on_names_change = router.state_changed, router.names_changed
    return router


def _read_states(cache: EndpointCache, streams: StateStreams, stack: AsyncExitStack) -> None:
    stack.push_async_callback(streams.close)
    cache.on_replica_added, cache.on_replica_removed = streams.open, streams.end


async def _serve_demand(counters: Counters, settings: Settings, peers: Peers, store: Store, stack: AsyncExitStack) -> int:
    messages = DemandMessages(counters.cache, counters.queue, counters.tally, _clock_ms)
    counters.demand_changed = messages.changed
    peers.changed = messages.changed
    keda = ExternalScaler(messages, peers.held) if settings.keda else None
    server = DemandServer(messages, settings.identity, _clock_ms, callers_of(settings), keda, store.windows)
    stack.push_async_callback(server.close)
    return await server.start(f"{settings.host}:{settings.demand_port}")


async def _serve_ext_proc(
    api: Api, health: Health, own: OwnToken | None, settings: Settings, stack: AsyncExitStack
) -> tuple[ExtProcServer | None, int | None]:
    if settings.ext_proc_port is None:
        return None, None
    from pagoda_gateway.extproc.server import ExtProcServer  # most installs have no Envoy
    from pagoda_gateway.extproc.session import Picker

    requests = api.cache, api.in_flight, api.router, api.limits, api.authenticate, api.observe, api.limiter, api.usage
    server = ExtProcServer(Picker(*requests, own), settings.ext_proc_secret, health.ready)
    stack.push_async_callback(server.stop, 0)
    credentials = _from_files(grpc_credentials, settings) if settings.ext_proc_tls else None
    return server, await server.start(f"{settings.host}:{settings.ext_proc_port}", credentials)


def _utc() -> datetime:
    return datetime.now(UTC)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _clock_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


@asynccontextmanager
async def _scraped(app: web.Application, host: str, port: int) -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner
    finally:
        await runner.cleanup()


async def _discover(parts: Parts, settings: Settings) -> None:
    if settings.fleet is not None:
        await StaticFile(parts.cache, settings.fleet).run()
        return
    from pagoda_gateway.watch.cluster import watch  # 60 MB of client that a static file does not need

    keys = (settings.keys_namespace, parts.ring) if settings.keys_namespace is not None else None
    quotas = parts.registry if settings.quotas is None else None
    await watch(parts.cache, settings.kubeconfig, keys, quotas, settings.service_class or "")


async def _beat(health: Health) -> None:
    while True:
        health.beat()
        await asyncio.sleep(_BEAT_S)


async def _drain(parts: Parts, settings: Settings, hurry: asyncio.Event) -> None:
    parts.api.stopping = True
    log.info("draining", lame_duck_s=settings.lame_duck, under_way=parts.api.in_flight.count)
    with suppress(TimeoutError):
        await asyncio.wait_for(hurry.wait(), settings.lame_duck)
    parts.listener.close()
    ended = asyncio.create_task(parts.ext_proc.stop(settings.drain_timeout)) if parts.ext_proc is not None else None
    await parts.api.in_flight.finish(settings.drain_timeout)
    if ended is not None:
        await ended
    log.info("drained")
