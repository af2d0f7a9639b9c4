"""One operator: builds everything that runs side by side, runs it, and ends the process when a part ends. Called by `__main__`.

Restart is the recovery path for what nobody expected, and the one tested most. `core` is built before the API server has answered, `parts`
when it is known which kinds the cluster has.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import kopf
import structlog
from pagoda_kube.api import KubernetesApi

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import QUOTAS, Json, Resource
from pagoda_operator.client.cluster import Hooks, KubeCluster, connect
from pagoda_operator.client.requests import RetryBudget
from pagoda_operator.lead.leader import Alone, Leadership, Lease, Means
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import singles
from pagoda_operator.quota.status import StatusWriter
from pagoda_operator.run.defaults import DEFAULT_KEY
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.events import Recorder
from pagoda_operator.run.keys import TokenKeys
from pagoda_operator.run.node_pools import NodePools
from pagoda_operator.run.queue import KeyedQueue
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.scaler import Scaler
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve import probes
from pagoda_operator.serve.metrics import Gauges, Metrics
from pagoda_operator.serve.watches import OPTIONAL_KINDS, Reflectors, register, watch_session
from pagoda_operator.talk.daemons import Daemons
from pagoda_operator.talk.listen import Listener
from pagoda_operator.talk.signals import Signals
from pagoda_operator.talk.tokens import OwnToken
from pagoda_operator.watch.ages import Ages
from pagoda_operator.watch.caches import Caches, FleetView
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.triggers import Triggers

# Runs mostly wait for the API server.
_WORKERS = 32
# Half of the deadline, as client-go's. With 3 s an API server short of CPU that took up to 2.9 s for a renewal cost the Lease.
_RENEWAL_TIMEOUT = 5.0
# For the end of the Lease's connections.
_FAREWELL = 5.0
# Between two tries to ask an API server that does not answer what it serves.
_ASK_AGAIN = 2.0

T = TypeVar("T")


async def run(settings: Settings) -> int:
    """Run until a signal (0) or until a part ends on its own (1)."""
    configuration = await connect(settings.kubeconfig)
    apart = OwnLoop("lease")
    lease_client = await apart.do(_lease_client(settings))
    means = Means(apart=apart.do)
    lease: Leadership = Lease(lease_client, settings.lease_namespace, settings.identity, means) if settings.lease_namespace else Alone()
    retries = RetryBudget(time.monotonic, random.Random())  # noqa: S311 (spreads load)
    made = core(settings, lease, partial(KubeCluster, configuration, retries=retries))
    servers = [probes.serve(made.liveness, settings.probes_port), made.metrics.serve(settings.metrics_port)]
    structlog.get_logger().info("serving", probes=servers[0].server_address[1], metrics=servers[1].server_address[1])
    beat = asyncio.create_task(made.liveness.beat())  # before the first question to an API server that may be away
    registry, api = kopf.OperatorRegistry(), KubernetesApi(configuration)
    register(registry, made.caches, configuration.host, lambda: watch_session(configuration, made.liveness.watched))
    reflectors = Reflectors(api, made.caches, made.liveness, await _present(made.cluster), settings.resync)
    try:
        return await _first_end(kopf.operator(registry=registry, clusterwide=True, standalone=True), [beat, *parts(made, reflectors)])
    finally:
        await lease.release(answered=made.cluster.answered)
        for server in servers:
            server.shutdown()
        await asyncio.gather(made.cluster.close(), api.close())
        with suppress(TimeoutError):  # a loop that hangs keeps nobody
            await asyncio.wait_for(apart.do(lease_client.close()), _FAREWELL)
        apart.close()


async def _lease_client(settings: Settings) -> KubeCluster:
    """A loop and connections of its own and short tries: a renewal must wait for nothing else."""
    return KubeCluster(await connect(settings.kubeconfig), timeout=_RENEWAL_TIMEOUT)


async def _present(cluster: KubeCluster) -> frozenset[Resource]:
    """Which of the kinds that not every cluster has are there; a cluster that gets them later is upgraded, which restarts us."""
    while True:
        try:
            return frozenset([resource for resource in OPTIONAL_KINDS if await cluster.serves(resource)])
        except ClusterError as error:
            structlog.get_logger().warning("api_server_silent", error=str(error))
            await asyncio.sleep(_ASK_AGAIN)


async def _first_end(watching: Coroutine[Any, Any, None], parts: list[Awaitable[None]]) -> int:
    tasks = [asyncio.ensure_future(part) for part in parts]
    watcher = asyncio.create_task(watching)  # after the others: Kopf cancels whatever starts after it
    done, _ = await asyncio.wait([watcher, *tasks], return_when=asyncio.FIRST_COMPLETED)
    failures = [error for task in done if (error := task.exception()) is not None]
    for error in failures:
        structlog.get_logger().error("part_ended", error=repr(error))
    for task in (watcher, *tasks):
        task.cancel()
    await asyncio.gather(watcher, *tasks, return_exceptions=True)
    return 0 if done == {watcher} and not failures else 1


@dataclass(frozen=True)
class Core:
    """What everything else hangs on."""

    settings: Settings
    lease: Leadership
    cluster: KubeCluster
    queue: KeyedQueue
    claims: Claims
    triggers: Triggers
    caches: Caches
    liveness: probes.Liveness
    metrics: Metrics


def core(settings: Settings, lease: Leadership, connected: Callable[[Hooks], KubeCluster]) -> Core:
    """Asks nobody; `connected` makes the client that writes."""
    metrics = Metrics(time.monotonic)
    queue = KeyedQueue(settings.resync, random.Random())  # noqa: S311 (spreads load)
    claims = Claims(queue.add)
    triggers = Triggers(queue, claims)
    caches = Caches(triggers.changed)

    def wrote(resource: Resource, verb: str, body: Json) -> None:
        caches.wrote(resource, verb, body)
        metrics.wrote(resource, verb, body)

    cluster = connected(Hooks(lease.guard, wrote, metrics.read_again))
    liveness = probes.Liveness(queue.oldest, lease.age)
    return Core(settings, lease, cluster, queue, claims, triggers, caches, liveness, metrics)


def parts(made: Core, reflectors: Reflectors) -> list[Awaitable[None]]:
    """Everything that runs beside Kopf."""
    settings, loop_time = made.settings, asyncio.get_running_loop().time
    own = OwnToken(settings.token) if settings.token is not None else None
    signals = Signals(loop_time, made.triggers.child)
    scaler = Scaler(made.cluster, signals, loop_time, time.time)
    signals.measured = lambda key: made.triggers.child(key) if scaler.demand_changed(key, idle=signals.idle(key)) else None
    view = FleetView(made.caches)
    fleet = NodePools(made.cluster, view, settings.lease_namespace, time.time)
    keys = TokenKeys(made.cluster, own.newest_key if own else lambda: "")
    quotas = Quotas(made.cluster, partial(made.caches.all, QUOTAS), made.queue.add, time.monotonic, made.lease.settled)
    status_writer = StatusWriter(made.cluster, quotas, _utc, lambda: singles(fleet()))
    events = Recorder(made.cluster, settings.identity, queued=True)
    dependencies = Dependencies(
        triggers=made.triggers,
        signals=signals,
        caches=made.caches,
        keys=keys,
        quota=quotas,
        claims=made.claims,
        daemons=Daemons(lambda: made.lease.epoch, own),
        scaling=scaler,
        faults=view.faults,
        fleet=fleet,
        sizes=view.sizes,
        ages=Ages(time.monotonic),
        events=events,
    )
    reconciler = Reconciler(made.cluster, settings, _utc, dependencies)
    made.queue.add(DEFAULT_KEY)
    listener = Listener(settings.gateways, signals, settings.identity, own)
    beside = [made.metrics.sample(gauges(made, events.waiting)), made.lease.run(), listener.run(), *reflectors.runs()]
    run, start = made.metrics.timed(reconciler.reconcile), _Start(made.lease.acquired, (reflectors.list_all, fleet.load))
    leading = [_when_leading(start, task) for task in (keys.run, status_writer.run, fleet.run, events.run)]
    return [*beside, *leading, *(_when_leading(start, partial(made.queue.work, run)) for _ in range(_WORKERS))]


def gauges(made: Core, events: Callable[[], float]) -> Gauges:
    """What is sampled every second."""
    return Gauges(
        queue=made.queue.depth,
        queue_age=made.queue.oldest,
        leads=made.lease.leads,
        epoch=lambda: made.lease.epoch,
        watches=made.liveness.ages,
        events=events,
    )


class _Start:
    """What comes before all work of a leader, once for all who wait: the caches are listed anew, since a standby's may be late."""

    def __init__(self, acquired: asyncio.Event, first: Iterable[Callable[[], Awaitable[None]]]) -> None:
        self._acquired, self._first = acquired, first
        self._lock = asyncio.Lock()
        self._done = False

    async def wait(self) -> None:
        """Until it is done."""
        await self._acquired.wait()
        async with self._lock:
            if not self._done:
                for prepare in self._first:
                    await prepare()
                self._done = True


async def _when_leading(start: _Start, run: Callable[[], Awaitable[None]]) -> None:
    """What decides or writes, of the leader only."""
    await start.wait()
    await run()


def _utc() -> datetime:
    return datetime.now(UTC)


class OwnLoop:
    """An event loop on a thread of its own, for what must not wait for the loop that plans: the Lease. It begins at once; `close` ends it.

    The two loops share only values that are replaced whole. A client belongs to the loop that made it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self._thread.start()

    async def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for it here; who is cancelled here cancels it there, without waiting for its end."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, self._loop))

    def close(self) -> None:
        """Once nothing runs there any more. Does not wait: a name that is being looked up holds a thread for minutes."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
