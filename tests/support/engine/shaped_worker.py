"""ShapedWorker: a simulated device on which a shaped row's next token depends on the tokens that the plan brings, as penalties do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.simulated.device.worker import SimulatedWorker, next_token


class ShapedWorker(SimulatedWorker):
    """What follows is made of the tokens backwards, so that it differs from what the KV alone would say."""

    def execute(self, plan: StepPlan) -> StepResult:
        plan = self._feedback.complete(plan)
        last = plan.token_ids[plan.starts[1:] - 1][plan.sample]
        result = super().execute(plan)
        for row in plan.sampling.shaped:
            tokens = np.append(row.tokens[:-1], last[row.at])
            result.token_ids[row.at] = next_token(tokens[::-1], self.limits.vocab_size)
        self._feedback.note(result.rows, result.token_ids)
        return result


def shaped_tokens(prompt: Sequence[int], count: int, vocab_size: int) -> tuple[int, ...]:
    """The stream that a shaped request with `prompt` must get."""
    tokens = np.asarray(prompt, np.int64)
    for _ in range(count):
        tokens = np.append(tokens, next_token(tokens[::-1], vocab_size))
    return tuple(tokens[len(prompt) :].tolist())
