"""FaultyWorker: any worker, with faults at chosen steps. Made by `runner.build` where `DaemonConfig.testing.faults` asks, never else.

Shows from the outside that a hang, an error, a broken device, a row of NaN and a dead process are told apart and told in time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import replace

from pagoda_contracts.launch import Fault

from pagoda_daemon.batch import NOT_FINITE, RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.worker import Worker

EXIT_CODE = 9


class InjectedFault(Exception):
    """Raised where a device would raise."""


class FaultyWorker:
    """Counts the steps it is asked for; `hang` never returns."""

    def __init__(self, worker: Worker, faults: Iterable[Fault]) -> None:
        self._worker = worker
        self._faults = {fault.at_step: fault.kind for fault in faults}
        self._steps = 0
        self._broken = False

    @property
    def limits(self) -> WorkerLimits:
        return self._worker.limits

    def execute(self, plan: StepPlan) -> StepResult:
        kind = self._faults.get(self._steps)
        self._steps += 1
        match kind:
            case "hang":
                threading.Event().wait()
            case "exit":
                os._exit(EXIT_CODE)
            case "error" | "fatal":
                self._broken = kind == "fatal"
                raise InjectedFault(f"step {self._steps - 1}")
            case "nan":
                return _spoilt(self._worker.execute(plan))
        return self._worker.execute(plan)

    def probe(self) -> None:
        if self._broken:
            raise InjectedFault("the device stays broken")
        self._worker.probe()


def _spoilt(result: StepResult) -> StepResult:
    """The first row that sampled has no finite answer."""
    if not result.rows.size:
        return result
    errors = (*result.errors, RowError(int(result.rows[0]), NOT_FINITE))
    return replace(result, rows=result.rows[1:], token_ids=result.token_ids[1:], errors=errors)
