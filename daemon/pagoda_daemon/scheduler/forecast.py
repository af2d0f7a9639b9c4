"""Forecast: how large the next step may be, and when a request that comes now would get its first token. Read by `scheduler.plan` and
`scheduler.overload`; fed by `commit` and `plan`; pure.

Three things may have to happen first: the prompts that would be served before it are computed, a row becomes free, blocks become free.
The first is tokens over what a step leaves for prompts; the others are a number of answers that must end, which end at the rate at which
those that run have ended so far. All times come from the measured `StepCost`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.scheduler.cost import StepBudget, Within, Work, step_budget
from pagoda_daemon.scheduler.request import FIRST_BATCH
from pagoda_daemon.scheduler.state import State


def sized(state: State, decodes: Ints, depth: int) -> StepBudget:
    """Of a step in which the rows `decodes` get a token, and prompts go on that are computed up to `depth`. Nobody reads along what the
    tier batch gets: it alone makes no step smaller."""
    limits, rows = state.limits, state.rows
    read_along = bool((rows.rank[decodes] < FIRST_BATCH).any())
    beside = Work.decodes(decodes.size, int(rows.fed[decodes].sum())) if read_along else Work(0)
    return step_budget(state.step_cost, beside, depth, Within(limits.token_budget, limits.worker.block_size, limits.itl_ms))


class Ahead(NamedTuple):
    """What would be served before a newcomer."""

    tokens: int
    requests: int


def ahead(state: State, rank: int, slot: int, prompt: int) -> Ahead:
    """Better classes go first whole; of other tenants in the same class, as much as the newcomer and its own tenant's queue ask for:
    fair queueing lets no request go further."""
    backlog = state.waiting.backlog
    own = backlog.get((rank, slot), (0, 0))
    tokens, requests = 0.0, 0.0
    for (other_rank, other), (their_tokens, their_requests) in backlog.items():
        if other_rank > rank:
            continue
        share = 1.0
        if other_rank == rank and other != slot and their_tokens:
            share = min(1.0, (own[0] + prompt) / their_tokens)
        tokens += share * their_tokens
        requests += share * their_requests
    return Ahead(round(tokens), round(requests))


def first_token_ms(state: State, rank: int, slot: int, prompt: int) -> float:
    """Predicted; 0 while no step was measured."""
    before = ahead(state, rank, slot, prompt)
    work = before.tokens + prompt + state.rows.prefill_tokens()
    most = _prompt_tokens(state)
    step = step_ms(state, min(work, most))
    under_way = step if state.in_flight else 0.0
    return under_way + math.ceil(work / most) * step + _ends_needed(state, before, prompt) * ms_per_end(state)


def step_ms(state: State, tokens: int) -> float:
    """A step in which every running request gets a token and prompts so many."""
    return state.step_cost.milliseconds(_decodes(state).with_prompt(tokens, round(state.step_cost.depth)))


def drain_ms(state: State, tokens: int) -> float:
    """How long until so many tokens of prompts are computed."""
    most = _prompt_tokens(state)
    return tokens / most * step_ms(state, min(tokens, most)) if tokens > 0 else 0.0


def blocks_ms(state: State, blocks: int) -> float:
    """How long until answers that end have given back so many blocks."""
    return max(0.0, blocks / state.habits.blocks) * ms_per_end(state)


def ms_per_end(state: State) -> float:
    """Between two answers that end, at the lengths seen so far."""
    running = len(state.row_of)
    if not running:
        return 0.0
    return state.habits.generated * state.step_cost.milliseconds(_decodes(state)) / running


def _decodes(state: State) -> Work:
    """Of all running requests, also of those whose prompts are under way: they will."""
    return Work.decodes(len(state.row_of), int(state.rows.fed.sum()))


def _prompt_tokens(state: State) -> int:
    """Of the next steps."""
    rows = np.flatnonzero(state.rows.live).astype(np.int32)
    return max(1, sized(state, rows, round(state.step_cost.depth)).tokens - rows.size)


def _ends_needed(state: State, before: Ahead, prompt: int) -> float:
    """Answers that must end before there is a row and room."""
    rows = before.requests + 1 - (state.limits.max_concurrency - len(state.row_of))
    blocks = state.limits.blocks(before.tokens + prompt) + len(state.row_of) - state.kv.pool.free
    return max(0.0, float(rows), blocks / state.habits.blocks)
