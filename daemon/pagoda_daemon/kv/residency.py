"""Residency: how long KV blocks hold one content, how long it lay unused before it went, and how soon it was wanted again. Pure accounts
for the metrics; owned by `kv.pool`; each heartbeat carries its totals.

About a thousand blocks stand for all, so that a pool of any size costs the same: 25 ns per block taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from pagoda_contracts.metrics import BLOCK_IDLE, BLOCK_LIFETIME, BLOCK_REUSE_GAP

from pagoda_daemon.core.messages import Residence

_WATCHED: Final = 1024


class _Spans:
    """Seconds by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, milliseconds: float) -> None:
        seconds = milliseconds / 1000
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def totals(self) -> tuple[tuple[int, ...], float]:
        return tuple(self._counts), self._sum


class Residency:
    """The caller sets `now_ms` before blocks move. Every `stride`-th block is watched."""

    def __init__(self, total: int) -> None:
        self.now_ms = 0.0
        self.stride = max(1, total // _WATCHED)
        self._born: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._lifetime, self._idle, self._gap = (_Spans(metric.buckets) for metric in (BLOCK_LIFETIME, BLOCK_IDLE, BLOCK_REUSE_GAP))

    def evicted(self, blocks: Iterable[int]) -> None:
        """Their content is gone; a block without content that is taken again does not count."""
        for block in blocks:
            if block % self.stride == 0 and block in self._born:
                self._lifetime.add(self.now_ms - self._born.pop(block))
                self._idle.add(self.now_ms - self._used.pop(block))

    def taken(self, blocks: Iterable[int]) -> None:
        """For new content."""
        for block in blocks:
            if block % self.stride == 0:
                self._born[block] = self._used[block] = self.now_ms

    def taken_up(self, blocks: Iterable[int]) -> None:
        """What they hold is wanted once more."""
        for block in blocks:
            if block % self.stride == 0 and block in self._used:
                self._gap.add(self.now_ms - self._used[block])
                self._used[block] = self.now_ms

    def totals(self) -> Residence:
        return Residence(*self._lifetime.totals(), *self._idle.totals(), *self._gap.totals())
