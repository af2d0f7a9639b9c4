"""One operator: builds the parts that run concurrently, runs them, and ends the process when a part ends. Called by `__main__`.

A restart is the recovery from every unexpected error, and the one that is tested most. `core` is built before the API server has answered,
`parts` when it is known which kinds the cluster has.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import kopf
import structlog
from pagoda_contracts import metrics as words
from pagoda_contracts.metrics import Metric
from pagoda_contracts.names import LABEL_SERVICE, of_class
from pagoda_kube.api import KubernetesApi, allow_deep_objects

from pagoda_operator.api.errors import ClusterError, SettingsError
from pagoda_operator.api.state import NAMESPACES, QUOTAS, Json, Resource
from pagoda_operator.client.catalogues import Catalogues
from pagoda_operator.client.cluster import Hooks, KubeCluster, connect
from pagoda_operator.client.daemons import Daemons, OwnToken
from pagoda_operator.client.listen import Listener
from pagoda_operator.client.replicas import Replicas
from pagoda_operator.client.requests import RetryBudget
from pagoda_operator.client.signals import Signals
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import singles
from pagoda_operator.quota.status import StatusWriter
from pagoda_operator.quota.usage import QuotaUsages
from pagoda_operator.run.adapters import Adapters
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.events import Recorder
from pagoda_operator.run.keys import TokenKeys
from pagoda_operator.run.node_pools import NodePools
from pagoda_operator.run.profiles import ProfileStatuses
from pagoda_operator.run.queue import KeyedQueue
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.scaler import Scaler
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve.leader import Alone, Leadership, Lease, Means
from pagoda_operator.serve.monitoring import Liveness, Metrics, serve_probes
from pagoda_operator.serve.watches import OPTIONAL_KINDS, Reflectors, register, watch_session
from pagoda_operator.watch.caches import Caches, InventoryView
from pagoda_operator.watch.observe import Ages
from pagoda_operator.watch.triggers import Triggers

# Runs mostly wait for the API server.
_WORKERS = 32
# Half of the deadline, as in client-go. With 3 s an API server short of CPU, which took up to 2.9 s for a renewal, cost the Lease.
_RENEWAL_TIMEOUT = 5.0
# For closing the Lease's connections.
_CLOSE_TIMEOUT = 5.0
# Between two attempts to ask the API server which kinds it has.
_ASK_AGAIN = 2.0

T = TypeVar("T")


async def run(settings: Settings) -> int:
    """Run until a signal (0) or until a part ends on its own (1)."""
    allow_deep_objects()
    configuration = await connect(settings.kubeconfig)
    if settings.namespaces:
        settings = settings._replace(namespaces=await _existing(KubeCluster(configuration), settings.namespaces))
    apart = OwnLoop("lease")
    lease_client = await apart.do(_lease_client(settings))
    means = Means(apart=apart.do)
    lease: Leadership = Lease(lease_client, settings.lease_namespace, settings.identity, means) if settings.lease_namespace else Alone()
    retries = RetryBudget(time.monotonic, random.Random())  # noqa: S311 (spreads load)
    made = core(settings, lease, partial(KubeCluster, configuration, retries=retries, namespaces=settings.namespaces))
    servers = [serve_probes(made.liveness, settings.probes_port), made.metrics.serve(settings.metrics_port)]
    structlog.get_logger().info("serving", probes=servers[0].server_address[1], metrics=servers[1].server_address[1])
    beat = asyncio.create_task(made.liveness.beat())  # before the first request to an API server that may not answer
    registry, api = kopf.OperatorRegistry(), KubernetesApi(configuration)
    register(registry, made.caches, configuration.host, lambda: watch_session(configuration, made.liveness.watched))
    reflectors = Reflectors(api, made.caches, made.liveness, await _present(made.cluster), settings.resync)
    try:
        watching = kopf.operator(registry=registry, clusterwide=not settings.namespaces, namespaces=settings.namespaces, standalone=True)
        return await _first_end(watching, [beat, *parts(made, reflectors)])
    finally:
        await lease.release(answered=made.cluster.answered)
        for server in servers:
            server.shutdown()
        await asyncio.gather(made.cluster.close(), api.close())
        with suppress(TimeoutError):  # a loop that hangs must not keep the process
            await asyncio.wait_for(apart.do(lease_client.close()), _CLOSE_TIMEOUT)
        apart.close()


async def _lease_client(settings: Settings) -> KubeCluster:
    """With connections of its own and a short timeout: a renewal must wait for nothing else."""
    return KubeCluster(await connect(settings.kubeconfig), timeout=_RENEWAL_TIMEOUT)


async def _present(cluster: KubeCluster) -> frozenset[Resource]:
    """Which of the optional kinds the cluster has. A cluster gets them later only by an upgrade, which restarts this process."""

    async def ask() -> frozenset[Resource]:
        return frozenset([resource for resource in OPTIONAL_KINDS if await cluster.serves(resource)])

    return await _answered(ask)


async def _existing(cluster: KubeCluster, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that exist. In one that is gone nothing may be listed, since its Role went too: nothing would ever begin. One that goes later
    silences its watches, which ends this process."""
    try:
        found = await _answered(lambda: cluster.list(NAMESPACES, "", ""))
    finally:
        await cluster.close()
    here = {body["metadata"]["name"] for body in found if "deletionTimestamp" not in body["metadata"]}
    if not (kept := tuple(name for name in names if name in here)):  # an empty list would mean: everywhere
        raise SettingsError(f"--namespaces: none of {', '.join(names)} exists")
    if missing := [name for name in names if name not in here]:
        structlog.get_logger().warning("namespaces_missing", namespaces=missing)
    return kept


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """What the API server answers, however long that takes."""
    while True:
        try:
            return await ask()
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
    """The parts that all others use."""

    settings: Settings
    lease: Leadership
    cluster: KubeCluster
    queue: KeyedQueue
    triggers: Triggers
    caches: Caches
    liveness: Liveness
    metrics: Metrics


