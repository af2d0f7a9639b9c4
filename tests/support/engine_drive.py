"""Drive the deciding core and a worker without processes: submit requests, step until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagoda_daemon.batch import StepPlan
from pagoda_daemon.engine.messages import RowOutput, Sampling, Submit
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.scheduler.admission import submit
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

    def __post_init__(self) -> None:
        self.state = State(Limits.of(self.worker.limits, self.max_concurrency, self.token_budget))
        self.now_ms = 0.0

    def submit(self, request_id: str, prompt: Sequence[int], sampling: Sampling | int) -> None:
        """`sampling` may be a number of greedy tokens."""
        chosen = Sampling(max_tokens=sampling) if isinstance(sampling, int) else sampling
        refused = submit(self.state, Submit(request_id, tuple(prompt), chosen), drawn_seed=1)
        self.take([refused] if refused else [])

    def step(self, between: Callable[[StepPlan], None] | None = None) -> StepPlan | None:
        """One plan, execute, commit; `between` runs while the step is in flight."""
        step = plan(self.state, self.now_ms)
        if step is None:
            return None
        if self.keep_plans:
            self.plans.append(step)
        result = self.worker.execute(step)
        if between is not None:
            between(step)
        self.now_ms += 1.0
        self.take(commit(self.state, result, self.now_ms))
        return step

    def take(self, outputs: Sequence[RowOutput]) -> None:
        if self.keep_plans:
            self.outputs += outputs
        for output in outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.ends.setdefault(output.request_id, []).append(output)

    def drain(self, limit: int = 100_000) -> None:
        """Step until idle; fails rather than loops for ever."""
        for _ in range(limit):
            if self.step() is None:
                assert self.state.idle, f"nothing planned, yet {self.state.stats()}"
                self.state.check()
                return
        raise AssertionError(f"not drained after {limit} steps: {self.state.stats()}")
