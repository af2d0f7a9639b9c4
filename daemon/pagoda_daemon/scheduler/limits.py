"""Limits: what the core may plan with. Made once, at the end of loading, from the configuration and the worker's own limits."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_daemon.batch import WorkerLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """`token_budget` tokens a step, `max_concurrency` rows; the rest is the worker's."""

    worker: WorkerLimits
    max_concurrency: int
    token_budget: int

    @classmethod
    def of(cls, worker: WorkerLimits, max_concurrency: int, token_budget: int) -> Limits:
        """A budget smaller than the rows is raised to them: every running request gets a token in every step."""
        return cls(worker, max_concurrency, max(token_budget, max_concurrency))

    def blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens`."""
        return -(-tokens // self.worker.block_size)
