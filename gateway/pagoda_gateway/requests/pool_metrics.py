"""PoolMetrics: one service as llm-d's endpoint picker reports one pool, under its names and under the older ones of its predecessor.

Autoscalers and dashboards that are made for that picker read them unchanged. Gauges, computed at each scrape; called by metrics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from pagoda_contracts import gateway_metrics as words
from prometheus_client import CollectorRegistry, Gauge

from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.verdict import Verdict, judge
from pagoda_gateway.watch.services import Service


class PoolMetrics:
    """The pool's name is the service's key. Averages are those of its ready endpoints, 0 if there is none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {metric.name: Gauge(metric.name, metric.help, metric.labels, registry=registry) for metric in words.GATEWAY_POOL}

    def clear(self) -> None:
        """Forgets all services: deleted ones have no series."""
        for gauge in self._gauges.values():
            gauge.clear()

    def update(self, service: Service, endpoints: Sequence[Endpoint], held: int, now_ms: float) -> None:
        """Sets one service's gauges."""
        frames = [one.frame for one in endpoints if one.frame is not None and judge(one, now_ms) == Verdict.READY]
        used = [frame.blocks_used / frame.blocks_total if frame.blocks_total else 0.0 for frame in frames]
        for metric in words.POOL_AVERAGE_QUEUE:
            self._gauges[metric.name].labels(service.key).set(fmean([frame.waiting for frame in frames] or [0]))
        for metric in words.POOL_AVERAGE_KV:
            self._gauges[metric.name].labels(service.key).set(fmean(used or [0.0]))
        for metric in words.POOL_READY:
            self._gauges[metric.name].labels(service.key).set(len(frames))
        model = service.served_names[0] if service.served_names else ""
        for metric in words.POOL_HELD:
            self._gauges[metric.name].labels("", "0", service.key, model, model).set(held)
