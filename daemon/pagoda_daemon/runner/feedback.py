"""Feedback: the tokens that rows sampled last, so that a plan made before they were known can feed them. One per worker; no torch.

A plan is made one step ahead with LAST_SAMPLED in the place of such tokens. Plans come in order, so what the row sampled last is meant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan


class Feedback:
    """By row; grows with the highest row seen."""

    def __init__(self) -> None:
        self._last = np.zeros(64, np.int32)

    def token_ids(self, plan: StepPlan) -> Ints:
        """The plan's tokens, all of them known."""
        unknown = plan.token_ids == LAST_SAMPLED
        if not unknown.any():
            return plan.token_ids
        row_of = np.repeat(plan.rows, np.diff(plan.starts))
        ids = plan.token_ids.copy()
        ids[unknown] = self._last[row_of[unknown]]
        return ids

    def complete(self, plan: StepPlan) -> StepPlan:
        """`plan` with all its tokens known."""
        ids = self.token_ids(plan)
        return plan if ids is plan.token_ids else replace(plan, token_ids=ids)

    def note(self, rows: Ints, token_ids: Ints) -> None:
        """`rows` have sampled `token_ids`."""
        if rows.size and int(rows.max()) >= self._last.size:
            self._last = np.concatenate([self._last, np.zeros(int(rows.max()) + 1, np.int32)])
        self._last[rows] = token_ids
