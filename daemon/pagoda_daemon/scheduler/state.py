"""State: every request the engine has, as arrays over rows plus one queue. Changed by `admission`, `plan` and `commit` only.

A row is a request's fixed slot from the moment it runs until it ends or is preempted. A request is `target - fed` tokens to feed: prompt,
chunk of a prompt, one decode, what a known beginning left to do and recompute after a preemption are one case.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.core.messages import DeepCheckAnswer, DeepCheckPrompt, Stats, Tally
from pagoda_daemon.kv.accounts import KvAccounts
from pagoda_daemon.kv.adapters import AdapterTable
from pagoda_daemon.kv.index import Match
from pagoda_daemon.kv.pool import BrokenAccountsError
from pagoda_daemon.scheduler.compilations import Compilations
from pagoda_daemon.scheduler.cost import StepCost
from pagoda_daemon.scheduler.extra_row import with_extra_row
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.order import VirtualTokens, WaitingQueue
from pagoda_daemon.scheduler.request import Request
from pagoda_daemon.scheduler.rows import Rows
from pagoda_daemon.scheduler.slow import LEAST_MS, SlowStep, SlowSteps
from pagoda_daemon.scheduler.steps import Steps

_HABIT = 0.05


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan on its way; `epochs` tell whether a row still serves the request that it was planned for."""

    plan: StepPlan
    counts: Ints
    epochs: Ints
    context: int
    planned_ms: float
    deep_check: DeepCheckPrompt | None = None

    @property
    def tokens(self) -> int:
        """That the device computes."""
        return self.plan.tokens + (0 if self.deep_check is None else len(self.deep_check.prompt))


@dataclass(frozen=True, slots=True)
class Steady:
    """A flight that only decodes, as the next ones may. `tables` is the version of the block tables that it saw, `left` how many steps
    later one of its rows needs a block or has all its tokens."""

    flight: Flight
    tables: int
    left: int


@dataclass(slots=True)
class Habits:
    """What answers were like when they ended: running averages of tokens generated and blocks used. The first guess is soon forgotten."""

    generated: float = 64.0
    blocks: float = 16.0

    def observe(self, generated: int, blocks: int) -> None:
        self.generated += _HABIT * (generated - self.generated)
        self.blocks += _HABIT * (max(1, blocks) - self.blocks)


@dataclass(slots=True)
class Totals:
    """Counters that only grow."""

    steps: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0


