"""The gateway's metrics in a registry of their own. Gauges are computed at each scrape, from the endpoint cache and the hold queue."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable

from pagoda_contracts import gateway_metrics as words
from pagoda_contracts.metrics import Metric
from pagoda_contracts.resources.apikeys import Refusal
from pagoda_contracts.usage import Used
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.requests.pool_metrics import PoolMetrics
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
        self._left_out = _counter(words.GATEWAY_LEFT_OUT, self._registry)
        self._continued = _counter(words.GATEWAY_CONTINUED, self._registry)
        self._overflowed = _counter(words.GATEWAY_OVERFLOWED, self._registry)
        self._tokens = _counter(words.GATEWAY_TOKENS, self._registry)
        self._tokens_of: dict[tuple[str, ...], tuple[Counter, ...]] = {}  # a look-up of one series takes 3 µs, and a request has three
        self._over_quota = _counter(words.GATEWAY_OVER_QUOTA, self._registry)
        self._quota_store: Gauge | None = None
        self._hold_seconds = _histogram(words.GATEWAY_HOLD_SECONDS, self._registry)
        self._held = _gauge(words.GATEWAY_HELD, self._registry)
        self._endpoints = _gauge(words.GATEWAY_ENDPOINTS, self._registry)
        self._duration = _histogram(words.GATEWAY_DURATION, self._registry)
        self._ttft = _histogram(words.GATEWAY_TTFT, self._registry)
        self._pools = PoolMetrics(self._registry)
        self._scheduler = [_histogram(metric, self._registry) for metric in words.SCHEDULER_SECONDS]

    def answered(self, service: str, code: int) -> None:
        """A request ended. 499: the client left. A stream whose replica died counts as 502, one that the
        gateway's deadline ended as 503."""
        self._requests.labels(service, str(code)).inc()

    def unauthenticated(self, reason: Refusal) -> None:
        """A request was refused for its API key."""
        self._unauthenticated.labels(reason).inc()

    def used(self, labels: Iterable[str], used: Used) -> None:
        """A request ended that used so many tokens. The caller bounds the labels."""
        key = tuple(labels)
        if (counters := self._tokens_of.get(key)) is None:
            counters = self._tokens_of[key] = tuple(self._tokens.labels(*key, kind) for kind in ("prompt", "cached", "answer"))
        for counter, tokens in zip(counters, (used.prompt - used.cached, used.cached, used.answer), strict=True):
            counter.inc(tokens)

    def over_quota(self, quota: str, limit: str) -> None:
        """A request was refused by a quota."""
        self._over_quota.labels(quota, limit).inc()

    def quota_store(self, up: bool) -> None:
        """The common store of quotas answers, or does not. Without a store there is no such metric."""
        if self._quota_store is None:
            self._quota_store = _gauge(words.GATEWAY_QUOTA_STORE, self._registry)
        self._quota_store.set(up)

    def repicked(self, service: str, reason: str) -> None:
        """An attempt failed without loss, and the request was picked again."""
        self._repicks.labels(service, reason).inc()

    def left_out(self, service: str) -> None:
        """A replica is left out for a while."""
        self._left_out.labels(service).inc()

    def continued(self, service: str, *, exact: bool) -> None:
        """A stream goes on at another replica."""
        self._continued.labels(service, "same" if exact else "other").inc()

    def overflowed(self, service: str, target: str, result: str) -> None:
        """A request went to an API outside of the cluster, or should have. The installation names the targets."""
        self._overflowed.labels(service, target, result).inc()

    def held(self, service: str, seconds: float) -> None:
        """A request left the hold queue."""
        self._hold_seconds.labels(service).observe(seconds)

    def chosen(self, seconds: float) -> None:
        """A replica was chosen for a request. That took so long."""
        for histogram in self._scheduler:
            histogram.observe(seconds)

    def took(self, service: str, seconds: float, ttft_seconds: float | None) -> None:
        """A request that a replica of this service was asked for has ended."""
        self._duration.labels(service).observe(seconds)
        if ttft_seconds is not None:
            self._ttft.labels(service).observe(ttft_seconds)

    def exposition(self) -> bytes:
        """Returns the metrics as Prometheus text."""
        now_ms = self._clock_ms()
        self._held.clear()
        self._endpoints.clear()
        self._pools.clear()
        for service in self._cache.services():
            endpoints, held = self._cache.endpoints(service), self._queue.count(service.key)
            self._held.labels(service.key).set(held)
            self._pools.update(service, endpoints, held, now_ms)
            for verdict, count in Counts(judge(endpoint, now_ms) for endpoint in endpoints).items():
                self._endpoints.labels(service.key, verdict).set(count)
        return generate_latest(self._registry)


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
