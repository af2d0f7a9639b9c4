"""Requests in and out by the client's will or the clock's: submit, abort, expire. Called by the engine's loop; pure.

The front has validated what a user may write; what is refused here can never run, whatever the load, or cannot run now.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import structs
from pagoda_contracts.prefix import Scope

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.messages import Refusal, RowOutput, Submit
from pagoda_daemon.kv.adapters import NO_ADAPTER
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.text_prefixes import block_ends
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.overload import logprob_bytes, refuse, worst_blocks
from pagoda_daemon.scheduler.request import MAX_PRIORITY, Course, Request, choice_key, rank_of
from pagoda_daemon.scheduler.sampling import sampling_refusal
from pagoda_daemon.scheduler.state import State

REFUSED: Final = "never_fits"
"""First word of the error of a request that was refused here for good."""

MAX_ANSWERS = 128
"""Most answers to one prompt, OpenAI's own bound. Each is a request of its own in the queue, made before anything is looked at again: an
unbounded `n` in one small message would be a way to fill the engine's memory."""

_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """What submitting takes from outside: the time, a seed for those that bring none, and a number in [0, 1) for the shedder."""

    now_ms: float
    seed: int
    luck: float = 1.0


def refusal(submit: Submit, limits: Limits, ids: Ints | None = None) -> str | None:
    """Why the request can never run, naming the numbers; None when it can. `ids` are `ids_of` its prompt, where they are at hand."""
    worker, prompt, wanted = limits.worker, len(submit.prompt), submit.sampling.max_tokens
    if prompt < 1 or wanted < 1:
        return f"a prompt of {prompt} tokens with max_tokens {wanted}: both must be at least 1"
    ids = ids_of(submit.prompt + submit.resumed) if ids is None else ids
    if ids is None or ids.min() < 0 or ids.max() >= worker.vocab_size:
        known = submit.prompt + submit.resumed
        return f"token ids must be 0 to {worker.vocab_size - 1}, got {min(known)} to {max(known)}"
    if submit.resumed and (len(submit.resumed) >= wanted or submit.n > 1):
        return f"{len(submit.resumed)} resumed tokens of max_tokens {wanted} and n {submit.n}; there must be fewer, of one answer"
    if prompt + wanted > worker.max_model_len:
        return f"{prompt} prompt tokens and max_tokens {wanted} exceed the context of {worker.max_model_len}"
    needed = limits.peak_blocks(prompt + wanted - 1)
    if needed > worker.blocks_total:
        return f"{prompt} prompt tokens and max_tokens {wanted} need {needed} blocks, the whole pool has {worker.blocks_total}"
    return _odd(submit) or sampling_refusal(submit.sampling, worker.vocab_size)


def ids_of(prompt: tuple[int, ...]) -> Ints | None:
    """The prompt as an array; None where an id fits no such array, hence no vocabulary."""
    try:
        return np.fromiter(prompt, np.int32, len(prompt))
    except OverflowError:
        return None


def _odd(submit: Submit) -> str | None:
    if not 1 <= submit.n <= MAX_ANSWERS:
        return f"n must be 1 to {MAX_ANSWERS}, got {submit.n}"
    if submit.n > 1 and submit.sampling.pooling is not None:
        return f"n must be 1 with pooling, got {submit.n}"
    if not submit.weight > 0:
        return f"weight must be above 0, got {submit.weight}"
    if abs(submit.priority) > MAX_PRIORITY:
        return f"priority must be {-MAX_PRIORITY} to {MAX_PRIORITY}, got {submit.priority}"
    return None


def submit(state: State, message: Submit, arrival: Arrival) -> RowOutput | None:
    """Queue the request; an output at once when it is refused."""
    ids = ids_of(message.prompt + message.resumed)
    why = refusal(message, state.limits, ids)
    if why is None and state.adapters.slot_of(message.adapter) is None:
        why = f"adapter {message.adapter} is not loaded"
    if ids is None or why is not None:
        said = Refusal(REFUSED, 0.0, why or "a token id is too large")
        return RowOutput(message.request_id, (), "error", f"{REFUSED}: {why}", refusal=said)
    refused = refuse(state, message, arrival.now_ms, arrival.luck)
    if refused is not None:
        return RowOutput(message.request_id, (), "refused", refusal=refused)
    requests = _requests(state, message, ids, arrival)
    for request in requests:
        state.enter(request)
    first, *twins = requests
    if message.deadline_ms is not None:
        heapq.heappush(state.deadlines, (float(message.deadline_ms), message.request_id))
    if twins:
        state.groups[first.key] = [choice.key for choice in (first, *twins)]
        state.twins[first.key] = twins
    state.waiting.push(first)
    state.arrivals += 1
    return None


