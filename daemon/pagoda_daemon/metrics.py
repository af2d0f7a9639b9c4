"""/metrics: one collector that reads the replica's state when scraped, in a registry of its own.

Called by `api/`. Names, help and buckets come from contracts; nothing is counted twice, nothing global is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

from pagoda_contracts import metrics as names
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pagoda_daemon.health import Replica

_ENGINE: Final = "0"  # one engine per replica


class Counts:
    """What the front counts itself. Written by the event loop only."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter()
        self.first_token_sum = 0.0
        self._first_token = [0] * (len(names.TIME_TO_FIRST_TOKEN.buckets) + 1)

    def first_token(self, seconds: float) -> None:
        self.first_token_sum += seconds
        self._first_token[bisect_left(names.TIME_TO_FIRST_TOKEN.buckets, seconds)] += 1

    def first_token_buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition wants them."""
        total, out = 0, []
        for bound, count in zip((*names.TIME_TO_FIRST_TOKEN.buckets, float("inf")), self._first_token, strict=True):
            total += count
            out.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return out


class DaemonCollector(Collector):
    """Families of `contracts.metrics.DAEMON` from the state at hand."""

    def __init__(self, model_name: str, replica: Replica, counts: Counts) -> None:
        self._labels = (model_name, _ENGINE)
        self._replica = replica
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        stats, counts = self._replica.stats, self._counts
        yield self._gauge(names.REQUESTS_RUNNING, stats.running)
        yield self._gauge(names.REQUESTS_WAITING, stats.waiting)
        yield self._gauge(names.KV_USAGE, stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0)
        if limits := self._replica.limits:
            yield self._gauge(names.CACHE_CONFIG, 1, str(limits.block_size), str(limits.blocks_total))
        yield self._counter(names.PROMPT_TOKENS, {(): counts.prompt_tokens})
        yield self._counter(names.GENERATION_TOKENS, {(): counts.generation_tokens})
        yield self._counter(names.PREEMPTIONS, {(): stats.preemptions})
        yield self._counter(names.PREFIX_QUERIES, {(): stats.prompt_tokens})
        yield self._counter(names.PREFIX_HITS, {(): stats.reused_tokens})
        yield self._counter(names.REQUEST_SUCCESS, {(reason,): count for reason, count in counts.finished.items()})
        first = HistogramMetricFamily(
            names.TIME_TO_FIRST_TOKEN.name, names.TIME_TO_FIRST_TOKEN.help, labels=names.TIME_TO_FIRST_TOKEN.labels
        )
        first.add_metric(self._labels, counts.first_token_buckets(), counts.first_token_sum)
        yield first

    def _gauge(self, metric: names.Metric, value: float, *labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        family.add_metric([*self._labels, *labels], value)
        return family

    def _counter(self, metric: names.Metric, values: dict[tuple[str, ...], int]) -> CounterMetricFamily:
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            family.add_metric([*self._labels, *labels], value)
        return family


class Exposition:
    """The text of /metrics."""

    def __init__(self, model_name: str, replica: Replica, counts: Counts) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(DaemonCollector(model_name, replica, counts))

    def text(self) -> bytes:
        return generate_latest(self._registry)
