"""SimulatedWorker: a device that computes nothing and takes a set time. Used by `DaemonConfig.testing.simulated` and by tests.

The next token is a hash of all tokens so far, and it reads them back through the block tables from what earlier steps wrote. So any
schedule gives the same stream, and a wrong block table, position or recompute gives another one. No torch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.launch import SimulatedWorker as SimulatedSettings

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import Logprobs, Masks, Pooled, PooledTokens, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.lora.content import read_content
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.feedback import Feedback

DEFAULT_MAX_MODEL_LEN = 4096
BYTES_PER_TOKEN = 8
_MOST_WEIGHTS: Final = 2**30

# The finaliser of splitmix64. A weaker mix made (1, 2, 3) and (2, 1, 3) go on alike.
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


def next_token(tokens: NDArray[np.integer], vocab_size: int) -> int:
    """The token that follows `tokens`; depends on each of them and on its place."""
    return int(mixed(np.arange(tokens.size), tokens).sum(dtype=np.uint64) % np.uint64(vocab_size))


def mixed(positions: NDArray[np.integer], tokens: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A number for each token at its position; their sum names a context."""
    bits = ((positions.astype(np.uint64) + np.uint64(1)) << np.uint64(32)) + tokens.astype(np.uint64)
    for shift, factor in _ROUNDS:
        bits = (bits ^ (bits >> shift)) * factor
    return bits ^ (bits >> _LAST_SHIFT)


def expected_tokens(prompt: Sequence[int], count: int, vocab_size: int, adapter: str = "") -> tuple[int, ...]:
    """The stream that a request with `prompt` must get; `adapter` is a digest."""
    tokens, salt = np.asarray(prompt, np.int64), salt_of(adapter)
    for _ in range(count):
        tokens = np.append(tokens, next_token(tokens + salt, vocab_size))
    return tuple(tokens[len(prompt) :].tolist())


class Digest(NamedTuple):
    """All of an adapter that a device which computes nothing needs."""

    digest: str
    rank: int = 1


def read_digest(directory: Path, root: Path | None) -> Digest:
    """AdapterRejected where the directory holds no adapter."""
    return Digest(read_content(directory, _MOST_WEIGHTS, root).digest)


def salt_of(digest: str) -> int:
    """What the adapter adds to each token, so that keys and values of one are of no use to another; 0 without one."""
    return int.from_bytes(hashlib.sha256(digest.encode()).digest()[:3], "big") << 32 if digest else 0


