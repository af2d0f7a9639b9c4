"""Embeddings: which tokens' states a step is to sum, and what their sums come to over the chunks of a prompt. Called by `draws` and
`commit`; pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.core.arrays import Ints, no_ids
from pagoda_daemon.core.batch import Pooled, PooledTokens
from pagoda_daemon.scheduler.request import Request
from pagoda_daemon.scheduler.sampling import POOLED
from pagoda_daemon.scheduler.state import State

_TINY = 1e-12


def pooled_tokens(state: State, rows: Ints, starts: Ints, features: NDArray[np.uint8]) -> PooledTokens | None:
    """For a step in which `rows[i]` feeds the flat indexes from `starts[i]`."""
    parts = [_of_row(state, int(rows[i]), int(starts[i]), int(starts[i + 1])) for i in np.flatnonzero(features & POOLED)]
    parts = [part for part in parts if part.fed.size]
    return PooledTokens(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else None


def _of_row(state: State, row: int, start: int, end: int) -> PooledTokens:
    """Of the tokens fed, those of the prompt that count and were not summed before a preemption."""
    request, fed = state.request(row), int(state.rows.fed[row])
    first = request.prompt_len - 1 if request.sampling.pooling == "last" else request.scored
    places = np.arange(max(fed, first), min(fed + end - start, request.prompt_len), dtype=np.int32)
    return PooledTokens(np.full_like(places, row), places - fed + start) if places.size else PooledTokens(no_ids(), no_ids())


def gather(state: State, pooled: Pooled, landed: Ints) -> None:
    """Add the step's sums to the requests of the rows that still hold them."""
    current = set(landed.tolist())
    for row, count, total in zip(pooled.rows.tolist(), pooled.counts.tolist(), pooled.sums, strict=True):
        if row in current:
            request = state.request(row)
            request.scored += count
            request.pooled = total if request.pooled is None else request.pooled + total


def embedding(request: Request) -> bytes | None:
    """The mean, or the one state, at length 1, as little-endian fp32; None where it is not finite or not there."""
    if request.pooled is None:
        return None
    mean = request.pooled.astype(np.float64) / max(1, request.scored)
    if not np.isfinite(mean).all():
        return None
    return (mean / max(_TINY, float(np.linalg.norm(mean)))).astype("<f4").tobytes()
