"""FaultyWorker: any worker, with faults at chosen steps. Made by `engine.build` where `DaemonConfig.testing.faults` asks, never else.

Shows from the outside that a hang, an error, a broken device, a row of NaN and a dead process are told apart and reported in time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import structlog
from pagoda_contracts.launch import Fault

from pagoda_daemon.core.arrays import Bools
from pagoda_daemon.core.batch import NOT_FINITE, RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.worker import Worker

_log = structlog.get_logger()

EXIT_CODE = 9


class InjectedFault(Exception):
    """Raised where a device would raise."""


_CURSES: Final[dict[str, Exception]] = {"poison": InjectedFault("cursed"), "oom": MemoryError("no memory for this step")}

_KNOWN_BY: Final = 16


class FaultyWorker:
    """Counts the steps in which a request is computed; `hang` never returns. A step of nothing but a deep check is not counted, so that a
    fault comes where a test wants it. Computes one step at a time, also where its worker could launch them."""

    def __init__(self, worker: Worker, faults: Iterable[Fault]) -> None:
        self._worker = worker
        self._faults = {fault.at_step: fault.kind for fault in faults}
        self._steps = 0
        self._broken = False
        self._wrong = False
        self._cursed: dict[bytes, Exception] = {}
        self._curse_next: Exception | None = None

    @property
    def limits(self) -> WorkerLimits:
        return self._worker.limits

    @property
    def adapters(self) -> AdapterStore | None:
        return self._worker.adapters

    def execute(self, plan: StepPlan) -> StepResult:
        kind = None
        if self._of_requests(plan).any():
            kind = self._faults.get(self._steps)
            self._steps += 1
            if kind is not None and kind not in _CURSES:
                _log.warning("fault_injected", kind=kind)  # the line's time is when it struck
        self._curse(plan, kind)
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
            case "wrong":
                self._wrong = True
        result = self._worker.execute(plan)
        return replace(result, token_ids=(result.token_ids + 1) % self.limits.vocab_size) if self._wrong else result

    def probe(self) -> None:
        if self._broken:
            raise InjectedFault("the device stays broken")
        self._worker.probe()

    def _of_requests(self, plan: StepPlan) -> Bools:
        mine: Bools = plan.block_tables[:, 0] < self.limits.blocks_total
        return mine

    def _curse(self, plan: StepPlan, kind: str | None) -> None:
        """The first prompt that begins in the marked step or after it makes that step raise, and every one in which it is tried again; it
        is known by its first tokens."""
        begins = np.flatnonzero((plan.positions[plan.starts[:-1]] == 0) & self._of_requests(plan)).tolist()
        prompts = [plan.token_ids[plan.starts[i] : plan.starts[i + 1]][:_KNOWN_BY].tobytes() for i in begins]
        self._curse_next = _CURSES.get(kind or "", self._curse_next)
        if self._curse_next is not None and prompts:
            self._cursed[prompts[0]], self._curse_next = self._curse_next, None
            _log.warning("fault_injected", kind="curse")
        for prompt in prompts:
            if prompt in self._cursed:
                raise self._cursed[prompt]


def _spoilt(result: StepResult) -> StepResult:
    """The first row that sampled has no finite answer."""
    if not result.rows.size:
        return result
    errors = (*result.errors, RowError(int(result.rows[0]), NOT_FINITE))
    return replace(result, rows=result.rows[1:], token_ids=result.token_ids[1:], errors=errors)
