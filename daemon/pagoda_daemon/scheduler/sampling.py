"""What each row's request says of sampling, as arrays: filled when a row is seated, gathered by `draws` for a plan. Pure.

`features` tells in one byte what a row uses, so that a step in which no row uses anything gathers that byte and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from pagoda_daemon.core.sampling import DRAW, Sampling, Shaping, draw_of, shaping_of

RANDOM, SHAPED, SPOKEN, SCORED, MASKED, POOLED = (np.uint8(1 << bit) for bit in range(6))
"""Not greedy; logits are changed; log-probabilities of the answer; log-probabilities of the prompt; a grammar says which tokens; the
prompt's embedding is wanted."""

MAX_LOGPROBS = 100


class SamplingTable:
    """One entry per row."""

    def __init__(self, rows: int) -> None:
        self.features = np.zeros(rows, np.uint8)
        self.draws = np.zeros(rows, DRAW)
        self.top_logprobs = np.full(rows, -1, np.int32)
        self.shaping: list[Shaping | None] = [None] * rows

    def seat(self, row: int, sampling: Sampling, seed: int, *, constrained: bool = False) -> None:
        """Everything of `row` is written: nothing of the request that had it before is left."""
        self.draws[row] = draw_of(sampling, seed)
        self.top_logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        self.shaping[row] = shaping_of(sampling)
        self.features[row] = (
            RANDOM * (sampling.temperature > 0)
            | SHAPED * (self.shaping[row] is not None)
            | SPOKEN * (sampling.logprobs is not None)
            | SCORED * (sampling.prompt_logprobs is not None)
            | MASKED * constrained
            | POOLED * (sampling.pooling is not None)
        )


def sampling_refusal(sampling: Sampling, vocab_size: int) -> str | None:
    """Why the device must not see this: an id outside the vocabulary would fail the whole step, not the one request."""
    named = {
        "logit_bias": sampling.logit_bias,
        "bad_words": chain.from_iterable(sampling.bad_words),
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "stop_token_ids": sampling.stop_token_ids if sampling.min_tokens else (),  # else they are only compared with
    }
    for name, ids in named.items():
        if (wrong := _outside(ids, vocab_size)) is not None:
            return f"{name} holds token id {wrong}; token ids must be 0 to {vocab_size - 1}"
    if not all(sampling.bad_words) or sampling.allowed_token_ids == ():
        return "bad_words and allowed_token_ids hold at least one id each"
    if sampling.pooling is not None and sampling.prompt_logprobs is not None:
        return f"pooling {sampling.pooling} and prompt_logprobs exclude each other; give one of them"
    wanted = max(sampling.logprobs or 0, sampling.prompt_logprobs or 0)
    return f"{wanted} logprobs per token; at most {MAX_LOGPROBS} are allowed" if wanted > MAX_LOGPROBS else None


def _outside(ids: Iterable[int], vocab_size: int) -> int | None:
    return next((one for one in ids if not 0 <= one < vocab_size), None)
