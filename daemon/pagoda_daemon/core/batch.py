"""StepPlan, StepResult and the worker's limits: the types between the deciding core and whatever computes.

`scheduler` makes plans, a `runner.worker.Worker` answers them. Arrays, not objects per request: a step of 64 rows is ten arrays.
Knows neither torch nor requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from pagoda_daemon.core.arrays import Bools, Floats, Ints
from pagoda_daemon.core.sampling import DrawRows, Shaping

LAST_SAMPLED: Final = -1
"""As a token id in a plan: the token that this row sampled last, in the step before this one. The worker knows it; the core may not yet."""

NO_COPIES: Final[Ints] = np.zeros((0, 2), np.int32)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a loaded worker can hold. `sliding_window`: where every layer has a window, the widest one, the token itself counted: a block
    that lies wholly further back is never read again. None where one layer sees everything. `model` names weights and numerics in the names
    of blocks: two workers share it only if they would write the same keys and values. `computed_by`: device and instruction set, for
    people; two workers share it only if they compute alike. `device`: the uuid of the GPU or the MIG slice, as torch writes it; empty on
    CPU."""

    blocks_total: int
    block_size: int
    vocab_size: int
    max_model_len: int
    sliding_window: int | None = None
    model: str = ""
    computed_by: str = ""
    device: str = ""


def peak_blocks(tokens: int, block_size: int, window: int | None, budget: int) -> int:
    """Most blocks that a context of `tokens` holds at any time, when steps feed `budget` at most: less than all where a window lets the
    oldest go."""
    if window is None:
        return -(-tokens // block_size)
    most = window + budget
    return -(-min(tokens, most) // block_size) + (tokens > most)


class ShapedRow(NamedTuple):
    """The sampling row `at`, its shaping, and every token of it up to the last one fed (which may still be unknown to the plan, as it is in
    its `token_ids`). A worker keeps none of them, so none is stale after a preemption."""

    at: int
    shaping: Shaping
    tokens: Ints
    prompt_len: int


class ScoredTokens(NamedTuple):
    """Prompt tokens whose log-probability is wanted: `targets[i]` of `rows[i]` follows the token fed at flat index `fed[i]`, and is
    to be listed with the `top[i]` best."""

    rows: Ints
    fed: Ints
    targets: Ints
    top: Ints


class PooledTokens(NamedTuple):
    """Tokens whose states are wanted, summed over each row: what stands at flat index `fed[i]` is of `rows[i]`."""

    rows: Ints
    fed: Ints


class Masks(NamedTuple):
    """The sampling rows `at` may only draw ids whose bit is set: bit `id % 32` of word `id // 32` of the row's `words`."""

    at: Ints
    words: Ints

    def allowed(self, vocab_size: int) -> Bools:
        """[masked rows, vocab]."""
        bits = np.unpackbits(np.ascontiguousarray(self.words).view(np.uint8), axis=1, count=vocab_size, bitorder="little")
        return bits.view(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """What is not greedy in a step. Index i means the i-th row that samples. What no row of the step uses is absent and costs nothing.

    `top_logprobs[i]` is -1 where no log-probability is wanted, else how many of the best are listed beside the chosen token.
    """

    random: DrawRows | None = None
    shaped: tuple[ShapedRow, ...] = ()
    top_logprobs: Ints | None = None
    scored: ScoredTokens | None = None
    masks: Masks | None = None
    pooled: PooledTokens | None = None


GREEDY = SamplingRows()


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step. Row `rows[i]` feeds `token_ids[starts[i]:starts[i + 1]]` at the `positions` of the same indexes.

    `block_tables[i]` lists the row's blocks in order, padded with 0; they cover every position up to the last one fed.
    Where `sample[i]`, a token is sampled as `sampling` says; it stands at the position after the last one fed.

    Plans are executed in the order in which they were made; the next one may be made while one is executed. A token id LAST_SAMPLED
    stands for what the row sampled in the plan before. `copies` [n, 2] are blocks (source, destination) to copy before anything of this
    step is written: all sources are read first. Blocks and rows in a plan may have been given to others by the time its result is
    there; what it wrote is overwritten by theirs, later. `adapters[i]` is the slot of the row's adapter, 0 for none; None: no row has one.
    """

    step: int
    rows: Ints
    starts: Ints
    token_ids: Ints
    positions: Ints
    block_tables: Ints
    sample: Bools
    sampling: SamplingRows = GREEDY
    copies: Ints = field(default_factory=lambda: NO_COPIES, kw_only=True)
    adapters: Ints | None = field(default=None, kw_only=True)

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.token_ids.size)

    @property
    def decodes(self) -> bool:
        """Whether every row feeds one token and then takes the likeliest."""
        return self.sampling is GREEDY and self.token_ids.size == self.rows.size and bool(self.sample.all())

    @property
    def lengths(self) -> Ints:
        """Per row, the tokens in its context once the step is done."""
        last: Ints = self.positions[self.starts[1:] - 1] + 1
        return last


NOT_FINITE: Final = "the model's output is not finite"
NOTHING_LEFT: Final = "the request leaves no token to choose"


class RowError(NamedTuple):
    """One row could not be sampled; the others go on."""

    row: int
    message: str


class Logprobs(NamedTuple):
    """Of one token per entry, by the model alone: before bias, penalties and temperature. `rank` 1 is the best. The first `widths[i]`
    of `top_ids[i]` are the best tokens, best first, with their `top_logprobs[i]`."""

    rows: Ints
    logprob: Floats
    rank: Ints
    top_ids: Ints
    top_logprobs: Floats
    widths: Ints


class Pooled(NamedTuple):
    """Of each row the sum of the states of `counts` tokens: what the head reads, the last layer's output after the norm. [rows, hidden]"""

    rows: Ints
    counts: Ints
    sums: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One token for each row that sampled and had no error, log-probabilities for those that asked, in the plan's order. `compiled` kernels
    were not warm: the step waited for the compiler."""

    rows: Ints
    token_ids: Ints
    errors: tuple[RowError, ...] = ()
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    pooled: Pooled | None = None
    compiled: int = 0
