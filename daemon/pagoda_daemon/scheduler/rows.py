"""Rows: the hot half of every running request, arrays that a step reads and writes, one entry per row. Owned by `scheduler.state`.

Of one row's tokens the first `computed` have landed, the first `fed` are planned, the first `known` have values, and `target` is where the
context ends once every planned step has landed: `target - known` tokens are being sampled, and stand in `tokens` as LAST_SAMPLED. A row
that `waits` (1) for its mask keeps its last token back, since feeding it samples.
"""

from __future__ import annotations

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import LAST_SAMPLED
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.request import Request
from pagoda_daemon.scheduler.sampling import SamplingTable

# Stop ids that are compared as an array; the few requests with more of them are looked at one by one.
STOP_IDS = 8


class Rows:
    """`epoch` counts a row's tenants: what was planned for an earlier one is known by it."""

    def __init__(self, limits: Limits) -> None:
        count = limits.max_concurrency
        self.live = np.zeros(count, np.bool_)
        self.epoch = np.zeros(count, np.int32)
        self.known = np.zeros(count, np.int32)
        self.computed = np.zeros(count, np.int32)
        self.fed = np.zeros(count, np.int32)
        self.target = np.zeros(count, np.int32)
        self.last = np.ones(count, np.int32)
        self.arrival = np.zeros(count, np.int64)
        self.rank = np.zeros(count, np.int32)
        self.tenant = np.zeros(count, np.int32)
        self.adapter = np.zeros(count, np.int32)
        self.stops = np.full((count, STOP_IDS), LAST_SAMPLED, np.int32)
        self.many_stops = np.zeros(count, np.bool_)
        self.constrained = np.zeros(count, np.bool_)
        self.waits = np.zeros(count, np.int32)
        # Pages of zeros cost nothing until written, so this is as large as the contexts that were really used.
        self.tokens = np.zeros((count, limits.worker.max_model_len + 1), np.int32)
        self.sampling = SamplingTable(count)

    def seat(self, row: int, request: Request) -> None:
        """Everything of `request` but what is computed already."""
        size, sampling = request.tokens.size, request.sampling
        self.live[row] = True
        self.known[row] = self.target[row] = size
        self.last[row] = request.last_len
        self.arrival[row] = request.arrival
        self.rank[row] = request.rank
        self.tenant[row] = request.tenant
        self.adapter[row] = request.adapter
        self.tokens[row, :size] = request.tokens
        self.stops[row] = LAST_SAMPLED
        stops = sampling.stop_token_ids[:STOP_IDS]
        self.stops[row, : len(stops)] = stops
        self.many_stops[row] = len(sampling.stop_token_ids) > STOP_IDS
        self.constrained[row] = request.grammar is not None
        self.waits[row] = request.waits
        self.sampling.seat(row, sampling, request.seed, constrained=request.grammar is not None)

    def start(self, row: int, computed: int) -> None:
        """The first `computed` tokens need not be fed."""
        self.computed[row] = self.fed[row] = computed

    def vacate(self, row: int) -> None:
        self.live[row] = False
        self.epoch[row] += 1
        # What has no request needs nothing: `need` is a plain difference.
        self.known[row] = self.computed[row] = self.fed[row] = self.target[row] = self.waits[row] = 0
        self.last[row] = 1

    def need(self) -> Ints:
        """Tokens of each row that could be fed now; the last one of a complete context never is. Below 0: fed, and waiting for a mask."""
        wanted: Ints = np.minimum(self.target, self.last - 1) - self.fed - self.waits
        return wanted

    def prefill_tokens(self) -> int:
        """How many tokens rows have to compute before they get their next one; a row that only decodes has none."""
        need = self.need()
        return int(need[need > 1].sum())

    def adapters(self, rows: Ints) -> Ints | None:
        """Slots of the adapters of `rows`; None if none has one."""
        slots: Ints = self.adapter[rows]
        return slots if slots.any() else None

    def known_tokens(self, row: int) -> Ints:
        """A copy of what has a value."""
        return self.tokens[row, : self.known[row]].copy()
