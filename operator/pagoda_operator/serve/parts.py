"""Builds what runs side by side in one operator, from its settings. Called by process.py, which runs it.

In two steps: `core` stands before the API server has answered, `parts` when it is known which kinds the cluster has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import structlog

from pagoda_operator.api.state import QUOTAS, Json, Key, Resource
from pagoda_operator.client.batched import Batched
from pagoda_operator.client.cluster import Hooks, KubeCluster
from pagoda_operator.client.server_time import ServerTime
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.lead.leader import Leadership
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import singles
from pagoda_operator.quota.teller import Teller
from pagoda_operator.run.defaults import DEFAULT_KEY
from pagoda_operator.run.events import Recorder
from pagoda_operator.run.keys import TokenKeys
from pagoda_operator.run.queue import KeyedQueue, Reconcile
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.remembered import Remembered
from pagoda_operator.run.scaler import Scaler
from pagoda_operator.run.senses import Senses
from pagoda_operator.run.settings import Settings
from pagoda_operator.run.turns import Turns
from pagoda_operator.serve import probes
from pagoda_operator.serve.handlers import Intake, Sink
from pagoda_operator.serve.metrics import Gauges, Metrics
from pagoda_operator.talk.daemons import Daemons, Voice
from pagoda_operator.talk.listen import Listener
from pagoda_operator.talk.signals import Signals
from pagoda_operator.talk.tokens import OwnToken
from pagoda_operator.watch.ages import Ages
from pagoda_operator.watch.check import Check, Shown
from pagoda_operator.watch.door import Door
from pagoda_operator.watch.lacking import Lacking
from pagoda_operator.watch.mirror import Mirror
from pagoda_operator.watch.view import View

Heard = Callable[[Resource, str, Json], None]

# Runs mostly wait for the API server, and their lists are joined (batched.py): more of them cost it few more requests. With 32, on a
# machine so busy that a request took 0.2 s and a run 2.7 s, 20 changes a second waited 5 s for one of them.
_WORKERS = 96
# Of first looks, each of which reads everything; a start makes one at every service, and this many at once took 141 MiB at 500. The other
# workers are left to what was looked at.
_FIRST_LOOKS = 32
# What a watch swallowed while it told of other things stands wrong for a minute at most, however rare the resync. With 500 services and all
# that they have the operator uses 0.5 % of a core at rest so, and 0.4 % where it compared every five minutes.
_COMPARED_EVERY = 45.0
# Every kind is listed within a second or two, unless the API server is away or refuses one.
_WATCHES_WAIT = 20.0
_QUIET = 0.3
# With 20 changes of pods a second there are no 0.3 s without an event: each takeover would wait out all of the 20 s.
_QUIET_WAIT = 2.0


@dataclass(frozen=True)
class Core:
    """What everything else hangs on."""

    settings: Settings
    lease: Leadership
    cluster: KubeCluster
    queue: KeyedQueue
    door: Door
    vitals: probes.Vitals
    mirror: Mirror
    metrics: Metrics
    time: ServerTime


def core(settings: Settings, lease: Leadership, connected: Callable[[Hooks], KubeCluster]) -> Core:
    """Asks nobody; `connected` makes the client that writes."""
    metrics, mirror, server = Metrics(time.monotonic), Mirror(time.monotonic), ServerTime(time.monotonic, time.time)
    cluster = connected(Hooks(lease.guard, _both(mirror.wrote, metrics.wrote), metrics.read_again, server.told))
    queue = KeyedQueue(settings.resync, random.Random())  # noqa: S311 (spreads load)
    return Core(settings, lease, cluster, queue, Door(queue), probes.Vitals(queue.oldest, lease.age), mirror, metrics, server)


def parts(made: Core, sink: Sink) -> list[Awaitable[None]]:
    """All that runs beside Kopf."""
    own = OwnToken(made.settings.token) if made.settings.token is not None else None
    signals = Signals(asyncio.get_running_loop().time, made.door.child)
    keys = TokenKeys(made.cluster, own.newest_key if own else lambda: "")
    quotas = Quotas(made.cluster, lambda: sink.world.all(QUOTAS), made.queue.add, time.monotonic, made.lease.settled)
    listener = Listener(made.settings.gateways, signals, made.settings.identity, own)
    daemons = Daemons(Voice(lambda: made.lease.epoch, own))
    senses = _senses(made, sink, signals)
    fleet = Remembered(made.cluster, senses.fleet, made.settings.lease_namespace, made.time.now)
    teller = Teller(made.cluster, lambda: sink.world.all(QUOTAS), quotas, made.time.utc, _singles(made, fleet))
    senses = replace(senses, daemons=daemons, keys=keys, quota=quotas, fleet=fleet)
    events = Recorder(made.cluster, made.settings.identity, beside=True)
    senses = replace(senses, ages=Ages(time.monotonic), lacking=Lacking(time.monotonic), turns=Turns(time.monotonic), events=events)
    reconciler = Reconciler(made.cluster, made.settings, made.time.utc, senses)
    made.queue.few(reconciler.unseen, _FIRST_LOOKS)
    made.queue.add(DEFAULT_KEY)
    check = Check(made.cluster, Shown(made.mirror, sink.world, sink.kinds), made.door, made.vitals.silences)
    checks = (check.run(min(made.settings.resync, _COMPARED_EVERY), random.Random()), check.listen())  # noqa: S311
    beside = [
        made.metrics.sample(gauges(made, events.waiting)),
        made.lease.run(),
        listener.run(),
        *checks,
    ]
    leading = [_led(made.lease, run) for run in (keys.run, teller.run, fleet.run, events.run)]
    run, start = made.metrics.timed(reconciler.reconcile), _Start(made, sink.intake, (fleet.load, check.caps))
    return [*beside, *leading, *(_work(start, made.queue, run) for _ in range(_WORKERS))]


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


def _singles(made: Core, fleet: Callable[[], Fleet]) -> Callable[[], frozenset[str] | None]:
    """Nothing is said of nodes that were not shown yet."""
    return lambda: singles(fleet()) if made.vitals.complete.is_set() else None


def _alone(made: Core) -> Callable[[Key], bool]:
    """Before all watches have listed, a name may be anywhere."""
    return lambda key: made.vitals.complete.is_set() and made.mirror.alone(key)


def _senses(made: Core, sink: Sink, signals: Signals) -> Senses:
    """Those that are told of things."""
    scaler = Scaler(made.cluster, signals, asyncio.get_running_loop().time, made.time.now)
    signals.measured = lambda key: made.door.child(key) if scaler.heard(key, idle=signals.idle(key)) else None
    fleet = View(sink.world)
    return Senses(
        waits=made.door.waits,
        signals=signals,
        view=made.mirror,
        reader=Batched(made.cluster, _alone(made)),
        claims=sink.claims,
        scaling=scaler,
        faults=fleet.faults,
        fleet=fleet,
        sizes=fleet.sizes,
    )


async def _led(lease: Leadership, run: Callable[[], Awaitable[None]]) -> None:
    """What writes, of the leader only."""
    await lease.acquired.wait()
    await run()


class _Start:
    """What comes before all work: of the leader only, mirrors are filled and what comes `first` is done. By one worker for all of them."""

    def __init__(self, made: Core, intake: Intake, first: Iterable[Callable[[], Awaitable[None]]]) -> None:
        self._made, self._intake, self._first = made, intake, first
        self._lock = asyncio.Lock()
        self._done = False

    async def wait(self) -> None:
        """Until it is done. A standby has all ready but this."""
        await self._made.lease.acquired.wait()
        async with self._lock:
            if not self._done:
                await self._prepare()
                self._done = True

    async def _prepare(self) -> None:
        try:
            async with asyncio.timeout(_WATCHES_WAIT):
                await self._made.vitals.complete.wait()
        except TimeoutError:  # one kind that may not be watched must not stop the work on all others; the probe says which it is
            structlog.get_logger().warning("mirrors_not_filled", why=self._made.vitals.unready(time.monotonic()))
        await self._intake.quiet(_QUIET, _QUIET_WAIT)
        for prepare in self._first:
            await prepare()


async def _work(start: _Start, queue: KeyedQueue, run: Reconcile) -> None:
    """One worker."""
    await start.wait()
    await queue.work(run)


def _both(first: Heard, second: Heard) -> Heard:
    def wrote(resource: Resource, verb: str, body: Json) -> None:
        first(resource, verb, body)
        second(resource, verb, body)

    return wrote
