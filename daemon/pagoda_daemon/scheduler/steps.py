"""Steps: how long they took and how many tokens they computed, by bucket, and what went wrong in them. Kept by `scheduler.state`, sent
with each heartbeat; a microsecond per step of decodes, ten with prompts."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np
from pagoda_contracts.metrics import ITERATION_TOKENS, STEP_SECONDS

from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.core.messages import Computed, Residence, Tally

_TOKENS: Final = ITERATION_TOKENS.buckets
_SECONDS: Final = STEP_SECONDS.buckets


class Steps:
    """Since the engine began."""

    def __init__(self) -> None:
        self._tokens = [0] * (len(_TOKENS) + 1)
        self._seconds = [0] * (len(_SECONDS) + 1)
        self._tokens_sum = 0
        self._seconds_sum = 0.0
        self._sampled = self._read = self._pairs = 0
        self.corrupted = self.compiled = 0

    def add(self, plan: StepPlan, context: int, seconds: float) -> None:
        """`context` counts the tokens that the plan's rows look back at, their own included."""
        tokens = plan.tokens
        self._read += context
        if tokens == plan.rows.size:  # nothing but decodes, as most steps
            self._sampled += tokens
            self._pairs += context
        else:
            counts = np.diff(plan.starts).astype(np.int64)
            self._sampled += int(np.count_nonzero(plan.sample))
            self._pairs += int((counts * (2 * plan.lengths - counts + 1)).sum()) // 2
        self._count(tokens, seconds)

    def _count(self, tokens: int, seconds: float) -> None:
        self._tokens[bisect_left(_TOKENS, tokens)] += 1
        self._tokens_sum += tokens
        self._seconds[bisect_left(_SECONDS, seconds)] += 1
        self._seconds_sum += seconds

    def tally(self, deferred: int, residence: Residence) -> Tally:
        steps = (tuple(self._tokens), self._tokens_sum, tuple(self._seconds), self._seconds_sum)
        computed = Computed(self._tokens_sum, self._sampled, self._read, self._pairs)
        return Tally(*steps, self.corrupted, deferred, residence, computed, self.compiled)
