"""ProcessUse: what the process that answers /metrics uses, as Prometheus clients report it. On other systems than Linux: no series."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.metrics import DAEMON_PROCESS, Metric
from prometheus_client import ProcessCollector

_FRESH_S: Final = 1.0  # it takes 0.25 ms, a scrape without it 0.6 ms, and pickers scrape 20 times a second


class ProcessUse:
    """Read at most once a second."""

    def __init__(self) -> None:
        self._collector = ProcessCollector(registry=None)
        self._read_at = float("-inf")
        self._found: dict[Metric, float] = {}

    def at(self, now: float) -> dict[Metric, float]:
        """At `now` of the monotonic clock."""
        if now - self._read_at >= _FRESH_S:
            found = {family.name: family.samples[0].value for family in self._collector.collect()}
            self._found = {metric: found[metric.name] for metric in DAEMON_PROCESS if metric.name in found}
            self._read_at = now
        return self._found
