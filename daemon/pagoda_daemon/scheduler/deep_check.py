"""A deep check in the scheduler: it enters with the next step, or in a step of its own, and its answer is taken out of the result. Pure.

Called by the engine's loop, `plan` and `commit`. It delays no request and no request delays it: it has a row and a block that no request
can get, goes with the next step however full the pool is, and is in no count.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.core.messages import DeepCheckAnswer, DeepCheckPrompt
from pagoda_daemon.scheduler.extra_row import empty_plan, without_extra_row
from pagoda_daemon.scheduler.state import Flight, State


def take_in(state: State, check: DeepCheckPrompt) -> DeepCheckAnswer | None:
    """To go with the next step; an answer at once where it cannot."""
    worker = state.limits.worker
    if not 0 < len(check.prompt) <= worker.block_size or not 0 <= min(check.prompt) <= max(check.prompt) < worker.vocab_size:
        why = f"a deep check must have 1 to {worker.block_size} ids, each below {worker.vocab_size}, got {len(check.prompt)} ids"
        return DeepCheckAnswer(check.check_id, None, error=why)
    state.deep_check = check
    return None


def alone(state: State, now_ms: float) -> StepPlan | None:
    """A step of nothing but the deep check that waits; None without one."""
    if state.deep_check is None or state.suspects:
        return None
    none = np.zeros(0, np.int32)
    state.steady = None
    return state.fly(Flight(empty_plan(state.totals.steps + len(state.in_flight)), none, none, 0, now_ms))


def taken_out(state: State, flight: Flight, result: StepResult) -> StepResult:
    """The result without the deep check, whose answer is put aside."""
    if flight.deep_check is None:
        return result
    result, answer = without_extra_row(result, state.limits.max_concurrency)
    state.deep_check_answer = DeepCheckAnswer(flight.deep_check.check_id, answer.token, answer.margin, answer.error)
    return result


def lost(state: State, flight: Flight) -> None:
    """The step raised: the request that made it raise is found in steps without a deep check. The front sends another one."""
    if flight.deep_check is not None:
        state.deep_check_answer = DeepCheckAnswer(flight.deep_check.check_id, None, error="the step raised")
