"""Constrained rows: masks come in as data, answers end where their grammar does. Called by the engine's loop and `commit`; pure.

A mask belongs to one place: the token after all known ones. It stays with the request until that token is known, so a request that was
preempted meanwhile finds it again. The front's other rules give way: an answer whose grammar is complete ends, also before min_tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.messages import Grammar, Refusal, RowOutput, Submit
from pagoda_daemon.scheduler.overload import late
from pagoda_daemon.scheduler.request import Request
from pagoda_daemon.scheduler.state import State

_PATIENCE, _PATIENCE_OF_OTHERS, _MOST_PATIENCE_MS = 0.5, 0.05, 10.0


def refuse_compiling(state: State, message: Submit, digest: str, now_ms: float) -> Refusal | None:
    """Why a request whose grammar has no verdict yet is not queued: its deadline would pass first, or too many wait. None to queue it."""
    queue = state.compilations
    before = queue.wait_ms(message.tenant, digest)
    return late(state, message, now_ms, before) or queue.full(message, digest, state.limits.queue_tokens)


def take_unwatched(state: State) -> list[Request]:
    """The constrained requests that got their first row since the last call: each needs a matcher now."""
    found = {request.key: request for request in state.unwatched if not request.watched}
    state.unwatched.clear()
    for request in found.values():
        request.watched = True
    return list(found.values())


def offer(state: State, key: str, mask: Ints, *, accepting: bool) -> None:
    """What may follow `key`'s known tokens: the grammar's `mask`, which is ours from now on, and end tokens where it is `accepting`."""
    row = state.row_of.get(key)
    request = state.waiting.get(key) if row is None else state.request(row)
    if request is None or request.grammar is None:
        return
    _end_tokens(mask, request.grammar, request.sampling.stop_token_ids, accepting=accepting)
    request.mask = mask
    if row is not None:
        state.rows.waits[row] = 0


def _end_tokens(mask: Ints, grammar: Grammar, stops: Iterable[int], *, accepting: bool) -> None:
    """The model's own are never text, whatever the tokenizer holds them for; what else the client wants to stop at may be."""
    wanted = set(stops)
    if accepting:
        _write(mask, wanted, allowed=True)
    _write(mask, grammar.eos if not accepting else set(grammar.eos) - wanted, allowed=False)


def _write(mask: Ints, ids: Iterable[int], *, allowed: bool) -> None:
    words = mask.view(np.uint32)
    for one in ids:
        if one // 32 < words.size:
            bit = np.uint32(1 << one % 32)
            words[one // 32] = words[one // 32] | bit if allowed else words[one // 32] & ~bit


def wait_ms(state: State, now_ms: float) -> float:
    """How much longer not to plan, for the sake of masks: a row that is left out of a step loses all of it, and rows that are ready one
    by one would take turns in steps of their own for ever (8 rows in steps of 5 ms: 18 ms a token instead of 6). While only constrained
    rows decode none of them is planned ahead. An idle device waits a twentieth of a step at most where it has others to serve, and not at
    all for less than a millisecond; while a step is under way waiting for half of it costs nothing."""
    rows = state.rows
    if not rows.waits.any():
        return 0.0
    need = rows.need()
    others = bool(state.waiting) or bool((need[~rows.constrained] > 0).any()) or bool((need > 1).any())
    if state.in_flight and not others:
        return math.inf
    if not ((rows.waits > 0) & (need == 0) & (rows.target == rows.known)).any():
        return 0.0
    idle_beside_others = others and not state.in_flight
    patience = min(_MOST_PATIENCE_MS, (_PATIENCE_OF_OTHERS if idle_beside_others else _PATIENCE) * state.predicted_step_ms())
    return 0.0 if idle_beside_others and patience < 1.0 else max(0.0, state.landed_ms + patience - now_ms)


def spend(state: State, sampled: Ints) -> None:
    """The next tokens of `sampled` are known: the masks that they were drawn by are used up."""
    for row in sampled[state.rows.constrained[sampled]].tolist():
        state.request(row).mask = None


def finish(state: State, key: str, reason: str, error: str | None = None) -> list[RowOutput]:
    """End one answer: "stop" where its grammar is complete, "error" where its matcher is lost. Nothing when it is over already."""
    row = state.row_of.get(key)
    if row is not None:
        request = state.end(row)
    elif key in state.waiting:
        request = state.leave(state.waiting.pop(key))
    else:
        return []
    state.release_twins()
    return [RowOutput(request.request_id, (), reason, error, request.index, life=request.course.life(state.landed_ms))]
