"""Gaps: the times between two outputs of one request's answers, in as many counters as it takes to estimate their 95th percentile. Pure.

A histogram whose buckets grow by a fifth, from half a millisecond to two minutes. At most 73 counters, however long the answers are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, Self

_BOUNDS: Final = tuple(0.0005 * 2 ** (step / 4) for step in range(72))


class Gaps:
    """In seconds. The estimate is at most 19 % above the true value, and never above the longest."""

    __slots__ = ("_heard", "counts", "longest")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.longest = 0.0
        self._heard: dict[int, float] = {}

    def hear(self, answer: int, now: float) -> None:
        """Answer number `answer` said something. Its first output has no gap."""
        before = self._heard.get(answer)
        self._heard[answer] = now
        if before is None:
            return
        gap = now - before
        bucket = bisect_left(_BOUNDS, gap)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        if gap > self.longest:
            self.longest = gap

    def p95(self) -> float | None:
        """What 95 % do not exceed; None where there is no gap."""
        left = math.ceil(0.95 * sum(self.counts.values()))
        for bucket, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return self.longest if bucket == len(_BOUNDS) else min(self.longest, _BOUNDS[bucket])
        return None

    @classmethod
    def of(cls, several: Iterable[Gaps]) -> Self:
        """All of them together."""
        whole = cls()
        for one in several:
            for bucket, count in one.counts.items():
                whole.counts[bucket] = whole.counts.get(bucket, 0) + count
            whole.longest = max(whole.longest, one.longest)
        return whole
