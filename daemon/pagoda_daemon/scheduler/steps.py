"""Steps: how long they took and how many tokens they computed, by bucket, and what went wrong in them. Kept by `scheduler.state`, told
with each heartbeat; half a microsecond per step."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from pagoda_contracts.metrics import ITERATION_TOKENS, STEP_SECONDS

from pagoda_daemon.nouns.messages import Residence, Tally

_TOKENS: Final = ITERATION_TOKENS.buckets
_SECONDS: Final = STEP_SECONDS.buckets


class Steps:
    """Since the engine began."""

    def __init__(self) -> None:
        self._tokens = [0] * (len(_TOKENS) + 1)
        self._seconds = [0] * (len(_SECONDS) + 1)
        self._tokens_sum = 0
        self._seconds_sum = 0.0
        self.corrupted = 0

    def add(self, tokens: int, seconds: float) -> None:
        self._tokens[bisect_left(_TOKENS, tokens)] += 1
        self._tokens_sum += tokens
        self._seconds[bisect_left(_SECONDS, seconds)] += 1
        self._seconds_sum += seconds

    def tally(self, deferred: int, residence: Residence) -> Tally:
        steps = (tuple(self._tokens), self._tokens_sum, tuple(self._seconds), self._seconds_sum)
        return Tally(*steps, self.corrupted, deferred, residence)
