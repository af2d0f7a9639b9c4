"""Gaps: the times between two outputs of one request's answers, in as many counters as it takes to tell their 95th percentile. Pure.

A histogram whose buckets grow by a fifth, from half a millisecond to two minutes. At most 73 counters, however long the answers are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final, Self

_LEAST: Final = 0.0005
_PER_OCTAVE: Final = 4
_LAST: Final = 72  # without a bound


class Gaps:
    """In seconds. What is told is at most 19 % above what it was, and never above the longest."""

    __slots__ = ("_heard", "counts", "longest")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.longest = 0.0
        self._heard: dict[int, float] = {}

    def hear(self, answer: int, now: float) -> None:
        """Answer number `answer` said something. Its first output has no gap."""
        before = self._heard.get(answer)
        self._heard[answer] = now
        if before is not None:
            self.counts[_bucket(now - before)] += 1
            self.longest = max(self.longest, now - before)

    def p95(self) -> float | None:
        """What 95 % do not exceed; None where there is no gap."""
        left = math.ceil(0.95 * self.counts.total())
        for bucket, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return self.longest if bucket == _LAST else min(self.longest, _LEAST * 2 ** (bucket / _PER_OCTAVE))
        return None

    @classmethod
    def of(cls, several: Iterable[Gaps]) -> Self:
        """All of them together."""
        whole = cls()
        for one in several:
            whole.counts.update(one.counts)
            whole.longest = max(whole.longest, one.longest)
        return whole


def _bucket(gap: float) -> int:
    """Bucket i holds what is over the bound of i - 1 and up to its own, which is _LEAST times 2 to the power of i / _PER_OCTAVE."""
    return 0 if gap <= _LEAST else min(_LAST, math.ceil(_PER_OCTAVE * math.log2(gap / _LEAST)))
