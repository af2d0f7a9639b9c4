"""StepPlan, StepResult and the worker's limits: the nouns between the deciding core and whatever computes.

`scheduler` makes plans, a `runner.worker.Worker` answers them. Arrays, not objects per request: a step of 64 rows is ten arrays.
Knows neither torch nor requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Seeds = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a loaded worker can hold."""

    blocks_total: int
    block_size: int
    vocab_size: int
    max_model_len: int
    sliding_window: int | None = None
    """Where every layer has a window, the widest one: a block that lies wholly further back is never read again."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step. Row `rows[i]` feeds `token_ids[starts[i]:starts[i + 1]]` at the `positions` of the same indexes.

    `block_tables[i]` lists the row's blocks in order, padded with 0; they cover every position up to the last one fed.
    The last four arrays count only where `sample[i]`; the token that is sampled stands at the position after the last one fed.
    """

    step: int
    rows: Ints
    starts: Ints
    token_ids: Ints
    positions: Ints
    block_tables: Ints
    sample: Bools
    temperature: Floats
    top_p: Floats
    top_k: Ints
    seeds: Seeds

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.token_ids.size)

    @property
    def lengths(self) -> Ints:
        """Per row, the tokens in its context once the step is done."""
        last: Ints = self.positions[self.starts[1:] - 1] + 1
        return last


class RowError(NamedTuple):
    """One row could not be sampled; the others go on."""

    row: int
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """One token for each row that sampled and had no error."""

    rows: Ints
    token_ids: Ints
    errors: tuple[RowError, ...] = ()
