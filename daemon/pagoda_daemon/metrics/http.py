"""HttpCounts: answers over HTTP by route, method and status. A client cannot add a series: unknown routes are "none", unknown methods
"other". Written by `api/http/measured.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pagoda_contracts import metrics as names

from pagoda_daemon.metrics.histogram import Histogram

_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class HttpCounts:
    """Since the front began."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, str]] = Counter()
        self.statuses: Counter[str] = Counter()
        self.seconds: dict[tuple[str, str], Histogram] = {}

    def add(self, handler: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        self.answered[handler, method, f"{status // 100}xx"] += 1
        self.statuses[str(status)] += 1
        histogram = self.seconds.get((handler, method))
        if histogram is None:
            histogram = self.seconds[handler, method] = Histogram(names.HTTP_SECONDS)
        histogram.add(seconds)