def _requests(state: State, message: Submit, known: Ints, arrival: Arrival) -> list[Request]:
    """One for each answer; they share everything but the seed, and the first alone has the prompt's scores."""
    limits, sampling = state.limits, message.sampling
    twin = structs.replace(sampling, prompt_logprobs=None) if message.n > 1 else sampling
    chain = Chain.of(Scope(message.cache_salt or message.tenant, limits.worker.model, message.adapter), limits.worker.block_size)
    chain.text_prefixes = block_ends(((prefix.hash, prefix.tokens) for prefix in message.prefixes), limits.worker.block_size)
    seed = arrival.seed if sampling.seed is None else sampling.seed
    slot = state.virtual.slot(message.tenant, message.weight)
    return [
        Request(
            message.request_id,
            index,
            state.arrivals,
            known,
            len(message.prompt),
            twin if index else sampling,
            (seed + index) & _SEED_MASK,
            chain.copy() if index else chain,
            tenant=slot,
            rank=rank_of(message.tier, message.priority),
            deadline_ms=float("inf") if message.deadline_ms is None else message.deadline_ms,
            group=message.request_id if message.n > 1 else None,
            blocks=worst_blocks(message, limits) // message.n,
            logprob_bytes=logprob_bytes(message) // message.n,
            reuses=index > 0 or (sampling.prompt_logprobs is None and sampling.pooling != "mean"),
            course=Course(arrival.now_ms),
            grammar=message.grammar,
            adapter=state.adapters.slot_of(message.adapter) or NO_ADAPTER,
        )
        for index in range(message.n)
    ]


def knows(state: State, request_id: str) -> bool:
    """True while an answer of the request waits or runs."""
    return any(request_id in place for place in (state.waiting, state.row_of, state.groups, state.compilations))


def abort(state: State, request_id: str, index: int | None = None) -> list[RowOutput]:
    """End the request, or one answer of it that has begun, at once; nothing when it is unknown. A step under way with it computes in
    vain."""
    if index is None and state.compilations.drop(request_id):
        return [RowOutput(request_id, (), "abort")]
    ended = _remove(state, request_id) if index is None else _remove_one(state, choice_key(request_id, index))
    return [RowOutput(one.request_id, (), "abort", None, one.index) for one in ended]


def expire(state: State, now_ms: float) -> list[RowOutput]:
    """End every request whose deadline has passed. Called before each plan, so that none of them reaches the device."""
    outputs = state.compilations.expire(now_ms)
    while state.deadlines and state.deadlines[0][0] <= now_ms:
        deadline, request_id = heapq.heappop(state.deadlines)
        outputs += [_late(ended) for ended in _remove(state, request_id, deadline)]
    return outputs


def _late(ended: Request) -> RowOutput:
    if ended.generated:
        said = f"the deadline passed after {ended.generated} tokens"
        return RowOutput(ended.request_id, (), "error", said, ended.index, Refusal("expired", 0.0, said))
    why = Refusal("expired", 0.0, "the deadline passed before the first token")
    return RowOutput(ended.request_id, (), "refused", None, ended.index, why)


def _remove(state: State, request_id: str, deadline: float | None = None) -> list[Request]:
    """Take every answer of the request out; with `deadline`, only if it is this request's: an id may have come again."""
    keys = state.groups.get(request_id, [request_id])
    twins = state.twins.get(request_id, [])
    found = [request for key in keys if (request := _find(state, key)) is not None]
    if deadline is not None and any(request.deadline_ms != deadline for request in found):
        return []
    state.twins.pop(request_id, None)
    for request in found:
        _take_out(state, request)
    return [state.leave(request) for request in (*found, *twins)]


def _remove_one(state: State, key: str) -> list[Request]:
    """Its siblings that wait for the prompt are let go: the sibling that answered has computed it."""
    request = _find(state, key)
    if request is None:
        return []
    _take_out(state, request)
    state.release_twins()
    return [state.leave(request)]


def _take_out(state: State, request: Request) -> None:
    row = state.row_of.get(request.key)
    if row is not None:
        state.unseat(row)
    else:
        state.waiting.pop(request.key)


def _find(state: State, key: str) -> Request | None:
    row = state.row_of.get(key)
    return state.waiting.get(key) if row is None else state.request(row)
