"""The gateway's metrics in a registry of their own. Gauges are computed when scraped, from the fleet and the lines."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from pagoda_contracts import metrics as words
from pagoda_contracts.metrics import Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagoda_gateway.requests.hold_queue import Hold
from pagoda_gateway.routing.picker import verdict
from pagoda_gateway.watch.fleet import Fleet


class Metrics:
    """What one gateway counts. The label `service` holds known services only ("" for none), so clients cannot grow it."""

    def __init__(self, fleet: Fleet, hold: Hold, clock_ms: Callable[[], float]) -> None:
        self._fleet, self._hold, self._clock_ms = fleet, hold, clock_ms
        self._registry = CollectorRegistry()
        self._requests = _counter(words.GATEWAY_REQUESTS, self._registry)
        self._repicks = _counter(words.GATEWAY_REPICKS, self._registry)
        self._hold_seconds = _histogram(words.GATEWAY_HOLD_SECONDS, self._registry)
        self._held = _gauge(words.GATEWAY_HELD, self._registry)
        self._endpoints = _gauge(words.GATEWAY_ENDPOINTS, self._registry)

    def answered(self, service: str, code: int) -> None:
        """A request ended. 499: the client left; a stream whose replica died counts as 502, one that our own deadline cut as 503."""
        self._requests.labels(service, str(code)).inc()

    def repicked(self, service: str, reason: str) -> None:
        """An attempt failed without loss."""
        self._repicks.labels(service, reason).inc()

    def held(self, service: str, seconds: float) -> None:
        """A request left its line."""
        self._hold_seconds.labels(service).observe(seconds)

    def exposition(self) -> bytes:
        """Prometheus text."""
        now_ms = self._clock_ms()
        self._held.clear()
        self._endpoints.clear()
        for service in self._fleet.services():
            self._held.labels(service.key).set(self._hold.count(service.key))
            for seen, count in Tally(verdict(endpoint, now_ms) for endpoint in self._fleet.endpoints(service)).items():
                self._endpoints.labels(service.key, seen).set(count)
        return generate_latest(self._registry)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
