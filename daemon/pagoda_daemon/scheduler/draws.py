"""sampling_rows: what is not greedy in a step, gathered from the rows' table. Called by `plan`; pure."""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.arrays import Bools, Ints, no_ids
from pagoda_daemon.core.batch import GREEDY, Masks, SamplingRows, ScoredTokens, ShapedRow
from pagoda_daemon.kv.pool import BrokenAccountsError
from pagoda_daemon.scheduler.pooling import pooled_tokens
from pagoda_daemon.scheduler.sampling import MASKED, RANDOM, SCORED, SHAPED, SPOKEN
from pagoda_daemon.scheduler.state import State


def sampling_rows(state: State, rows: Ints, starts: Ints, sample: Bools) -> SamplingRows:
    """For a step in which `rows[i]` feeds the flat indexes from `starts[i]`, and samples where `sample[i]`."""
    table = state.rows.sampling
    features = table.features[rows]
    if not features.any():
        return GREEDY
    drawn, used = rows[sample], features[sample]
    return SamplingRows(
        random=table.draws[drawn] if (used & RANDOM).any() else None,
        shaped=tuple(_shaped(state, index, int(drawn[index])) for index in np.flatnonzero(used & SHAPED).tolist()),
        top_logprobs=table.top_logprobs[drawn] if (used & SPOKEN).any() else None,
        scored=_scored(state, rows, starts, features),
        pooled=pooled_tokens(state, rows, starts, features),
        masks=_masks(state, drawn, np.flatnonzero(used & MASKED).astype(np.int32)),
    )


def _masks(state: State, drawn: Ints, at: Ints) -> Masks | None:
    if not at.size:
        return None
    words = [state.request(row).mask for row in drawn[at].tolist()]
    known = [one for one in words if one is not None]
    if len(known) < len(words):
        raise BrokenAccountsError(f"of the rows {drawn[at].tolist()} one samples without its mask")
    return Masks(at, np.stack(known))


def _shaped(state: State, index: int, row: int) -> ShapedRow:
    shaping = state.rows.sampling.shaping[row]
    if shaping is None:
        raise BrokenAccountsError(f"row {row} is marked as shaped and is not")
    return ShapedRow(index, shaping, state.rows.tokens[row, : state.rows.target[row]].copy(), state.request(row).prompt_len)


def _scored(state: State, rows: Ints, starts: Ints, features: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> ScoredTokens | None:
    parts = [_scored_row(state, int(rows[i]), int(starts[i]), int(starts[i + 1])) for i in np.flatnonzero(features & SCORED)]
    parts = [part for part in parts if part.fed.size]
    return ScoredTokens(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else None


def _scored_row(state: State, row: int, start: int, end: int) -> ScoredTokens:
    """Of the tokens fed, those before a prompt token that has no score yet: none twice after a preemption."""
    request, fed = state.request(row), int(state.rows.fed[row])
    top = request.sampling.prompt_logprobs
    places = np.arange(max(fed, request.scored), min(fed + end - start, request.prompt_len - 1), dtype=np.int32)
    if top is None or not places.size:
        return ScoredTokens(no_ids(), no_ids(), no_ids(), no_ids())
    targets = state.rows.tokens[row, places + 1]
    return ScoredTokens(np.full_like(places, row), places - fed + start, targets, np.full_like(places, top))