def core(settings: Settings, lease: Leadership, connected: Callable[[Hooks], KubeCluster]) -> Core:
    """Builds without a request; `connected` makes the client that writes."""
    metrics = Metrics(time.monotonic)
    queue = KeyedQueue(settings.resync, random.Random())  # noqa: S311 (spreads load)
    triggers = Triggers(queue, settings.reserved)
    caches = Caches(triggers.changed, settings.namespaces, settings.service_class)

    def wrote(resource: Resource, verb: str, body: Json) -> None:
        caches.wrote(resource, verb, body)
        metrics.wrote(resource, verb)

    cluster = connected(Hooks(lease.guard, wrote, metrics.read_again))
    liveness = Liveness(queue.oldest, lease.age)
    return Core(settings, lease, cluster, queue, triggers, caches, liveness, metrics)


def parts(made: Core, reflectors: Reflectors) -> list[Awaitable[None]]:
    """Everything that runs besides Kopf."""
    settings, loop_time = made.settings, asyncio.get_running_loop().time
    own = OwnToken(settings.token) if settings.token is not None else None
    signals = Signals(loop_time, made.queue.add, wakes=not settings.read_replicas)
    replicas = Replicas(signals, loop_time, settings.identity, own) if settings.read_replicas else None
    scaler = Scaler(made.cluster, signals, loop_time, time.time)
    signals.measured = lambda key: made.queue.add(key) if scaler.demand_changed(key, idle=signals.idle(key)) else None
    view = InventoryView(made.caches)
    inventory = NodePools(made.cluster, view, settings.lease_namespace, time.time)
    keys = TokenKeys(made.cluster, own.newest_key if own else lambda: "", settings.callers.file() if settings.callers else None)
    quotas = Quotas(
        made.cluster,
        lambda: [quota.within(settings.namespaces) for quota in made.caches.all(QUOTAS)],
        made.queue.add,
        time.monotonic,
        made.lease.settled,
        of_class(settings.service_class, LABEL_SERVICE),
    )
    quotas.ledger.on = lambda node: inventory().products.get(node, "")
    usages = QuotaUsages()
    status_writer = StatusWriter(made.cluster, quotas, _utc, lambda: singles(inventory()), settings.lease_namespace or "", usages=usages)
    events, owners = Recorder(made.cluster, settings.identity), made.triggers.name_owners
    dependencies = Dependencies(
        triggers=made.triggers,
        signals=signals,
        caches=made.caches,
        keys=keys,
        quota=quotas,
        name_owners=owners,
        daemons=Daemons(lambda: made.lease.epoch, own),
        adapters=Adapters(made.cluster, made.caches, owners, Catalogues(lambda: made.lease.epoch, own), _utc),
        scaling=scaler,
        faults=view.faults,
        inventory=inventory,
        sizes=view.sizes,
        ages=Ages(time.monotonic),
        events=events,
        started=made.metrics.started,
        replicas=replicas,
    )
    reconciler = Reconciler(made.cluster, settings, _utc, dependencies)
    made.queue.add(settings.default_profile_key)
    listener = Listener(settings.gateways, signals, settings.identity, own, usages)
    sampling = made.metrics.sample(gauges(made, events, reconciler), made.liveness.ages)
    beside = [sampling, made.lease.run(), listener.run(), *reflectors.runs()]
    run, ready = made.metrics.timed(reconciler.reconcile), asyncio.Event()
    workers = [partial(made.queue.work, run) for _ in range(_WORKERS)]
    leading: list[Callable[[], Awaitable[None]]] = [replicas.run] if replicas is not None else []
    profiles = ProfileStatuses(made.cluster, made.caches, made.triggers, _utc, time.monotonic)
    leading += [keys.run, status_writer.run, profiles.run, inventory.run, events.run, *workers]
    tell = partial(_tell_of_takeover, made, events)
    return [*beside, _prepare(made.lease, reflectors, inventory, ready, tell), *(_when_ready(ready, part) for part in leading)]


