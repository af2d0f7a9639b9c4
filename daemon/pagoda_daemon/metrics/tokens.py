"""TokenMeter: tokens and the time between them, counted once per step and not once per token. Written by `engine.client`.

Rows that were in the step before share their gap, so a step of 32 rows is one or two observations: 0.35 µs per token in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pagoda_contracts import metrics as names

from pagoda_daemon.core.messages import RowOutput
from pagoda_daemon.metrics.histogram import Histogram

_NEVER: Final = float("inf")  # what never spoke has a gap of minus infinity, which is no gap


class TokenMeter:
    """`heard` has the time of the last output of each answer that is under way."""

    def __init__(self) -> None:
        self.tokens = 0
        self.gaps = Histogram(names.INTER_TOKEN_LATENCY)
        self.fine_gaps = Histogram(names.FINE_INTER_TOKEN)
        self._heard: dict[str, float] = {}

    def step(self, outputs: Iterable[RowOutput], now: float) -> None:
        """What one message of the engine brought."""
        heard, gaps, tokens = self._heard, dict[float, int](), 0
        for row in outputs:
            key = f"{row.request_id}\x1f{row.index}" if row.index else row.request_id
            if row.token_ids:
                tokens += len(row.token_ids)
                gap = now - heard.get(key, _NEVER)
                gaps[gap] = gaps.get(gap, 0) + 1
                heard[key] = now
            if row.finish_reason is not None:
                heard.pop(key, None)
        self.tokens += tokens
        gaps.pop(-_NEVER, None)
        for gap, times in gaps.items():
            self.gaps.add(gap, times)
            self.fine_gaps.add(gap, times)

    @property
    def open(self) -> int:
        """Answers under way that have spoken."""
        return len(self._heard)
