"""NativeWorker: a decoder and its KV pages in C++ on the CPU. Built by `runner.build` where the machine and the model allow it.

The pool has one block more than the core knows of: `probe` computes into it. A row's tokens do not depend on what else is in the step.
"""

from __future__ import annotations

import numpy as np
import torch
from pagoda_kernels.cpu.native import Batch, NativeDecoder, Output

from pagoda_daemon.batch import RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.sampler import Choice, sample


class NativeWorker:
    """Executes plans in the native decoder; not thread-safe."""

    def __init__(self, decoder: NativeDecoder, limits: WorkerLimits) -> None:
        self.limits = limits
        self.decoder = decoder

    def execute(self, plan: StepPlan) -> StepResult:
        output = self.decoder.step(batch_of(plan))
        rows = plan.rows[plan.sample]
        tokens = output.best if not plan.temperature.any() else _sampled(output, plan)
        if output.finite.all():
            return StepResult(rows, tokens)
        errors = tuple(RowError(row, "the model's output is not finite") for row in rows[~output.finite].tolist())
        return StepResult(rows[output.finite], tokens[output.finite], errors)


def batch_of(plan: StepPlan) -> Batch:
    """The step as the native ops want it."""
    return Batch(
        ids=plan.token_ids,
        positions=plan.positions,
        rows=np.repeat(np.arange(plan.rows.size, dtype=np.int32), np.diff(plan.starts)),
        tables=np.ascontiguousarray(plan.block_tables),
        wanted=plan.starts[1:][plan.sample] - 1,
    )


@torch.inference_mode()
def _sampled(output: Output, plan: StepPlan) -> np.ndarray:
    return sample(torch.from_numpy(output.logits), Choice.of(plan))[0]
