"""refuse: whether a request that could run is let in now. Called by `admission.submit` alone; pure, time and luck are parameters.

An early refusal, after which another replica may take the request, is better than a queue in which every deadline passes. In this order:
draining; a deadline that has passed, or that the predicted first token would miss; a full queue, in tokens; memory, where every row is
taken and the worst case of all that was admitted exceeds what the pool can turn over; and, before the queue is full, a growing share of
newcomers. `retry_after_s` is when, by the measured step times, there should be room again.
"""

from __future__ import annotations

from pagoda_daemon.core.messages import Reason, Refusal, Submit
from pagoda_daemon.scheduler import forecast
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.request import rank_of
from pagoda_daemon.scheduler.state import State

_SHED_FROM = 0.8
_MAX_RETRY_S = 120.0
_MIN_RETRY_S = 1.0
_LOGPROB_BYTES = 32


def refuse(state: State, message: Submit, now_ms: float, luck: float) -> Refusal | None:
    """Why not now; None to let it in. `luck` is drawn from [0, 1)."""
    if state.draining:
        return _refusal("draining", 0.0, "this replica is draining; another one will take the request")
    return late(state, message, now_ms) or _crowded(state, message) or _heavy(state, message) or _unlucky(state, message, luck)


def late(state: State, message: Submit, now_ms: float, before_ms: float = 0.0) -> Refusal | None:
    """Whether the predicted first token would miss the deadline; `before_ms` pass before the request can be admitted."""
    if message.deadline_ms is None:
        return None
    left = message.deadline_ms - now_ms
    if left <= 0:
        return _refusal("expired", 0.0, "the deadline passed before the engine could begin the request")
    wait = before_ms + (_first_token_ms(state, message) if state.step_cost.known else 0.0)
    if left > wait:
        return None
    return _refusal("deadline", wait - left, f"the first token is expected in {wait:.0f} ms, the deadline is in {left:.0f} ms")


def _first_token_ms(state: State, message: Submit) -> float:
    slot = state.virtual.slot(message.tenant, message.weight)
    return forecast.first_token_ms(state, rank_of(message.tier, message.priority), slot, _known(message))


def _crowded(state: State, message: Submit) -> Refusal | None:
    tokens, most = state.waiting.tokens + _known(message), state.limits.queue_tokens
    if not state.waiting or tokens <= most:
        return None
    wait = forecast.drain_ms(state, tokens - most)
    return _refusal("queue_full", wait, f"{state.waiting.tokens} prompt tokens wait; at most {most} are allowed")


def _heavy(state: State, message: Submit) -> Refusal | None:
    """So many requests as there are rows are always let in: most end long before their max_tokens."""
    if state.present < state.limits.max_concurrency:
        return None
    limits = state.limits
    blocks = state.committed_blocks + worst_blocks(message, limits)
    if blocks > limits.committed_blocks:
        wait = forecast.blocks_ms(state, blocks - limits.committed_blocks)
        return _refusal(
            "memory_pressure", wait, f"admitted requests may grow to {blocks} blocks of KV; at most {limits.committed_blocks} are allowed"
        )
    log_probability_bytes = state.committed_bytes + logprob_bytes(message)
    if log_probability_bytes > limits.logprob_bytes:
        wait = forecast.ms_per_end(state)
        return _refusal(
            "memory_pressure",
            wait,
            f"log-probabilities may grow to {log_probability_bytes} bytes; at most {limits.logprob_bytes} are allowed",
        )
    return None


def _unlucky(state: State, message: Submit, luck: float) -> Refusal | None:
    most = state.limits.queue_tokens
    tokens = state.waiting.tokens + _known(message)
    share = (tokens / most - _SHED_FROM) / (1.0 - _SHED_FROM)
    if not state.waiting or luck >= share:
        return None
    wait = forecast.drain_ms(state, tokens - round(_SHED_FROM * most))
    return _refusal("load_shed", wait, f"{state.waiting.tokens} of {most} prompt tokens wait: {share:.0%} of new requests are turned away")


def _known(message: Submit) -> int:
    """Tokens to compute before the first new one."""
    return len(message.prompt) + len(message.resumed)


def worst_blocks(message: Submit, limits: Limits) -> int:
    """Blocks that all answers together may hold, the prompt's full ones once."""
    alone = limits.peak_blocks(len(message.prompt) + message.sampling.max_tokens - 1)
    shared = min(alone, len(message.prompt) // limits.worker.block_size)
    return alone + (message.n - 1) * (alone - shared)


def logprob_bytes(message: Submit) -> int:
    """What the log-probabilities of all answers may come to in the front."""
    sampling = message.sampling
    answer = 0 if sampling.logprobs is None else (1 + sampling.logprobs) * sampling.max_tokens * message.n
    prompt = 0 if sampling.prompt_logprobs is None else (1 + sampling.prompt_logprobs) * len(message.prompt)
    return _LOGPROB_BYTES * (answer + prompt)


def _refusal(reason: Reason, wait_ms: float, message: str) -> Refusal:
    return Refusal(reason, min(_MAX_RETRY_S, max(_MIN_RETRY_S, wait_ms / 1000.0)), message)