def gauges(made: Core, events: Recorder, reconciler: Reconciler) -> Mapping[Metric, Callable[[], float]]:
    """What is sampled every second."""
    return {
        words.OPERATOR_QUEUE: made.queue.depth,
        words.OPERATOR_QUEUE_AGE: made.queue.oldest,
        words.OPERATOR_EVENTS_WAITING: events.waiting,
        words.OPERATOR_DOWN: reconciler.down,
        words.OPERATOR_LEADER: made.lease.leads,
        words.OPERATOR_EPOCH: lambda: made.lease.epoch,
    }


def _tell_of_takeover(made: Core, events: Recorder) -> None:
    if made.settings.lease_namespace is not None:
        events.record_leader(made.settings.lease_namespace, made.lease.epoch, made.lease.cause, _utc())


async def _prepare(
    lease: Leadership, reflectors: Reflectors, inventory: NodePools, ready: asyncio.Event, tell: Callable[[], None] = lambda: None
) -> None:
    """What a leader does before all other work. It lists every kind again, since a standby's caches may be late."""
    await lease.acquired.wait()
    await reflectors.list_all()
    await inventory.load()
    tell()
    ready.set()
    await asyncio.Event().wait()  # a part that ends would end the process


async def _when_ready(ready: asyncio.Event, run: Callable[[], Awaitable[None]]) -> None:
    """Runs what decides or writes, in a leader only."""
    await ready.wait()
    await run()


def _utc() -> datetime:
    return datetime.now(UTC)


class OwnLoop:
    """An event loop on a thread of its own, for the Lease, which must not wait for the loop that plans. `close` ends it.

    The two loops share only values that are replaced as a whole. A client belongs to the loop that made it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self._thread.start()

    async def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Runs it there and waits for it here. If the caller is cancelled, so is it, without waiting for its end."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, self._loop))

    def close(self) -> None:
        """Once nothing runs there any more. It does not wait: a DNS query may block the thread for minutes."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
