"""Drive the deciding core and a worker without processes: submit requests, step until all have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagoda_daemon.core.batch import StepPlan, StepResult
from pagoda_daemon.core.messages import RowOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.scheduler.admission import Arrival, expire, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State


@dataclass
class Drive:
    """A state, a worker, and everything that came out."""

    worker: Worker
    max_concurrency: int = 32
    token_budget: int = 64
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[RowOutput]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    outputs: list[RowOutput] = field(default_factory=list)
    keep_plans: bool = True
    prefix_caching: bool = True
    depth: int = 1
    admission: bool = False
    results: deque[tuple[StepPlan, StepResult]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        limits = Limits.of(self.worker.limits, self.max_concurrency, self.token_budget, prefix_caching=self.prefix_caching)
        self.state = State(limits if self.admission else replace(limits, queue_tokens=1 << 40, committed_blocks=1 << 40))
        self.now_ms = 0.0

    def submit(self, request_id: str, prompt: Sequence[int], sampling: Sampling | int, **more: Any) -> None:
        """`sampling` may be a number of greedy tokens; `more` are fields of Submit."""
        chosen = Sampling(max_tokens=sampling) if isinstance(sampling, int) else sampling
        refused = submit(self.state, Submit(request_id, tuple(prompt), chosen, **more), Arrival(self.now_ms, seed=1))
        self.take([refused] if refused else [])

    def step(self, between: Callable[[StepPlan], None] | None = None) -> StepPlan | None:
        """Plan until `depth` steps are in flight, commit the oldest; `between` runs before each commit. A device executes plans in
        order, so executing at once is what it does."""
        self.take(expire(self.state, self.now_ms))
        while len(self.results) < self.depth and (step := plan(self.state, self.now_ms)) is not None:
            if self.keep_plans:
                self.plans.append(step)
            self.results.append((step, self.worker.execute(step)))
        if not self.results:
            return None
        done, result = self.results.popleft()
        if between is not None:
            between(done)
        self.now_ms += 1.0
        self.take(commit(self.state, result, self.now_ms))
        return done

    def take(self, outputs: Sequence[RowOutput]) -> None:
        if self.keep_plans:
            self.outputs += outputs
        for output in outputs:
            name = output.request_id if output.index == 0 else f"{output.request_id}/{output.index}"
            self.tokens.setdefault(name, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends.setdefault(name, []).append(output)

    def drain(self, limit: int = 100_000) -> None:
        """Step until idle; fails rather than loops for ever."""
        for _ in range(limit):
            if self.step() is None:
                assert self.state.idle, f"nothing planned, yet {self.state.stats()}"
                self.state.check()
                return
        raise AssertionError(f"not drained after {limit} steps: {self.state.stats()}")
