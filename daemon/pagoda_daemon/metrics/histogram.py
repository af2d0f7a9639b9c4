"""Histogram: counts by bucket, as cheap as an index and two additions; and Recent, what happened lately. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from pagoda_contracts.metrics import Metric


class Histogram:
    """`counts[i]` are the values up to `bounds[i]` and over the bound before; the last one has no bound."""

    __slots__ = ("bounds", "counts", "metric", "sum")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.bounds = metric.buckets
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def take(self, counts: Sequence[int], total: float) -> None:
        """Counts of another process so far, in the same buckets; empty if it has none yet."""
        if counts:
            self.counts[:] = counts
            self.sum = total


class Recent:
    """The values of the last `seconds`, at most `most` of them."""

    def __init__(self, seconds: float = 60.0, most: int = 512) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque(maxlen=most)
        self._p95 = 0.0
        self._dirty = False

    def add(self, value: float, now: float) -> None:
        self._values.append((now, value))
        self._dirty = True

    def p95(self, now: float) -> float:
        """The least value that 95 % do not exceed; 0 where there is none. Sorts only when something changed."""
        values = self._values
        while values and values[0][0] < now - self._seconds:
            values.popleft()
            self._dirty = True
        if self._dirty:
            ranked = sorted(value for _, value in values)
            self._p95 = ranked[math.ceil(0.95 * len(ranked)) - 1] if ranked else 0.0
            self._dirty = False
        return self._p95


class Rate:
    """How fast a counter grew over the last seconds, as seen by its reader: each read takes a sample."""

    def __init__(self, seconds: float = 10.0, apart: float = 0.5) -> None:
        self._seconds = seconds
        self._apart = apart
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, total: int, now: float) -> float:
        seen = self._seen
        while len(seen) > 1 and seen[1][0] <= now - self._seconds:
            seen.popleft()
        if not seen or now - seen[-1][0] >= self._apart:
            seen.append((now, total))
        then, before = seen[0]
        return (total - before) / (now - then) if now > then else 0.0
