"""run: a trace through the production core on a virtual clock. Called by `command`, bench and tests.

submit, expire, plan and commit are what the engine's loop calls; only the clock and the device are made up: a step lasts what its worker
says, and a request that arrives meanwhile is heard when it is over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.core.messages import RowOutput
from pagoda_daemon.scheduler.admission import Arrival, expire, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.replay.trace import Job, TokenPool


class TimedWorker(Protocol):
    """A worker that reports a step's time instead of spending it."""

    def compute(self, plan: StepPlan) -> StepResult:
        """The step's result, at once."""
        ...

    def milliseconds(self, plan: StepPlan) -> float:
        """What the step takes."""
        ...


@dataclass(slots=True)
class Record:
    """One job's fate. Times are virtual milliseconds; `first_ms` is that of the first answer's first token."""

    job: Job
    first_ms: float | None = None
    last_ms: float = 0.0
    tokens: int = 0
    open_answers: int = 1
    worst_gap_ms: float = 0.0
    end: str = ""


@dataclass(slots=True)
class Outcome:
    """Everything that a report needs."""

    records: list[Record]
    gaps_ms: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    now_ms: float = 0.0
    busy_ms: float = 0.0
    row_steps: int = 0
    steps: int = 0
    kv_ms: float = 0.0
    kv_peak: float = 0.0
    preemptions: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0


Watch = Callable[[State, StepPlan], None]


class Simulation:
    """One run. `watch` sees every plan before it lands."""

    def __init__(self, jobs: Sequence[Job], worker: TimedWorker, limits: Limits, seed: int = 0, watch: Watch | None = None) -> None:
        self.state = State(limits)
        self._jobs = jobs
        self._worker = worker
        self._luck = random.Random(seed)  # noqa: S311  a simulation is to be repeatable
        self._watch = watch
        self._heard = 0
        self._pool = TokenPool(limits.worker.vocab_size, max((job.prompt_tokens for job in jobs), default=0))
        # By job, as arrays: a step has hundreds of outputs. NaN: no token yet.
        self._first, self._last, self._worst = np.full((3, len(jobs)), np.nan)
        self._tokens = np.zeros(len(jobs), np.int64)
        self._gaps: list[NDArray[np.float32]] = []
        self.outcome = Outcome([Record(job, open_answers=job.n) for job in jobs])

    def run(self) -> Outcome:
        """Until every job has ended."""
        outcome, state = self.outcome, self.state
        while True:
            self._hear()
            self._take(expire(state, outcome.now_ms))
            step = plan(state, outcome.now_ms)
            if step is not None:
                self._step(step)
            elif self._heard < len(self._jobs):
                outcome.now_ms = max(outcome.now_ms, self._jobs[self._heard].arrival_ms)
            elif state.idle:
                break
            else:
                raise AssertionError(f"nothing is planned, yet requests are left: {state.stats()}")
        self._close()
        totals = state.totals
        outcome.preemptions, outcome.prompt_tokens, outcome.reused_tokens = totals.preemptions, totals.prompt_tokens, totals.reused_tokens
        return outcome

    def _hear(self) -> None:
        """Submit the jobs that have arrived by now."""
        jobs, now = self._jobs, self.outcome.now_ms
        while self._heard < len(jobs) and jobs[self._heard].arrival_ms <= now:
            arrival = Arrival(now, self._heard, self._luck.random())
            refused = submit(self.state, jobs[self._heard].submit(self._heard, self._pool), arrival)
            self._heard += 1
            if refused is not None:
                self._take([refused])

    def _step(self, step: StepPlan) -> None:
        outcome, pool = self.outcome, self.state.kv.pool
        result = self._worker.compute(step)
        took = self._worker.milliseconds(step)
        if self._watch is not None:
            self._watch(self.state, step)
        used = pool.used / pool.total
        outcome.kv_ms += used * took
        outcome.kv_peak = max(outcome.kv_peak, used)
        outcome.now_ms += took
        outcome.busy_ms += took
        outcome.steps += 1
        outcome.row_steps += step.rows.size
        self._take(commit(self.state, result, outcome.now_ms))

    def _take(self, outputs: Sequence[RowOutput]) -> None:
        jobs = np.array([int(output.request_id) for output in outputs if output.token_ids and not output.index], np.int64)
        if jobs.size:
            self._count_tokens(jobs)
        for output in outputs:
            if output.finish_reason is not None or output.index:
                self._end(self.outcome.records[int(output.request_id)], output)

    def _count_tokens(self, jobs: NDArray[np.int64]) -> None:
        """The first answers of `jobs` got a token each."""
        now = self.outcome.now_ms
        gaps = now - self._last[jobs]
        fresh = np.isnan(gaps)
        self._first[jobs[fresh]] = now
        self._last[jobs] = now
        self._worst[jobs] = np.fmax(self._worst[jobs], gaps)
        self._tokens[jobs] += 1
        self._gaps.append(gaps[~fresh].astype(np.float32))

    def _close(self) -> None:
        """Arrays to records."""
        if self._gaps:
            self.outcome.gaps_ms = np.concatenate(self._gaps)
        for number, record in enumerate(self.outcome.records):
            record.tokens += int(self._tokens[number])
            if not np.isnan(self._first[number]):
                record.first_ms, record.last_ms = float(self._first[number]), float(self._last[number])
                record.worst_gap_ms = float(np.nan_to_num(self._worst[number]))

    def _end(self, record: Record, output: RowOutput) -> None:
        record.tokens += len(output.token_ids) if output.index else 0
        if output.finish_reason is None:
            return
        record.open_answers -= 1
        record.end = output.refusal.reason if output.refusal else output.finish_reason or ""
        if output.refusal is not None:
            record.open_answers = 0
