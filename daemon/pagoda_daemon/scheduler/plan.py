"""plan: which tokens the next step computes. Called by the engine's loop; pure, time is a parameter.

One budget of tokens per step. First every decode, in row order: a running request gets its next token in every step, so no gap between
its tokens exceeds one step of a full budget. Then prompts: those under way share half of what is left, in order of arrival; the rest goes
to new requests in the queue's order, and what these leave over goes back to the prompts under way. So a long prompt never holds up a short
one behind it, and loses at most half of its speed to them.

When blocks run out for a decode, the least deserving request gives up its row and waits at the head of its queue with all its tokens; its
blocks stay known, so what is not overwritten need not be computed again. A request is admitted only when every row could still grow by a
block: a request that got a row runs for at least a block's worth of steps before anyone is preempted, so there is no thrash.

The plan may be made while earlier ones are on their way: a token that is being sampled stands in it as LAST_SAMPLED.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.arrays import Bools, Ints
from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan
from pagoda_daemon.kv.accounts import NO_MATCH
from pagoda_daemon.kv.index import Match
from pagoda_daemon.kv.pool import BrokenAccountsError
from pagoda_daemon.scheduler.deep_check import alone
from pagoda_daemon.scheduler.draws import sampling_rows
from pagoda_daemon.scheduler.request import FIRST_BATCH, Request
from pagoda_daemon.scheduler.state import Flight, State
from pagoda_daemon.scheduler.steady import note, repeat

# More unfinished prompts than this are not begun at a time: they would only slow each other down and hold blocks.
_UNDER_WAY = 4
# Shorter steps than this are planned one ahead: with steps of 2 ms and 32 rows that keeps the device busy for 98 % of the time instead of
# 76 %. A longer one is worth waiting for, so that a request that arrives meanwhile is in the next.
_WORTH_AHEAD_MS = 20.0
# How many requests that do not fit now may be passed over in one plan.
_PASS_OVER = 16


class _Draft:
    """A plan while it is made: rows that decode, and prompts with how many tokens each feeds."""

    def __init__(self, budget: int, decodes: Ints) -> None:
        self.left = budget - decodes.size
        self.decodes = decodes
        self.chunks: dict[int, int] = {}

    def feed(self, row: int, count: int) -> None:
        if count > 0:
            self.chunks[row] = self.chunks.get(row, 0) + count
            self.left -= count

    @property
    def size(self) -> int:
        return self.decodes.size + len(self.chunks)

    def arrays(self) -> tuple[Ints, Ints]:
        """Rows, and how many tokens each feeds."""
        if not self.chunks:
            return self.decodes, np.ones(self.decodes.size, np.int32)
        chunked = np.fromiter(self.chunks, np.int32)
        counts = np.fromiter(self.chunks.values(), np.int32)
        return np.concatenate([self.decodes, chunked]), np.concatenate([np.ones(self.decodes.size, np.int32), counts])


def plan(state: State, now_ms: float) -> StepPlan | None:
    """The next step, or None when nothing can be computed (before what is in flight lands)."""
    if state.suspects:
        tried = None if state.in_flight else _trial(state)
        if tried is not None:
            return _launch(state, tried, now_ms)
        if state.in_flight:
            return None
    if (again := repeat(state, now_ms)) is not None:
        return again
    state.kv.pool.residency.now_ms = now_ms
    if state.waiting:
        _make_way(state, now_ms)
    draft = _Draft(state.limits.token_budget, _decodes(state))
    _prompts(state, draft, now_ms)
    while not draft.size and not state.in_flight and (state.rows.need() > 0).any():
        # Prompts under way took each other's last blocks. (Rows that only wait for their masks are no reason.)
        _preempt(state, _least_deserving(state))
        _prompts(state, draft, now_ms)
    return _launch(state, draft, now_ms) if draft.size else alone(state, now_ms)


def _trial(state: State) -> _Draft | None:
    """One suspect of a step that raised, alone; None when there are no more. One that finds no room is let off: it waits, and is
    suspected again should its next step raise."""
    for key in list(state.suspects):
        draft, row = _Draft(state.limits.token_budget, np.zeros(0, np.int32)), state.row_of.get(key)
        if row is not None:
            draft.feed(row, _chunk(state, row, 0, draft.left))
            if draft.size:
                return draft
            _preempt(state, row)
        del state.suspects[key]
    return None


def may_plan_ahead(state: State) -> bool:
    """Whether to plan the next step while one is on its way: steps are short, and no request waits that could start in it."""
    return not state.waiting and state.step_cost.milliseconds(state.in_flight[-1].tokens) < _WORTH_AHEAD_MS


def _decodes(state: State) -> Ints:
    """The rows that need one token, with room for it."""
    rows, tables = state.rows, state.kv.tables
    need = rows.need()
    due = np.flatnonzero(need == 1).astype(np.int32)
    short = due[tables.capacity(due) <= rows.fed[due]]
    if not short.size or tables.grow_each(short):
        return due
    for row in short.tolist():
        while rows.live[row] and not tables.grow(row, int(rows.fed[row]) + 1):
            if state.in_flight and len(state.row_of) == 1:
                return due[:0]  # alone it always fits: what its step under way leaves behind its window is the room
            _preempt(state, _least_deserving(state))
    kept: Ints = due[rows.live[due]]
    return kept


def _prompts(state: State, draft: _Draft, now_ms: float) -> None:
    rows = state.rows
    under_way = np.flatnonzero(rows.need() > 1).astype(np.int32)
    under_way = under_way[np.argsort(rows.arrival[under_way])] if under_way.size > 1 else under_way
    waiting = bool(state.waiting)
    if under_way.size:
        share = draft.left - draft.left // 2 if waiting else draft.left
        _continue(state, draft, under_way, share)
    if waiting:
        _admit(state, draft, now_ms, int(under_way.size))
        if under_way.size:
            _continue(state, draft, under_way, draft.left)


def _continue(state: State, draft: _Draft, rows: Ints, share: int) -> None:
    """Feed prompts under way, the oldest first, at most `share` tokens together."""
    for row in rows.tolist():
        if share <= 0:
            return
        done = draft.chunks.get(row, 0)
        count = _chunk(state, row, done, share)
        draft.feed(row, count)
        share -= count


def _chunk(state: State, row: int, done: int, most: int) -> int:
    """How many tokens of `row`'s prompt can be fed after the `done` ones; blocks for them are taken. None when decodes took all blocks:
    they do end."""
    at = int(state.rows.fed[row]) + done
    left = int(min(state.rows.target[row], state.rows.last[row] - 1) - state.rows.waits[row]) - at
    count = min(left, most, state.kv.tables.room(row) - at)
    if count > 0:
        state.kv.tables.grow(row, at + count)
    return max(0, count)


def _admit(state: State, draft: _Draft, now_ms: float, under_way: int) -> None:
    """Give rows to waiting requests, in the queue's order. Passed over: one long prompt too many, and a late one (the sweep
    for deadlines ends it). A request that lacks blocks ends the search: it would starve otherwise."""
    passed: set[str] = set()
    while draft.left > 0 and len(state.row_of) < state.limits.max_concurrency and len(passed) <= _PASS_OVER:
        request = state.waiting.first(passed)
        if request is None:
            return
        if request.deadline_ms <= now_ms:
            passed.add(request.key)
            continue
        match = _known(state, request)
        left = request.tokens.size - len(match.blocks) * state.limits.worker.block_size - match.tail_tokens
        if left > draft.left and under_way >= _UNDER_WAY:
            passed.add(request.key)
            continue
        if not _fits(state, request, match):
            return
        row = state.seat(state.waiting.pop(request.key), match)
        if request.course.seated_ms is None:
            request.course.seated_ms = now_ms
        draft.feed(row, _chunk(state, row, 0, draft.left))
        under_way += left > draft.left


def _known(state: State, request: Request) -> Match:
    """What need not be computed. A prompt behind a window may be known further than the pool reaches: with every block taken there would
    be none to go on with, and the request would be seated and thrown out for ever."""
    if not request.reuses or state.sibling(request) is not None:
        return NO_MATCH
    match = state.kv.match(request.chain, request.tokens)
    return match if len(match.blocks) < state.kv.pool.total else NO_MATCH


def _fits(state: State, request: Request, match: Match) -> bool:
    """Room for all known tokens and the next one, for what prompts under way still lack, and for one more block of every row. A
    lonely request needs no such margin, so that an empty pool admits whatever was accepted."""
    needed = state.limits.peak_blocks(min(request.tokens.size + 1, request.last_len - 1))
    shared = (request.prompt_len - 1) // state.limits.worker.block_size if state.sibling(request) is not None else 0
    cost = state.kv.cost(match, max(needed, len(match.blocks) + 1)) - shared
    if not state.row_of:
        return cost <= state.kv.pool.free
    room = state.kv.pool.free - cost - len(state.row_of)
    if room < 0:
        return False
    rows, size = state.rows, state.limits.worker.block_size
    lacking = -(-rows.known // size) - state.kv.tables.counts
    return int(np.maximum(lacking, 0, out=lacking).sum()) <= room


def _make_way(state: State, now_ms: float) -> None:
    """The tier batch computes with what is left over: while an interactive request waits and cannot be seated, the least deserving
    batch request gives up its row."""
    request = state.waiting.first()
    if request is None or request.rank >= FIRST_BATCH or request.deadline_ms <= now_ms:
        return
    while batch := np.flatnonzero(state.rows.live & (state.rows.rank >= FIRST_BATCH)).size:
        if len(state.row_of) < state.limits.max_concurrency and _fits(state, request, _known(state, request)):
            return
        _preempt(state, _least_deserving(state))
        if batch == 1:
            return


def _least_deserving(state: State) -> int:
    """The row of the last class; in it, of the tenant served most; of it, the latest to arrive."""
    rows = state.rows
    live = np.flatnonzero(rows.live)
    if not live.size:
        raise BrokenAccountsError("blocks are short, yet no row holds any")
    order = np.lexsort((rows.arrival[live], state.virtual.counters[rows.tenant[live]], rows.rank[live]))
    return int(live[order[-1]])


def _preempt(state: State, row: int) -> None:
    request = state.unseat(row)
    request.course.preemptions += 1
    state.waiting.push(request, head=True)
    state.totals.preemptions += 1


def _launch(state: State, draft: _Draft, now_ms: float) -> StepPlan:
    """The draft as arrays; from here on its tokens count as fed."""
    source = state.rows
    rows, counts = draft.arrays()
    at = source.fed[rows]
    starts = np.zeros(rows.size + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    positions = at if not draft.chunks else _spread(at - starts[:-1], counts) + np.arange(starts[-1], dtype=np.int32)
    ends = at + counts
    sample: Bools = ends == source.target[rows]
    step = StepPlan(
        step=state.totals.steps + len(state.in_flight),
        rows=rows,
        starts=starts,
        token_ids=source.tokens[_spread(rows, counts) if draft.chunks else rows, positions],
        positions=positions,
        block_tables=state.kv.tables.view(rows),
        sample=sample,
        sampling=sampling_rows(state, rows, starts, sample),
        copies=state.kv.take_copies(),
        adapters=source.adapters(rows),
    )
    for row, count in draft.chunks.items():
        course = state.request(row).course
        course.chunks += 1
        course.computed += count
    sampled = rows[sample]
    source.fed[rows] = ends
    source.tokens[sampled, source.target[sampled]] = LAST_SAMPLED
    source.target[sampled] += 1
    source.waits[sampled] = source.constrained[sampled]
    flight = Flight(step, counts, source.epoch[rows], int(ends.sum()), now_ms)
    state.steady = None
    if not draft.chunks:
        note(state, flight)
    return state.fly(flight)


def _spread(values: Ints, counts: Ints) -> Ints:
    repeated: Ints = np.repeat(values, counts)
    return repeated