class State:
    """What `plan` reads and `commit` writes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv = KvAccounts(limits.worker, limits.max_concurrency, caching=limits.prefix_caching)
        self.rows = Rows(limits)
        self.requests: list[Request | None] = [None] * limits.max_concurrency
        self.names: list[str] = [""] * limits.max_concurrency
        self.row_of: dict[str, int] = {}
        self.virtual = VirtualTokens()
        self.waiting = WaitingQueue(self.virtual)
        self.unreported: set[int] = set()  # rows whose next token carries their request's life
        self.deadlines: list[tuple[float, str]] = []
        self.groups: dict[str, list[str]] = {}
        self.twins: dict[str, list[Request]] = {}
        self.arrivals = 0
        self.totals = Totals()
        self.steps = Steps()
        self.step_cost = StepCost()
        self.habits = Habits()
        self.present = 0
        self.committed_blocks = 0
        self.committed_bytes = 0
        self.in_flight: deque[Flight] = deque()
        self.steady: Steady | None = None
        self.landed_ms = 0.0
        self.draining = False
        self.suspects: dict[str, int] = {}
        self.deep_check: DeepCheckPrompt | None = None
        self.deep_check_answer: DeepCheckAnswer | None = None
        self.unwatched: list[Request] = []
        self.compilations = Compilations()
        self.adapters = AdapterTable()
        self.slow = SlowSteps()
        self._free_rows = list(range(limits.max_concurrency - 1, -1, -1))

    @property
    def idle(self) -> bool:
        return not self.row_of and not self.waiting and not self.in_flight

    @property
    def preemptions(self) -> int:
        return self.totals.preemptions

    def stats(self) -> Stats:
        pool, totals = self.kv.pool, self.totals
        return Stats(
            running=len(self.row_of),
            waiting=len(self.waiting),
            waiting_tokens=self.waiting.tokens + self.compilations.tokens,
            blocks_used=pool.used,
            blocks_free=pool.free,
            blocks_total=pool.total,
            preemptions=totals.preemptions,
            steps=totals.steps,
            prompt_tokens=totals.prompt_tokens,
            reused_tokens=totals.reused_tokens,
            blocks_cached=pool.resting,
            compiling=len(self.compilations),
            prefill_tokens=self.rows.prefill_tokens(),
        )

    def tally(self) -> Tally:
        return self.steps.tally(sum(map(len, self.twins.values())), self.kv.pool.residency.totals())

    def request(self, row: int) -> Request:
        """The request that holds `row`."""
        request = self.requests[row]
        if request is None:
            raise BrokenAccountsError(f"row {row} is empty")
        return request

    def seat(self, request: Request, match: Match) -> int:
        """Give `request` the row that was freed last, and what is known of its tokens; there is a row, and blocks enough."""
        row = self._free_rows.pop()
        self.rows.seat(row, request)
        self.requests[row] = request
        self.names[row] = request.request_id
        self.row_of[request.key] = row
        if request.grammar is not None and not request.watched:
            self.unwatched.append(request)
        source = self.sibling(request)
        if source is None:
            computed = self.kv.open(row, request.chain, match)
        else:
            computed = self.kv.fork(row, request.chain, source, request.prompt_len - 1)
        self.rows.start(row, computed)
        self.unreported.add(row)
        self._account(request, computed)
        return row

    def _account(self, request: Request, computed: int) -> None:
        if request.charged:  # what is computed again is not the tenant's fault
            return
        request.charged = True
        computed = min(computed, request.prompt_len)  # of an answer that was begun elsewhere more may be known
        request.course.cached = computed
        self.virtual.charge_input(request.tenant, request.prompt_len - computed)
        self.totals.prompt_tokens += request.prompt_len
        self.totals.reused_tokens += computed

    def sibling(self, request: Request) -> int | None:
        """A row that has fed the prompt which `request`, not yet begun, shares with it, and still holds all of it: what left its window
        can only be found by its name."""
        if request.group is None or request.generated:
            return None
        for key in self.groups[request.group]:
            row = self.row_of.get(key)
            if row is not None and key != request.key and self.rows.fed[row] >= request.prompt_len and not self.kv.tables.gone[row]:
                return row
        return None

    def release_twins(self) -> None:
        """Queue the further answers of each request whose first one has its prompt computed, or is over."""
        for key in list(self.twins):
            row = self.row_of.get(key)
            if key not in self.waiting and (row is None or self.rows.computed[row] >= self.request(row).prompt_len):
                for twin in reversed(self.twins.pop(key)):
                    self.waiting.push(twin, head=True)

    def unseat(self, row: int) -> Request:
        """Take `row` and its blocks back; the request is handed out with every token known by now."""
        request = self.request(row)
        request.tokens = self.rows.known_tokens(row)
        self.kv.close(row, request.tokens[: self.rows.computed[row]])
        self.rows.vacate(row)
        self.unreported.discard(row)
        self.requests[row] = None
        del self.row_of[request.key]
        self._free_rows.append(row)
        return request

    def end(self, row: int) -> Request:
        """`unseat` for good."""
        blocks = int(self.kv.tables.counts[row])
        request = self.leave(self.unseat(row))
        self.habits.observe(request.generated, blocks)
        return request

    def enter(self, request: Request) -> None:
        """`request` is admitted."""
        self.present += 1
        self.adapters.use(request.adapter, 1)
        self.committed_blocks += request.blocks
        self.committed_bytes += request.logprob_bytes

    def leave(self, request: Request) -> Request:
        """`request`, which neither waits nor runs any more, is over."""
        self.present -= 1
        self.adapters.use(request.adapter, -1)
        self.committed_blocks -= request.blocks
        self.committed_bytes -= request.logprob_bytes
        if request.group is not None:
            members = self.groups[request.group]
            members.remove(request.key)
            if not members:
                del self.groups[request.group]
        return request

    def fly(self, flight: Flight) -> StepPlan:
        """What the device is to compute: the flight's plan, and a deep check that waits. None goes with suspects, lest it is blamed."""
        check = None if self.suspects else self.deep_check
        if check is None:
            self.in_flight.append(flight)
            return flight.plan
        self.deep_check = None
        self.in_flight.append(replace(flight, deep_check=check))
        return with_extra_row(flight.plan, check, self.limits)

    def take_deep_check_answer(self) -> DeepCheckAnswer | None:
        """The answer of a deep check since the last call."""
        deep_check_answer, self.deep_check_answer = self.deep_check_answer, None
        return deep_check_answer

    def land(self, now_ms: float) -> Flight:
        """The oldest plan is done. It began when it was planned or when the one before landed."""
        flight = self.lose()
        took_ms = now_ms - max(flight.planned_ms, self.landed_ms)
        if took_ms >= LEAST_MS and self.step_cost.known:
            self.slow.add(self._slow(flight, took_ms))
        self.step_cost.observe(flight.tokens, flight.context, took_ms)
        if flight.plan.rows.size:
            self.steps.add(flight.plan, flight.context, took_ms / 1000)
        self.landed_ms = now_ms
        return flight

    def _slow(self, flight: Flight, took_ms: float) -> SlowStep:
        predicted = self.step_cost.milliseconds(flight.tokens, flight.context)
        prompts = flight.counts[flight.counts > 1]
        held = (int(flight.plan.rows.size), int(prompts.size), int(prompts.sum()), flight.context)
        return SlowStep(took_ms, predicted, *held, flight.deep_check is not None)

    def lose(self) -> Flight:
        """The oldest plan is over, and how long it took means nothing."""
        if not self.in_flight:
            raise BrokenAccountsError("a result came without a plan")
        flight = self.in_flight.popleft()
        self.totals.steps += flight.plan.rows.size > 0  # a lone deep check is no progress for a request that waits
        return flight

    def predicted_step_ms(self) -> int:
        """Of the step under way, or of a single token."""
        flight = self.in_flight[0] if self.in_flight else None
        return self.step_cost.predict(flight.tokens, flight.context) if flight else self.step_cost.predict(1)

    def check(self) -> None:
        """Raise unless blocks, rows and requests agree."""
        self.kv.check()
        live = int(self.rows.live.sum())
        if live != len(self.row_of) or live + len(self._free_rows) != self.limits.max_concurrency or (self.idle and self.kv.pool.used):
            raise BrokenAccountsError(f"{live} rows live for {len(self.row_of)} requests, {self.stats()}")
        if live + len(self.waiting) == 0 and (self.groups or self.present or self.committed_blocks or self.committed_bytes):
            raise BrokenAccountsError(
                f"no request runs or waits, but {self.present} are counted, with {self.committed_blocks} blocks, groups {self.groups}"
            )
        if np.any(self.rows.need()[~self.rows.live]):
            raise BrokenAccountsError("a row without a request needs tokens")
