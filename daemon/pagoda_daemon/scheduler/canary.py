"""The canary's way through the scheduler: taken in, beside or without a step of others, and back. Called by the engine's loop, `plan` and
`commit`; pure.

It disturbs nobody and nobody can hold it up: it has a row and a block that no request can get, goes with the very next step, whatever waits
and however full the pool is, and is in no count.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.nouns.batch import StepPlan, StepResult
from pagoda_daemon.nouns.messages import Canary, CanaryAnswer
from pagoda_daemon.scheduler.extra_row import ashore, empty_plan
from pagoda_daemon.scheduler.state import Flight, State


def take_in(state: State, canary: Canary) -> CanaryAnswer | None:
    """To go with the next step; an answer at once where it cannot."""
    worker = state.limits.worker
    if not 0 < len(canary.prompt) <= worker.block_size or not 0 <= min(canary.prompt) <= max(canary.prompt) < worker.vocab_size:
        why = f"a canary must have 1 to {worker.block_size} ids, each below {worker.vocab_size}, got {len(canary.prompt)} ids"
        return CanaryAnswer(canary.canary_id, None, error=why)
    state.canary = canary
    return None


def alone(state: State, now_ms: float) -> StepPlan | None:
    """A step of nothing but the canary that waits; None without one."""
    if state.canary is None or state.suspects:
        return None
    none = np.zeros(0, np.int32)
    state.steady = None
    return state.fly(Flight(empty_plan(state.totals.steps + len(state.in_flight)), none, none, 0, now_ms))


def come_back(state: State, flight: Flight, result: StepResult) -> StepResult:
    """The result without the canary, whose answer is put aside."""
    if flight.canary is None:
        return result
    result, song = ashore(result, state.limits.max_concurrency)
    state.sung = CanaryAnswer(flight.canary.canary_id, song.token, song.margin, song.error)
    return result


def lost(state: State, flight: Flight) -> None:
    """The step raised: who made it raise is seen in steps without a canary. The front sends another one."""
    if flight.canary is not None:
        state.sung = CanaryAnswer(flight.canary.canary_id, None, error="the step raised")
