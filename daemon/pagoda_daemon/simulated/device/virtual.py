"""VirtualWorker: a device that computes nothing, as fast as arrays allow: 256 rows in a tenth of a millisecond. No torch.

Gives the streams of `worker`, but keeps running sums where that one keeps tokens: each slot holds the sum up to its token, and
a step looks back at one slot per row, found through the block table. So a wrong table, copy or position still shows, as soon as it is read
through; and a step costs the same at any context. Its time is a `Pace`'s: waited for where it stands in for a device, only reported if the
clock is virtual (`simulated.replay`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.feedback import Feedback
from pagoda_daemon.simulated.device.worker import mixed, result_of

Milliseconds = Callable[[StepPlan], float]

_STRIDE = 40_503


class Metronome:
    """A device that does nothing but take its time, on a virtual clock: its tokens depend on row and place alone, so nothing need be
    kept. For whole traces, where the core's decisions count and not what is said."""

    def __init__(self, limits: WorkerLimits, pace: Milliseconds) -> None:
        self.limits = limits
        self.milliseconds = pace

    def compute(self, plan: StepPlan) -> StepResult:
        """The step's result, at once."""
        rows = plan.rows[plan.sample]
        return StepResult(rows, (plan.lengths[plan.sample] * _STRIDE + rows) % self.limits.vocab_size)


class VirtualWorker:
    """`pace` gives a step's time, `pause` spends it (seconds)."""

    def __init__(self, limits: WorkerLimits, pace: Milliseconds, pause: Callable[[float], object] | None = None) -> None:
        self.limits = limits
        self._pace = pace
        self._pause = pause or threading.Event().wait
        self._feedback = Feedback()
        # Pages of zeros cost nothing until written.
        self._sums = np.zeros((limits.blocks_total + 1, limits.block_size), np.uint64)  # one more than the core knows of

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.compute(plan)
        self._pause(self._pace(plan) / 1000.0)
        return result

    def compute(self, plan: StepPlan) -> StepResult:
        """The step's result, at once."""
        if plan.copies.size:
            self._sums[plan.copies[:, 1]] = self._sums[plan.copies[:, 0]]
        sums = self._prefix_sums(plan)
        last = sums[plan.starts[1:][plan.sample] - 1]
        result = result_of(plan, (last % np.uint64(self.limits.vocab_size)).astype(np.int32))
        self._feedback.note(result.rows, result.token_ids)
        return result

    def milliseconds(self, plan: StepPlan) -> float:
        """What the step takes on the device."""
        return self._pace(plan)

    def _prefix_sums(self, plan: StepPlan) -> NDArray[np.uint64]:
        """Write, and return, the sum up to each token fed."""
        size, counts, begins = self.limits.block_size, np.diff(plan.starts), plan.starts[:-1]
        fed = mixed(plan.positions, self._feedback.token_ids(plan))
        before = plan.positions[begins] - 1
        back = np.maximum(before, 0)
        known = self._sums[plan.block_tables[np.arange(plan.rows.size), back // size], back % size]
        known[before < 0] = 0
        sums = fed.cumsum(dtype=np.uint64)
        sums += np.repeat(known - (sums[begins] - fed[begins]), counts)
        rows = np.repeat(np.arange(plan.rows.size), counts)
        self._sums[plan.block_tables[rows, plan.positions // size], plan.positions % size] = sums
        return sums

    adapters = None

    def probe(self) -> None:
        """Nothing to warm, and nothing that could break."""
