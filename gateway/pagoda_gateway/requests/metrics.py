"""The gateway's metrics in a registry of their own. Gauges are computed at each scrape, from the endpoint cache and the hold queue."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable

from pagoda_contracts import metrics as words
from pagoda_contracts.metrics import Metric
from pagoda_contracts.resources.apikeys import Refusal
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.routing.verdict import judge
from pagoda_gateway.watch.cache import EndpointCache


class Metrics:
    """The metrics of one gateway. The label `service` has known services only ("" for none), so clients cannot add values."""

    def __init__(self, cache: EndpointCache, queue: HoldQueue, clock_ms: Callable[[], float]) -> None:
        self._cache, self._queue, self._clock_ms = cache, queue, clock_ms
        self._registry = CollectorRegistry()
        self._requests = _counter(words.GATEWAY_REQUESTS, self._registry)
        self._unauthenticated = _counter(words.GATEWAY_UNAUTHENTICATED, self._registry)
        self._repicks = _counter(words.GATEWAY_REPICKS, self._registry)
        self._continued = _counter(words.GATEWAY_CONTINUED, self._registry)
        self._hold_seconds = _histogram(words.GATEWAY_HOLD_SECONDS, self._registry)
        self._held = _gauge(words.GATEWAY_HELD, self._registry)
        self._endpoints = _gauge(words.GATEWAY_ENDPOINTS, self._registry)

    def answered(self, service: str, code: int) -> None:
        """A request ended. 499: the client left. A stream whose replica died counts as 502, one that the
        gateway's deadline ended as 503."""
        self._requests.labels(service, str(code)).inc()

    def unauthenticated(self, reason: Refusal) -> None:
        """A request was refused for its API key."""
        self._unauthenticated.labels(reason).inc()

    def repicked(self, service: str, reason: str) -> None:
        """An attempt failed without loss, and the request was picked again."""
        self._repicks.labels(service, reason).inc()

    def continued(self, service: str, *, exact: bool) -> None:
        """A stream goes on at another replica."""
        self._continued.labels(service, "same" if exact else "other").inc()

    def held(self, service: str, seconds: float) -> None:
        """A request left the hold queue."""
        self._hold_seconds.labels(service).observe(seconds)

    def exposition(self) -> bytes:
        """Returns the metrics as Prometheus text."""
        now_ms = self._clock_ms()
        self._held.clear()
        self._endpoints.clear()
        for service in self._cache.services():
            self._held.labels(service.key).set(self._queue.count(service.key))
            for verdict, count in Counts(judge(endpoint, now_ms) for endpoint in self._cache.endpoints(service)).items():
                self._endpoints.labels(service.key, verdict).set(count)
        return generate_latest(self._registry)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
