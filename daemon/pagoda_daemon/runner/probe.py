"""The plan that a worker computes to show that it works. Called by the workers that have a model."""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.batch import StepPlan


def one_token(block: int) -> StepPlan:
    """Token 0 at position 0 of `block`, greedy."""
    zero = np.zeros(1, np.int32)
    return StepPlan(
        step=0,
        rows=zero,
        starts=np.array([0, 1], np.int32),
        token_ids=zero,
        positions=zero,
        block_tables=np.array([[block]], np.int32),
        sample=np.ones(1, np.bool_),
    )
