"""Worker: what the engine's loop needs of whatever computes. Declared here for its two kinds, `model_worker` and `simulated`.

A worker keeps no request: everything it knows of one is in the plan and in the KV that earlier plans made it write.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.adapters import AdapterStore


class Worker(Protocol):
    """Called from one thread only, the device's."""

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


class Pending(Protocol):
    """A step on its way through the device."""

    def result(self) -> StepResult:
        """Wait until the device has it; an exception fails every row of the step. Called once, in the order of the launches, on another
        thread than the device's: it finds nothing there of what torch keeps per thread, and later plans may be launched meanwhile."""
        ...


@runtime_checkable
class AsyncWorker(Worker, Protocol):
    """A worker whose device computes by itself. The engine asks once, after the load, whether a worker is one, and then calls `launch` for
    every step; `probe`, and changes of `adapters`, come only when no step is on its way."""

    def launch(self, plan: StepPlan) -> Pending:
        """Give the device one step and return without waiting for it, also while the step before computes; at most two are on their way.
        An exception fails every row of the step. After a step that failed, the next may ask for tokens that were never sampled
        (LAST_SAMPLED): rows for which it does are dropped, so any id of the vocabulary will do, but the step has to end and the others
        must be right."""
        ...
