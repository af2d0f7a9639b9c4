"""Limits: what the core may plan with. Made once, at the end of loading, from the configuration and the worker's own limits."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_daemon.core.batch import WorkerLimits, peak_blocks

# What waits behind four whole pools of prompts has long missed its client.
_QUEUED_POOLS = 4
# Host memory for what logprobs hold until the front has fetched it.
_LOGPROB_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """`token_budget` tokens a step, `max_concurrency` rows, `queue_tokens` of prompts that wait; `committed_blocks` bounds the worst case
    of all that was admitted, `logprob_bytes` what its logprobs may hold."""

    worker: WorkerLimits
    max_concurrency: int
    token_budget: int
    queue_tokens: int = 0
    committed_blocks: int = 0
    logprob_bytes: int = _LOGPROB_BYTES
    prefix_caching: bool = True

    @classmethod
    def of(cls, worker: WorkerLimits, max_concurrency: int, token_budget: int, *, prefix_caching: bool = True) -> Limits:
        """A budget smaller than the rows is raised to them: every running request gets a token in every step."""
        queue_tokens = _QUEUED_POOLS * max(worker.blocks_total * worker.block_size, worker.max_model_len)
        return cls(
            worker,
            max_concurrency,
            max(token_budget, max_concurrency),
            queue_tokens,
            committed_blocks=(_QUEUED_POOLS + 1) * worker.blocks_total,
            prefix_caching=prefix_caching,
        )

    def blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens`."""
        return -(-tokens // self.worker.block_size)

    def peak_blocks(self, tokens: int) -> int:
        """Most blocks that a context of `tokens` holds at any time."""
        return peak_blocks(tokens, self.worker.block_size, self.worker.sliding_window, self.token_budget)
