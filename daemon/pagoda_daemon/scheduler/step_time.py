"""StepTime: how long a step of so many tokens will probably last. Fed by `commit` with the injected clock; read for the heartbeat.

One running average per power of two of tokens: a step's time is flat in tokens while memory-bound, then linear, and a doubling
is as fine as the verdict "this step is overdue" needs.
"""

from __future__ import annotations

_WEIGHT = 0.2


class StepTime:
    """Running averages in milliseconds."""

    def __init__(self) -> None:
        self._mean: dict[int, float] = {}

    def observe(self, tokens: int, took_ms: float) -> None:
        bucket = tokens.bit_length()
        mean = self._mean.get(bucket, took_ms)
        self._mean[bucket] = mean + _WEIGHT * (took_ms - mean)

    def predict(self, tokens: int) -> int:
        """Whole milliseconds, at least 1; 0 while nothing was observed. An unseen size is scaled from the next smaller one."""
        bucket = tokens.bit_length()
        if not self._mean:
            return 0
        smaller = [seen for seen in self._mean if seen <= bucket]
        nearest = max(smaller) if smaller else min(self._mean)
        return max(1, round(self._mean[nearest] * 2.0 ** max(0, bucket - nearest)))
