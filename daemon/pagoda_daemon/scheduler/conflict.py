"""conflict: which fields of a request together left its answer no token to choose. Called by `commit` once that has happened; pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from pagoda_daemon.core.arrays import Bools, Ints
from pagoda_daemon.core.batch import Masks
from pagoda_daemon.scheduler.request import Request


def conflict(request: Request, known: Ints, vocab_size: int) -> tuple[str, ...]:
    """The fewest that do it: one alone, or the first two; all that ban anything where it takes more. `known` are prompt and answer so far;
    "grammar" stands for whichever field said it."""
    left = _left(request, known[request.prompt_len :].tolist(), vocab_size)
    for names in (*combinations(left, 1), *combinations(left, 2)):
        if not np.logical_and.reduce([left[name] for name in names]).any():
            return names
    return tuple(left)


def _left(request: Request, answer: list[int], vocab_size: int) -> dict[str, Bools]:
    """What each field alone would let through as the next token."""
    sampling, found = request.sampling, {}
    if sampling.allowed_token_ids is not None:
        found["allowed_token_ids"] = ~_all_but(sampling.allowed_token_ids, vocab_size)
    if request.mask is not None:
        found["grammar"] = Masks(np.zeros(1, np.int32), request.mask[None]).allowed(vocab_size)[0]
    if len(answer) < sampling.min_tokens:
        found["min_tokens"] = _all_but(sampling.stop_token_ids, vocab_size)
    if sampling.bad_words:
        ends = [word[-1] for word in sampling.bad_words if answer[len(answer) - len(word) + 1 :] == list(word[:-1])]
        found["bad_words"] = _all_but(ends, vocab_size)
    return found


def _all_but(ids: Iterable[int], vocab_size: int) -> Bools:
    found = np.ones(vocab_size, np.bool_)
    found[[one for one in ids if one < vocab_size]] = False
    return found
