"""Overlap: the steps of an AsyncWorker, each launched while earlier ones may still compute. Used by `engine.device` only.

The device's thread launches; a second one, "collect", waits for the ends in order and reports them. It does what it is given in one queue,
one thing after the other, so whatever the device's thread puts there comes after the end of every step launched before.

A step that raises, at launch or at its end, changes nothing for the next one, which may compute already: it is launched, and its end is
waited for, as if the failed one had passed. What it computed for the failed step's rows is worth nothing, and `scheduler.commit` drops it
by their epochs; its other rows count. Only the probe comes later than it does for a worker that computes at once: after that next step
instead of before it, since it needs a device with nothing under way. Until then the failure, and all that ends after it, is held back, and
several failures share one verdict.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.engine.outcomes import Outcome, StepFailed, passes_probe
from pagoda_daemon.runner.worker import AsyncWorker, Pending


class Overlap:
    """Its public methods are for the device's thread. `between_steps` does something there after `settle`; `report` is called on the
    other thread."""

    def __init__(
        self, worker: AsyncWorker, report: Callable[[Outcome], object], between_steps: Callable[[Callable[[], object]], object]
    ) -> None:
        self._worker = worker
        self._report = report
        self._between_steps = between_steps
        self._to_collect: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._held: list[StepResult | Exception] = []  # the other thread's; from a failure until its verdict, else empty
        threading.Thread(target=self._collect, name="collect", daemon=True).start()

    def launch(self, plan: StepPlan) -> None:
        """Let `plan` compute after those launched before."""
        try:
            pending = self._worker.launch(plan)
        except Exception as error:  # noqa: BLE001  reported in its turn
            self._to_collect.put(partial(self._ended, error))
        else:
            self._to_collect.put(partial(self._await, pending))

    def settle(self) -> None:
        """Until every step launched has ended."""
        settled = threading.Event()
        self._to_collect.put(settled.set)
        settled.wait()

    def stop(self) -> None:
        """End the other thread after the steps launched; all of them are reported."""
        self.settle()
        if self._held:  # the other thread waits for this one: nobody else looks at it now
            self._probe()
        self._to_collect.put(None)

    def _probe(self) -> None:
        self._to_collect.put(partial(self._judge, alive=passes_probe(self._worker)))

    def _collect(self) -> None:
        while (task := self._to_collect.get()) is not None:
            task()

    def _await(self, pending: Pending) -> None:
        try:
            end: StepResult | Exception = pending.result()
        except Exception as error:  # noqa: BLE001  whatever a device raises ends this step's requests only
            end = error
        self._ended(end)

    def _ended(self, end: StepResult | Exception) -> None:
        if isinstance(end, StepResult) and not self._held:
            self._report(end)
            return
        self._held.append(end)
        if len(self._held) == 1:
            self._between_steps(self._probe)

    def _judge(self, *, alive: bool) -> None:
        held, self._held = self._held, []
        for end in held:
            self._report(end if isinstance(end, StepResult) else StepFailed(end, alive))
