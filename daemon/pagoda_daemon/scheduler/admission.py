"""Requests in and out by the client's will: submit and abort. Called by the engine's loop; pure.

The front has validated what a user may write; what is refused here can never run, whatever the load.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.engine.messages import RowOutput, Submit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.sampling import sampling_refusal
from pagoda_daemon.scheduler.state import Request, State

REFUSED = "never_fits"
"""First word of the error of a request that was refused here."""

_SEED_MASK = 2**64 - 1


def refusal(submit: Submit, limits: Limits) -> str | None:
    """Why the request can never run, naming the numbers; None when it can."""
    worker, prompt, wanted = limits.worker, len(submit.prompt), submit.sampling.max_tokens
    if prompt < 1 or wanted < 1:
        return f"a prompt of {prompt} tokens with max_tokens {wanted}: both must be at least 1"
    if min(submit.prompt) < 0 or max(submit.prompt) >= worker.vocab_size:
        return f"token ids from {min(submit.prompt)} to {max(submit.prompt)}: accepted are 0 to {worker.vocab_size - 1}"
    if prompt + wanted > worker.max_model_len:
        return f"{prompt} prompt tokens and max_tokens {wanted} exceed the context of {worker.max_model_len}"
    needed = limits.blocks(prompt + wanted - 1)
    if needed > worker.blocks_total:
        return f"{prompt} prompt tokens and max_tokens {wanted} need {needed} blocks, the whole pool has {worker.blocks_total}"
    return sampling_refusal(submit.sampling, worker.vocab_size)


def submit(state: State, message: Submit, drawn_seed: int) -> RowOutput | None:
    """Queue the request; an output at once when it is refused. `drawn_seed` serves those that bring none."""
    why = refusal(message, state.limits)
    if why is not None:
        return RowOutput(message.request_id, (), "error", f"{REFUSED}: {why}")
    seed = drawn_seed if message.sampling.seed is None else message.sampling.seed
    prompt = np.asarray(message.prompt, np.int32)
    state.enqueue(Request(message.request_id, state.arrivals, prompt, prompt.size, message.sampling, seed & _SEED_MASK))
    state.arrivals += 1
    return None


def knows(state: State, request_id: str) -> bool:
    """True while the request waits or runs."""
    return request_id in state.waiting or request_id in state.row_of


def abort(state: State, request_id: str) -> RowOutput | None:
    """End the request; None when it is unknown, or when a step is under way with it and `commit` will end it."""
    if request_id in state.waiting:
        state.dequeue(request_id)
        return RowOutput(request_id, (), "abort")
    row = state.row_of.get(request_id)
    if row is None:
        return None
    if state.in_flight is not None and row in state.in_flight.rows:
        state.request(row).aborted = True
        return None
    state.unseat(row)
    return RowOutput(request_id, (), "abort")
