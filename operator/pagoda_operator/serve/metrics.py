"""The operator's metrics in a registry of their own, answered on a thread of their own. Made by process.py.

Gauges are set once a second on the event loop, which owns what they tell of. No label holds a name of a service: 2,000 services make
no 2,000 series.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http.server import HTTPServer
from typing import NamedTuple

from pagoda_contracts import metrics as words
from pagoda_contracts.metrics import Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pagoda_operator.api.state import Json, Key, Resource
from pagoda_operator.run.queue import Outcome


class Gauges(NamedTuple):
    """What is asked every second. `watches`: seconds since each watch's last sign of life, by path."""

    queue: Callable[[], float]
    queue_age: Callable[[], float]
    leads: Callable[[], bool]
    epoch: Callable[[], float]
    watches: Callable[[float], Mapping[str, float]]
    events: Callable[[], float]


class Metrics:
    """What one operator counts. `clock` is also the clock of the watches' last signs of life."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._runs = _counter(words.OPERATOR_RECONCILES, self._registry)
        self._seconds = Histogram(
            words.OPERATOR_RECONCILE_SECONDS.name,
            words.OPERATOR_RECONCILE_SECONDS.help,
            registry=self._registry,
            buckets=words.OPERATOR_RECONCILE_SECONDS.buckets,
        )
        self._errors = _counter(words.OPERATOR_ERRORS, self._registry)
        self._writes = _counter(words.OPERATOR_WRITES, self._registry)
        self._again = _counter(words.OPERATOR_READS_AGAIN, self._registry)
        self._watch_age = _gauge(words.OPERATOR_WATCH_AGE, self._registry)
        self._queue = _gauge(words.OPERATOR_QUEUE, self._registry)
        self._queue_age = _gauge(words.OPERATOR_QUEUE_AGE, self._registry)
        self._events = _gauge(words.OPERATOR_EVENTS_WAITING, self._registry)
        self._leader = _gauge(words.OPERATOR_LEADER, self._registry)
        self._epoch = _gauge(words.OPERATOR_EPOCH, self._registry)

    def wrote(self, resource: Resource, verb: str, body: Json) -> None:
        """A write that the API server took."""
        del body
        self._writes.labels(resource.kind, verb).inc()

    def read_again(self) -> None:
        """A read that failed and is asked once more within its call."""
        self._again.inc()

    def timed(self, reconcile: Callable[[Key], Awaitable[Outcome]]) -> Callable[[Key], Awaitable[Outcome]]:
        """The same run, counted."""

        async def run(key: Key) -> Outcome:
            start = self._clock()
            try:
                outcome = await reconcile(key)
            except Exception as error:
                self._ran("failed", start)
                self._errors.labels(type(error).__name__).inc()
                raise
            self._ran("gone" if outcome.gone else "settled" if outcome.again is None else "again", start)
            return outcome

        return run

    def serve(self, port: int) -> HTTPServer:
        """Start answering on a daemon thread; port 0 lets the kernel choose."""
        server, _ = start_http_server(port, registry=self._registry)
        return server

    async def sample(self, gauges: Gauges) -> None:
        """Set the gauges, every second, until cancelled."""
        while True:
            self._queue.set(gauges.queue())
            self._queue_age.set(gauges.queue_age())
            self._events.set(gauges.events())
            self._leader.set(gauges.leads())
            self._epoch.set(gauges.epoch())
            for path, seconds in gauges.watches(self._clock()).items():
                self._watch_age.labels(path.rpartition("/")[2]).set(seconds)
            await asyncio.sleep(1)

    def _ran(self, outcome: str, start: float) -> None:
        self._runs.labels(outcome).inc()
        self._seconds.observe(self._clock() - start)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)
