"""plan: which tokens the next step computes. Called by the engine's loop between steps; pure, time is a parameter.

Order: every decode (the oldest first), then chunks of prompts under way, then new requests in order of arrival, until the token
budget is spent. When blocks run out, the latest-arrived request gives up its row and waits at the head of the queue with all its
tokens; it is recomputed later, so nothing is lost and the oldest always advances.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.batch import Ints, StepPlan
from pagoda_daemon.scheduler.state import Request, State


class _Draft:
    """A plan while it is made: rows and how many tokens each feeds."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: list[int] = []
        self.counts: list[int] = []
        self.preempted = False

    def add(self, row: int, count: int) -> None:
        self.rows.append(row)
        self.counts.append(count)
        self.budget -= count


def plan(state: State, now_ms: float) -> StepPlan | None:
    """The next step, or None when there is nothing to compute. `commit` must follow before the next plan."""
    draft = _Draft(state.limits.token_budget)
    _decodes(state, draft)
    _chunks(state, draft)
    # Whoever was just preempted heads the queue and the room it gave up is spoken for: admitting now would thrash.
    if not draft.preempted:
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
            _preempt_latest(state, draft)
    for row in due[rows.live[due]]:
        draft.add(int(row), 1)


def _chunks(state: State, draft: _Draft) -> None:
    rows = state.rows
    order = rows.by_arrival()
    for row in order[rows.known[order] - rows.computed[order] > 1].tolist():
        if not draft.budget:
            return
        if rows.live[row]:
            _chunk(state, draft, row)


def _chunk(state: State, draft: _Draft, row: int) -> None:
    computed = int(state.rows.computed[row])
    while state.tables.room(row) <= computed:
        # Rows in the draft compute in this step and keep their blocks; this row then waits for them, and they do end.
        if not _preempt_latest(state, draft, after=row):
            return
    count = min(int(state.rows.known[row]) - computed, draft.budget, state.tables.room(row) - computed)
    state.tables.grow(row, computed + count)
    draft.add(row, count)


def _admit(state: State, draft: _Draft) -> None:
    running = state.rows.by_arrival()
    spoken_for = state.tables.missing(running, state.rows.known[running])
    while state.waiting and draft.budget and len(state.row_of) < state.limits.max_concurrency:
        request = next(iter(state.waiting.values()))
        needed = _blocks_to_start(state, request)
        if state.tables.pool.free - spoken_for < needed:
            return
        row = state.seat(state.dequeue(request.request_id))
        before = state.tables.pool.free
        _chunk(state, draft, row)
        spoken_for += needed - (before - state.tables.pool.free)


def _blocks_to_start(state: State, request: Request) -> int:
    """Room for all known tokens and the next one, so that what is admitted does not preempt in its first steps. Never more than
    the request will ever hold, so that an empty pool admits whatever was accepted."""
    return state.limits.blocks(min(request.tokens.size + 1, request.last_len - 1))


def _preempt_latest(state: State, draft: _Draft, after: int | None = None) -> bool:
    """Send the latest-arrived running request back to the head of the queue; with `after`, only one that arrived after that row
    and is not in the draft."""
    rows = state.rows
    candidates = rows.by_arrival()
    if after is not None:
        free = ~np.isin(candidates, draft.rows)
        candidates = candidates[free & (rows.arrival[candidates] > rows.arrival[after])]
    if not candidates.size:
        return False
    state.enqueue(state.unseat(int(candidates[-1])), head=True)
    state.preemptions += 1
    draft.preempted = True
    return True


def _arrays(state: State, draft: _Draft) -> StepPlan:
    source = state.rows
    rows, counts = np.asarray(draft.rows, np.int32), np.asarray(draft.counts, np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    positions = _spread(source.computed[rows] - starts[:-1], counts) + np.arange(starts[-1], dtype=np.int32)
    return StepPlan(
        step=state.steps,
        rows=rows,
        starts=starts,
        token_ids=source.tokens[_spread(rows, counts), positions],
        positions=positions,
        block_tables=state.tables.view(rows),
        sample=source.computed[rows] + counts == source.known[rows],
        temperature=source.temperature[rows],
        top_p=source.top_p[rows],
        top_k=source.top_k[rows],
        seeds=source.seed[rows],
    )


def _spread(values: Ints, counts: Ints) -> Ints:
    repeated: Ints = np.repeat(values, counts)
    return repeated
