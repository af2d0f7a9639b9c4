"""steady: the next plan where the last one only decoded and nothing has happened since: the same rows, each one position further.

Called by `plan` only. Most steps are of this kind, and to plan one anew takes 50 calls of numpy however few its rows are: 100 us
of a step that takes 800 us on a small model, on the cores that compute it.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan
from pagoda_daemon.scheduler.state import Flight, State, Steady


def note(state: State, flight: Flight) -> None:
    """`flight` is the last plan made, and feeds no prompt."""
    plan, rows = flight.plan, state.rows
    sampling = plan.sampling
    each_differs = sampling.shaped or sampling.scored is not None or sampling.masks is not None or sampling.pooled is not None
    if plan.rows.size != len(state.row_of) or each_differs or plan.copies.size:
        state.steady = None
        return
    fed, capacity = rows.fed[plan.rows], state.kv.tables.capacity(plan.rows)
    left = int((np.minimum(capacity, rows.last[plan.rows] - 1) - fed).min())
    state.steady = Steady(flight, state.kv.tables.version, left)


def repeat(state: State, now_ms: float) -> StepPlan | None:
    """The last plan once more, one position on; None if a new plan would differ: a request waits, came, left, got a block
    or needs one."""
    steady = state.steady
    if steady is None or steady.left < 1 or state.waiting or steady.tables != state.kv.tables.version:
        return None
    flight, source = steady.flight, state.rows
    before, rows = flight.plan, flight.plan.rows
    positions = before.positions + np.int32(1)
    number, tokens = state.totals.steps + len(state.in_flight), source.tokens[rows, positions]
    same = (before.block_tables, before.sample, before.sampling)
    plan = StepPlan(number, rows, before.starts, tokens, positions, *same, adapters=before.adapters)
    source.fed[rows] = fed = positions + np.int32(1)
    source.tokens[rows, fed] = LAST_SAMPLED
    source.target[rows] = fed + np.int32(1)
    flown = Flight(plan, flight.counts, flight.epochs, flight.context + rows.size, now_ms)
    state.steady = Steady(flown, steady.tables, steady.left - 1)
    return state.fly(flown)