def simulated_limits(config: DaemonConfig) -> WorkerLimits:
    """As many blocks as full rows need, or as `kv_bytes` pays for at 8 bytes a token."""
    engine, vocab_size = config.engine, _simulated(config).vocab_size
    max_model_len = engine.max_model_len or DEFAULT_MAX_MODEL_LEN
    blocks = engine.max_concurrency * -(-max_model_len // engine.block_size)
    if engine.kv_bytes is not None:
        blocks = min(blocks, engine.kv_bytes // (BYTES_PER_TOKEN * engine.block_size))
    if blocks < 1:
        raise ConfigRejected(f"kvBytes {engine.kv_bytes} holds no block of {engine.block_size} tokens at {BYTES_PER_TOKEN} bytes each")
    return WorkerLimits(blocks, engine.block_size, vocab_size, max_model_len)


STATE: Final = 8  # numbers in an embedding


class SimulatedWorker:
    """KV is one array of token ids, each one more than it is: pages of zeros cost nothing until written, and read as -1."""

    def __init__(
        self,
        limits: WorkerLimits,
        step_ms: float = 0.0,
        pause: Callable[[float], object] | None = None,
        adapters: AdapterStore | None = None,
    ) -> None:
        self.limits = limits
        self.adapters = adapters
        self._step_ms = step_ms
        self._pause = pause or threading.Event().wait
        self._feedback = Feedback()
        self._kv = np.zeros((limits.blocks_total + 1, limits.block_size), np.int64)  # one more than the core knows of

    @classmethod
    def of(cls, config: DaemonConfig) -> SimulatedWorker:
        adapters = None if config.adapters is None else AdapterStore.of(config.adapters, read_digest)
        return cls(simulated_limits(config), _simulated(config).step_ms, adapters=adapters)

    def execute(self, plan: StepPlan) -> StepResult:
        row_index = np.repeat(np.arange(plan.rows.size), np.diff(plan.starts))
        size = self.limits.block_size
        self._kv[plan.copies[:, 1]] = self._kv[plan.copies[:, 0]]
        self._kv[plan.block_tables[row_index, plan.positions // size], plan.positions % size] = (
            self._feedback.token_ids(plan) + 1 + self._salts(plan)[row_index]
        )
        sampling = np.flatnonzero(plan.sample)
        tokens = [self._after(plan.block_tables[i], int(plan.lengths[i])) for i in sampling]
        if self._step_ms:
            self._pause(self._step_ms / 1000)
        result = result_of(plan, np.asarray(tokens, np.int32))
        self._feedback.note(result.rows, result.token_ids)
        return result

    def _salts(self, plan: StepPlan) -> NDArray[np.int64]:
        """What each row's adapter adds to its tokens."""
        slots = [0] * plan.rows.size if plan.adapters is None else plan.adapters.tolist()
        held = {} if self.adapters is None else self.adapters.held
        return np.asarray([salt_of(held[slot].digest) if slot else 0 for slot in slots], np.int64)

    def probe(self) -> None:
        """Nothing to warm, and nothing that could break."""

    def _after(self, table: Ints, length: int) -> int:
        blocks = table[: -(-length // self.limits.block_size)]
        return next_token(self._kv[blocks].reshape(-1)[:length] - 1, self.limits.vocab_size)


def result_of(plan: StepPlan, tokens: Ints) -> StepResult:
    """Log-probabilities where they are asked for: an answer is certain (0), a prompt was never likely (-9999). Under a
    mask the token chooses among those allowed."""
    if plan.sampling.masks is not None:
        tokens = _allowed(tokens, plan.sampling.masks)
    rows, top, scored = plan.rows[plan.sample], plan.sampling.top_logprobs, plan.sampling.scored
    said = None if top is None else _certain(rows[top >= 0], tokens[top >= 0], top[top >= 0], 0.0)
    scores = None if scored is None else _certain(scored.rows, scored.targets, scored.top, -9999.0)
    pooled = plan.sampling.pooled
    return StepResult(rows, tokens, (), said, scores, None if pooled is None else _summed(plan, pooled))


def _summed(plan: StepPlan, pooled: PooledTokens) -> Pooled:
    """The state of a token counts which of eight kinds it is."""
    rows, places = np.unique(pooled.rows, return_inverse=True)
    sums = np.zeros((rows.size, STATE), np.float32)
    np.add.at(sums, (places, plan.token_ids[pooled.fed] % STATE), 1.0)
    return Pooled(rows.astype(np.int32), np.bincount(places).astype(np.int32), sums)


def _allowed(tokens: Ints, masks: Masks) -> Ints:
    chosen = tokens.copy()
    for at, words in zip(masks.at.tolist(), masks.words, strict=True):
        ids = np.flatnonzero(np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little"))
        chosen[at] = ids[tokens[at] % ids.size]
    return chosen


def _certain(rows: Ints, tokens: Ints, top: Ints, logprob: float) -> Logprobs:
    """As many alternatives as asked for, of which only the first is real."""
    widest, values = int(top.max(initial=0)), np.full(rows.size, logprob, np.float32)
    ids = np.where(np.arange(widest) == 0, tokens[:, None], np.arange(widest, dtype=np.int32))
    below = np.where(np.arange(widest) == 0, values[:, None], np.float32(-9999.0))
    return Logprobs(rows, values, np.ones(rows.size, np.int32), ids, below, top)


def _simulated(config: DaemonConfig) -> SimulatedSettings:
    settings = config.testing.simulated if config.testing else None
    if settings is None:
        raise ConfigRejected("testing.simulated is absent: this configuration wants a real worker")
    return settings
