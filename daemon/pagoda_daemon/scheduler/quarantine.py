"""Quarantine: which row made a step raise? Called by `commit`; pure. `plan` gives suspects steps of their own until each has got past it.

A step that raises has written nothing that counts: its rows go back to what had landed, keep their blocks, and feed the same tokens again,
alone. So one request's fault ends that request, at the price of one small step for each of its companions; a fault that does not come
again ends no request that was in company.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.scheduler.state import Flight, State


def suspect(state: State, flight: Flight, rows: Ints) -> Ints:
    """Set `rows`, those of `flight` that still serve the request that it was planned for, back before it. Whose block was to be copied
    begins anew: the step after this one, already under way, may have overwritten the source. Returns those to which that happens a second
    time."""
    lost = _copied_to(state, flight, rows) if state.in_flight else rows[:0]
    back = rows[~np.isin(rows, lost)]
    counts = dict(zip(flight.plan.rows.tolist(), flight.counts.tolist(), strict=True))
    hot, state.steady = state.rows, None
    for row in back.tolist():
        request = state.request(row)
        state.suspects[request.key] = int(hot.computed[row]) + counts[row]
        hot.waits[row] = request.waits
    hot.fed[back] = hot.computed[back]
    hot.target[back] = hot.known[back]
    hot.epoch[back] += 1  # a later step under way fed what was never sampled
    return np.asarray([row for row in lost.tolist() if not _begin_anew(state, row)], np.int32)


def _begin_anew(state: State, row: int) -> bool:
    if state.request(row).retried:
        return False
    state.kv.spoil(row)
    request = state.unseat(row)
    request.retried = True
    state.waiting.push(request, head=True)
    return True


def acquit(state: State) -> None:
    """Let off the requests that have passed the place where the step raised, or are gone."""
    for key, place in list(state.suspects.items()):
        row = state.row_of.get(key)
        if row is None or state.rows.computed[row] >= place:
            del state.suspects[key]


def keep_copies(state: State, flight: Flight) -> None:
    """What the step should have copied for the requests that are tried again comes with the first of their steps."""
    if flight.plan.copies.size and not state.in_flight:
        mine = [row for key in state.suspects if (row := state.row_of.get(key)) is not None]
        blocks = [block for row in mine for block in state.kv.tables.blocks(row)]
        state.kv.give_copies_back(flight.plan.copies[np.isin(flight.plan.copies[:, 1], blocks)])


def _copied_to(state: State, flight: Flight, rows: Ints) -> Ints:
    if not flight.plan.copies.size:
        return rows[:0]
    targets = set(flight.plan.copies[:, 1].tolist())
    return np.asarray([row for row in rows.tolist() if targets.intersection(state.kv.tables.blocks(row))], np.int32)
