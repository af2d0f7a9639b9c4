"""Worker: what the engine's loop needs of whatever computes. Declared here for its two kinds, `model_worker` and `simulated`.

A worker keeps no request: everything it knows of one is in the plan and in the KV that earlier plans made it write.
"""

from __future__ import annotations

from typing import Protocol

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.adapters import AdapterStore


class Worker(Protocol):
    """Called from one thread only."""

    @property
    def limits(self) -> WorkerLimits:
        """What it can hold; fixed once loaded."""
        ...

    @property
    def adapters(self) -> AdapterStore | None:
        """The LoRA adapters that it holds; None where it takes none."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. What concerns one row goes into `StepResult.errors`; an exception fails every row of the step."""
        ...

    def probe(self) -> None:
        """One token through the whole path into a block that no plan names: warms up, and after an exception tells whether the
        device still works. Raises if it does not."""
        ...
