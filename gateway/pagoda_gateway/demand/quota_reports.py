"""QuotaReports: when a watcher is sent what tenants used of their quotas' windows. One for each stream of server.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pagoda_contracts.pb.demand_pb2 import QuotaReport, QuotaUsage

from pagoda_gateway.limits.ledger import WindowCount

# The operator writes it into objects once a minute at most.
_PERIOD_MS: Final = 10_000


class QuotaReports:
    """`windows`: this gateway's counts."""

    def __init__(self, windows: Callable[[], list[WindowCount]]) -> None:
        self._windows = windows
        self._sent: QuotaReport | None = None
        self._looked_ms = 0

    def due(self, now_ms: int) -> QuotaReport | None:
        """Returns the report at first, and later every 10 s if it changed; else None."""
        if self._sent is not None and now_ms - self._looked_ms < _PERIOD_MS:
            return None
        self._looked_ms = now_ms
        report = QuotaReport(windows=map(_usage, self._windows()))
        if report == self._sent:
            return None
        self._sent = report
        return report


def _usage(count: WindowCount) -> QuotaUsage:
    return QuotaUsage(
        quota=count.quota, window_ms=count.length_ms, start_unix_ms=count.start_ms, requests=count.requests, tokens=count.tokens
    )
