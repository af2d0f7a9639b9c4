"""State: every request the engine has, as arrays over rows plus one queue. Changed by `admission`, `plan` and `commit` only.

A row is a request's fixed slot from the moment it runs until it ends or is preempted. A request is `known - computed` tokens
to feed: prompt, chunk of a prompt, one decode and recompute after a preemption are one case.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from pagoda_daemon.batch import Ints, StepPlan
from pagoda_daemon.engine.messages import Sampling, Stats
from pagoda_daemon.kv.pool import BlockPool, BrokenAccountsError
from pagoda_daemon.kv.tables import BlockTables
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.sampling import SamplingTable
from pagoda_daemon.scheduler.step_time import StepTime


@dataclass(slots=True)
class Request:
    """The cold half of a request: what no step reads. `tokens` holds all known ones while it waits."""

    request_id: str
    arrival: int
    tokens: Ints
    prompt_len: int
    sampling: Sampling
    seed: int
    aborted: bool = False
    scored: int = 0  # prompt tokens whose log-probability the front has

    @property
    def last_len(self) -> int:
        """Known tokens when the request is complete; the last one is never computed."""
        return self.prompt_len + self.sampling.max_tokens


class Rows:
    """The hot half: arrays that a step reads, one entry per row."""

    def __init__(self, limits: Limits) -> None:
        count = limits.max_concurrency
        self.live = np.zeros(count, np.bool_)
        self.arrival = np.zeros(count, np.int64)
        self.known = np.zeros(count, np.int32)
        self.computed = np.zeros(count, np.int32)
        # Pages of zeros cost nothing until written, so this is as large as the contexts that were really used.
        self.tokens = np.zeros((count, limits.worker.max_model_len), np.int32)
        self.sampling = SamplingTable(count)

    def by_arrival(self) -> Ints:
        """Rows in use, the oldest request first."""
        rows = np.flatnonzero(self.live)
        return rows[np.argsort(self.arrival[rows])].astype(np.int32)


class State:
    """What `plan` reads and `commit` writes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        worker = limits.worker
        self.tables = BlockTables(
            BlockPool(worker.blocks_total), limits.max_concurrency, limits.blocks(worker.max_model_len), worker.block_size
        )
        self.rows = Rows(limits)
        self.requests: list[Request | None] = [None] * limits.max_concurrency
        self.row_of: dict[str, int] = {}
        self.waiting: OrderedDict[str, Request] = OrderedDict()
        self.waiting_tokens = 0
        self.arrivals = 0
        self.preemptions = 0
        self.steps = 0
        self.step_time = StepTime()
        self.in_flight: StepPlan | None = None
        self.planned_ms = 0.0

    @property
    def idle(self) -> bool:
        return not self.row_of and not self.waiting

    def stats(self) -> Stats:
        pool = self.tables.pool
        return Stats(
            running=len(self.row_of),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting_tokens,
            blocks_used=pool.used,
            blocks_free=pool.free,
            blocks_total=pool.total,
            preemptions=self.preemptions,
            steps=self.steps,
        )

    def request(self, row: int) -> Request:
        """The request that holds `row`."""
        request = self.requests[row]
        if request is None:
            raise BrokenAccountsError(f"row {row} is empty")
        return request

    def enqueue(self, request: Request, *, head: bool = False) -> None:
        self.waiting[request.request_id] = request
        self.waiting.move_to_end(request.request_id, last=not head)
        self.waiting_tokens += request.tokens.size

    def dequeue(self, request_id: str) -> Request:
        request = self.waiting.pop(request_id)
        self.waiting_tokens -= request.tokens.size
        return request

    def seat(self, request: Request) -> int:
        """Give `request` the lowest free row; there is one."""
        rows, row = self.rows, int(np.argmin(self.rows.live))
        rows.live[row] = True
        rows.arrival[row] = request.arrival
        rows.known[row] = request.tokens.size
        rows.computed[row] = 0
        rows.tokens[row, : request.tokens.size] = request.tokens
        rows.sampling.seat(row, request.sampling, request.seed)
        self.requests[row] = request
        self.row_of[request.request_id] = row
        return row

    def unseat(self, row: int) -> Request:
        """Take `row` and its blocks back; the request is handed out with every token known by now."""
        request = self.request(row)
        request.tokens = self.rows.tokens[row, : self.rows.known[row]].copy()
        self.tables.drop(row)
        self.rows.live[row] = False
        self.requests[row] = None
        del self.row_of[request.request_id]
        return request

    def check(self) -> None:
        """Raise unless blocks, rows and requests agree."""
        self.tables.check()
        if int(self.rows.live.sum()) != len(self.row_of) or (self.idle and self.tables.pool.used):
            raise BrokenAccountsError(f"{int(self.rows.live.sum())} rows live for {len(self.row_of)} requests, {self.stats()}")
