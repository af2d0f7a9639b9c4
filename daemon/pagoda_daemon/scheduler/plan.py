"""plan: which tokens the next step computes. Called by the engine's loop between steps; pure, time is a parameter.

Order: every decode (the oldest first), then the prompt under way, then new requests in order of arrival, until the token budget is
spent. A prompt that is not finished took all that was left of the budget or of the blocks, so nobody was admitted behind it: at most
one row is in the middle of its prompt, and it is the latest-arrived.

When blocks run out for a decode, the latest-arrived request gives up its row and waits at the head of the queue with all its tokens.
It is recomputed once everything it knows fits again, so nothing is lost, nothing thrashes, and the oldest always advances.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.batch import Ints, StepPlan
from pagoda_daemon.scheduler.draws import sampling_rows
from pagoda_daemon.scheduler.state import Request, State


class _Draft:
    """A plan while it is made: rows and how many tokens each feeds."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: list[int] = []
        self.counts: list[int] = []

    def add(self, row: int, count: int) -> None:
        self.rows.append(row)
        self.counts.append(count)
        self.budget -= count


def plan(state: State, now_ms: float) -> StepPlan | None:
    """The next step, or None when there is nothing to compute. `commit` must follow before the next plan."""
    draft = _Draft(state.limits.token_budget)
    _decodes(state, draft)
    _resume(state, draft)
    _admit(state, draft)
    if not draft.rows:
        return None
    state.planned_ms = now_ms
    state.in_flight = _arrays(state, draft)
    return state.in_flight


def _decodes(state: State, draft: _Draft) -> None:
    rows = state.rows
    due = rows.by_arrival()
    due = due[rows.known[due] - rows.computed[due] == 1]
    for row in due[state.tables.capacity(due) < rows.known[due]]:
        # A row already grown here is older than this one, hence never the victim.
        while rows.live[row] and not state.tables.grow(int(row), int(rows.known[row])):
            _preempt_latest(state)
    for row in due[rows.live[due]]:
        draft.add(int(row), 1)


def _resume(state: State, draft: _Draft) -> None:
    rows = state.rows
    for row in np.flatnonzero(rows.live & (rows.known - rows.computed > 1)).tolist():
        _chunk(state, draft, row)


def _admit(state: State, draft: _Draft) -> None:
    while state.waiting and draft.budget and len(state.row_of) < state.limits.max_concurrency:
        request = next(iter(state.waiting.values()))
        if state.tables.pool.free < _blocks_to_start(state, request):
            return
        _chunk(state, draft, state.seat(state.dequeue(request.request_id)))


def _chunk(state: State, draft: _Draft, row: int) -> None:
    """As much of the row's prompt as budget and blocks allow; nothing when older decodes took all: they do end."""
    computed = int(state.rows.computed[row])
    count = min(int(state.rows.known[row]) - computed, draft.budget, state.tables.room(row) - computed)
    if count > 0:
        state.tables.grow(row, computed + count)
        draft.add(row, count)


def _blocks_to_start(state: State, request: Request) -> int:
    """Room for all known tokens and the next one, so that what is admitted does not preempt in its first steps. Never more than
    the request will ever hold, so that an empty pool admits whatever was accepted."""
    return state.limits.blocks(min(request.tokens.size + 1, request.last_len - 1))


def _preempt_latest(state: State) -> None:
    state.enqueue(state.unseat(int(state.rows.by_arrival()[-1])), head=True)
    state.preemptions += 1


def _arrays(state: State, draft: _Draft) -> StepPlan:
    source = state.rows
    rows, counts = np.asarray(draft.rows, np.int32), np.asarray(draft.counts, np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    positions = _spread(source.computed[rows] - starts[:-1], counts) + np.arange(starts[-1], dtype=np.int32)
    sample = source.computed[rows] + counts == source.known[rows]
    return StepPlan(
        step=state.steps,
        rows=rows,
        starts=starts,
        token_ids=source.tokens[_spread(rows, counts), positions],
        positions=positions,
        block_tables=state.tables.view(rows),
        sample=sample,
        sampling=sampling_rows(state, rows, starts, sample),
    )


def _spread(values: Ints, counts: Ints) -> Ints:
    repeated: Ints = np.repeat(values, counts)
    return repeated
