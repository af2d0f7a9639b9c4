"""Builds what runs side by side in one operator, from its settings. Called by process.py, which runs it.

In two steps: `core` stands before the API server has answered, `parts` when it is known which kinds the cluster has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from pagoda_operator.api.state import QUOTAS, Json, Resource
from pagoda_operator.client.cluster import Hooks, KubeCluster
from pagoda_operator.lead.leader import Leadership
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import singles
from pagoda_operator.quota.status_writer import StatusWriter
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
from pagoda_operator.serve.feeds import Feeds
from pagoda_operator.serve.metrics import Gauges, Metrics
from pagoda_operator.talk.daemons import Daemons, Voice
from pagoda_operator.talk.listen import Listener
from pagoda_operator.talk.signals import Signals
from pagoda_operator.talk.tokens import OwnToken
from pagoda_operator.watch.ages import Ages
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.triggers import Triggers
from pagoda_operator.watch.unschedulable import Unschedulable
from pagoda_operator.watch.view import View

Heard = Callable[[Resource, str, Json], None]

# Runs mostly wait for the API server.
_WORKERS = 32


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
    vitals: probes.Vitals
    metrics: Metrics


def core(settings: Settings, lease: Leadership, connected: Callable[[Hooks], KubeCluster]) -> Core:
    """Asks nobody; `connected` makes the client that writes."""
    metrics = Metrics(time.monotonic)
    queue = KeyedQueue(settings.resync, random.Random())  # noqa: S311 (spreads load)
    claims = Claims(queue.add)
    triggers = Triggers(queue, claims)
    caches = Caches(triggers.changed)
    cluster = connected(Hooks(lease.guard, _both(caches.wrote, metrics.wrote), metrics.read_again))
    vitals = probes.Vitals(queue.oldest, lease.age)
    return Core(settings, lease, cluster, queue, claims, triggers, caches, vitals, metrics)


def parts(made: Core, feeds: Feeds) -> list[Awaitable[None]]:
    """All that runs beside Kopf."""
    own = OwnToken(made.settings.token) if made.settings.token is not None else None
    signals = Signals(asyncio.get_running_loop().time, made.triggers.child)
    keys = TokenKeys(made.cluster, own.newest_key if own else lambda: "")
    quotas = Quotas(made.cluster, lambda: made.caches.all(QUOTAS), made.queue.add, time.monotonic, made.lease.settled)
    listener = Listener(made.settings.gateways, signals, made.settings.identity, own)
    daemons = Daemons(Voice(lambda: made.lease.epoch, own))
    dependencies = _dependencies(made, signals)
    fleet = NodePools(made.cluster, dependencies.fleet, made.settings.lease_namespace, time.time)
    status_writer = StatusWriter(made.cluster, lambda: made.caches.all(QUOTAS), quotas, _utc, lambda: singles(fleet()))
    dependencies = replace(dependencies, daemons=daemons, keys=keys, quota=quotas, fleet=fleet)
    events = Recorder(made.cluster, made.settings.identity, beside=True)
    dependencies = replace(dependencies, ages=Ages(time.monotonic), unschedulable=Unschedulable(time.monotonic), events=events)
    reconciler = Reconciler(made.cluster, made.settings, _utc, dependencies)
    made.queue.add(DEFAULT_KEY)
    beside = [made.metrics.sample(gauges(made, events.waiting)), made.lease.run(), listener.run(), *feeds.runs()]
    run, start = made.metrics.timed(reconciler.reconcile), _Start(made.lease.acquired, (feeds.list_all, fleet.load))
    leading = [_led(start, task) for task in (keys.run, status_writer.run, fleet.run, events.run)]
    return [*beside, *leading, *(_led(start, partial(made.queue.work, run)) for _ in range(_WORKERS))]


def gauges(made: Core, events: Callable[[], float]) -> Gauges:
    """What is sampled every second."""
    return Gauges(
        queue=made.queue.depth,
        queue_age=made.queue.oldest,
        leads=made.lease.leads,
        epoch=lambda: made.lease.epoch,
        watches=made.vitals.ages,
        events=events,
    )


def _dependencies(made: Core, signals: Signals) -> Dependencies:
    """Those that are told of things."""
    scaler = Scaler(made.cluster, signals, asyncio.get_running_loop().time, time.time)
    signals.measured = lambda key: made.triggers.child(key) if scaler.heard(key, idle=signals.idle(key)) else None
    fleet = View(made.caches)
    return Dependencies(
        waits=made.triggers.waits,
        signals=signals,
        caches=made.caches,
        claims=made.claims,
        scaling=scaler,
        faults=fleet.faults,
        fleet=fleet,
        sizes=fleet.sizes,
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


async def _led(start: _Start, run: Callable[[], Awaitable[None]]) -> None:
    """What decides or writes, of the leader only."""
    await start.wait()
    await run()


def _utc() -> datetime:
    return datetime.now(UTC)


def _both(first: Heard, second: Heard) -> Heard:
    def wrote(resource: Resource, verb: str, body: Json) -> None:
        first(resource, verb, body)
        second(resource, verb, body)

    return wrote
