"""Probes (`/startupz /livez /readyz`) and metrics, each answered on a thread and socket of its own: a blocked event loop must not answer.

`Liveness` is written by the loop and the watches and read by the probes' thread; single attribute writes, hence no lock. Gauges are set
once a second on the event loop, which owns what they report. No label has the name of a service: 2,000 services make no 2,000 series.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Final

from pagoda_contracts import metrics as words
from pagoda_contracts.metrics import Metric
from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from pagoda_operator.api.state import Key, Observed, Resource
from pagoda_operator.run.queue import Outcome

_BEAT: Final = 1.0
# A watch that is silent for 75 s is restarted, so one without even a connection for so long is dead. (A Kopf whose watch died silently
# seems idle.) A missing bookmark proves nothing, and the next list finds the events that a watch lost.
MAX_WATCH_AGE: Final = 180.0
MAX_LOOP_LAG: Final = 5.0
# Requests end after 30 s and retries come after 60 s: a key that waits longer waits for ever.
MAX_QUEUE_AGE: Final = 180.0
# A leader that cannot renew ends after 10 s; one that did not has failed.
MAX_LEASE_AGE: Final = 12.0


class Liveness:
    """Signs of life."""

    def __init__(self, queue_age: Callable[[], float], lease_age: Callable[[], float | None] = lambda: None) -> None:
        # None until it is known which kinds this cluster has.
        self._kinds: int | None = None
        self._queue_age, self._lease_age = queue_age, lease_age
        self._queue_seconds = 0.0
        self._beat = time.monotonic()
        self._watches: dict[str, float] = {}

    def watched(self, path: str, now: float) -> None:
        """A list, a new connection of a watch, or data from it."""
        self._watches[path] = now

    def expect(self, kinds: int) -> None:
        """So many kinds will be watched."""
        self._kinds = kinds

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since each watch's last sign of life, by path."""
        return {path: now - seen for path, seen in self._watches.copy().items()}

    async def beat(self) -> None:
        """Runs on the event loop until cancelled."""
        while True:
            self._beat = time.monotonic()
            self._queue_seconds = self._queue_age()
            await asyncio.sleep(_BEAT)

    def failure(self, now: float) -> str | None:
        """Why the process should be restarted; None while it is healthy."""
        if (lag := now - self._beat - _BEAT) > MAX_LOOP_LAG:
            return f"event loop silent for {lag:.0f} s"
        if self._queue_seconds > MAX_QUEUE_AGE:
            return f"a service waits for {self._queue_seconds:.0f} s"
        if (age := self._lease_age()) is not None and age > MAX_LEASE_AGE:
            return f"Lease not renewed for {age:.0f} s"
        silent = [path for path, seconds in self.ages(now).items() if seconds > MAX_WATCH_AGE]
        return f"watch silent: {', '.join(silent)}" if silent else None

    def unready(self, now: float) -> str | None:
        """Why it does no work yet; None once every kind is watched."""
        if self._kinds is None:
            return "the API server has not answered yet"
        if len(self._watches) < self._kinds:
            return f"{len(self._watches)} of {self._kinds} kinds watched"
        return self.failure(now)


def serve_probes(liveness: Liveness, port: int) -> ThreadingHTTPServer:
    """Starts to answer on a daemon thread; port 0 lets the kernel choose."""
    checks = {PATH_LIVE: liveness.failure, PATH_READY: liveness.unready, PATH_STARTUP: liveness.unready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            check = checks.get(self.path)
            fault = "no such probe" if check is None else check(time.monotonic())
            missing, unavailable = HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE
            self.send_response(missing if check is None else unavailable if fault else HTTPStatus.OK)
            self.end_headers()
            self.wfile.write(f"{fault or 'ok'}\n".encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's word)
            """Probes come every second: not worth a line each."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server


class Metrics:
    """What one operator counts, in a registry of its own. `clock` is also the clock of the watches' last signs of life."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._runs, self._errors, self._writes, self._repeated = (
            Counter(metric.name, metric.help, metric.labels, registry=self._registry)
            for metric in (words.OPERATOR_RECONCILES, words.OPERATOR_ERRORS, words.OPERATOR_WRITES, words.OPERATOR_READS_AGAIN)
        )
        self._seconds, self._starts = (
            Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets)
            for metric in (words.OPERATOR_RECONCILE_SECONDS, words.OPERATOR_START_SECONDS)
        )
        self._gauges = {
            metric: Gauge(metric.name, metric.help, metric.labels, registry=self._registry)
            for metric in words.OPERATOR
            if metric.kind == "gauge"
        }

    def wrote(self, resource: Resource, verb: str) -> None:
        """A write that the API server accepted."""
        self._writes.labels(resource.kind, verb).inc()

    def read_again(self) -> None:
        """A read that failed and is repeated within its call."""
        self._repeated.inc()

    def started(self, observed: Observed) -> None:
        """Counts the starts of a service's replicas that were seen starting and are Ready now. Others may have been Ready before they were
        seen."""
        for pod in observed.pods:
            if pod.uid in observed.seen_starting and (took := observed.start_of(pod)) is not None:
                for phase, seconds in took._asdict().items():
                    self._starts.labels(phase).observe(seconds)

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
        """Starts to answer on a daemon thread; port 0 lets the kernel choose."""
        server, _ = start_http_server(port, registry=self._registry)
        return server

    async def sample(self, gauges: Mapping[Metric, Callable[[], float]], watches: Callable[[float], Mapping[str, float]]) -> None:
        """Sets the gauges every second until cancelled. `watches`: seconds since each watch's last sign of life, by path."""
        while True:
            for metric, value in gauges.items():
                self._gauges[metric].set(value())
            oldest: dict[str, float] = {}  # a kind may be watched in several namespaces
            for path, seconds in watches(self._clock()).items():
                kind = path.rpartition("/")[2]
                oldest[kind] = max(seconds, oldest.get(kind, 0.0))
            for kind, seconds in oldest.items():
                self._gauges[words.OPERATOR_WATCH_AGE].labels(kind).set(seconds)
            await asyncio.sleep(1)

    def _ran(self, outcome: str, start: float) -> None:
        self._runs.labels(outcome).inc()
        self._seconds.observe(self._clock() - start)
