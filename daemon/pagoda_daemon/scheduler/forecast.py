"""Forecast: when a request that comes now would get its first token. Read by `scheduler.overload`; fed by `commit` and `plan`; pure.

Three things may have to happen first: the prompts that would be served before it are computed, a row becomes free, blocks become free.
The first is tokens over what a step leaves for prompts; the others are a number of answers that must end, which end at the rate at which
those that run have ended so far. All times come from the measured `StepCost`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pagoda_daemon.scheduler.state import State


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
    step = full_step_ms(state, work)
    under_way = step if state.in_flight else 0.0
    steps = math.ceil(work / _prompt_tokens(state))
    return under_way + steps * step + _ends_needed(state, before, prompt) * ms_per_end(state)


def full_step_ms(state: State, work: int) -> float:
    """A step in which every running request gets a token and prompts get the rest, or as much as there is."""
    running = len(state.row_of)
    tokens = min(state.limits.token_budget, running + work)
    return state.step_cost.milliseconds(tokens, int(state.rows.fed.sum()) + min(work, state.limits.token_budget))


def drain_ms(state: State, tokens: int) -> float:
    """How long until so many tokens of prompts are computed."""
    return tokens / _prompt_tokens(state) * full_step_ms(state, tokens) if tokens > 0 else 0.0


def blocks_ms(state: State, blocks: int) -> float:
    """How long until answers that end have given back so many blocks."""
    return max(0.0, blocks / state.habits.blocks) * ms_per_end(state)


def ms_per_end(state: State) -> float:
    """Between two answers that end, at the lengths seen so far."""
    running = len(state.row_of)
    if not running:
        return 0.0
    step = state.step_cost.milliseconds(running, int(state.rows.fed.sum()))
    return state.habits.generated * step / running


def _prompt_tokens(state: State) -> int:
    return max(1, state.limits.token_budget - len(state.row_of))


def _ends_needed(state: State, before: Ahead, prompt: int) -> float:
    """Answers that must end before there is a row and room."""
    rows = before.requests + 1 - (state.limits.max_concurrency - len(state.row_of))
    blocks = state.limits.blocks(before.tokens + prompt) + len(state.row_of) - state.kv.pool.free
    return max(0.0, float(rows), blocks / state.habits.blocks)
