"""Plans of one shape, for `engine.deterministic`: every forward pass has exactly `SIZE` tokens, each of them a row of its own.

Called by the torch worker. A matrix product rounds otherwise for 1, 7 and 40 rows (other kernels, other blocking), so in bf16 a token's
logits depend on how many others share the step. With one shape only, and each token attended alone, a token's numbers are a function of
its context: whatever else is in the batch, however the prompt is cut, however often it is computed again. Padding repeats token 0 in a
spare block. What it costs is in docs/engine.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.batch import StepPlan

# One tile of AMX rows, where more are not cheaper per pass; without AMX 8 rows are cheaper alone and dearer together.
SIZE = 16


class Pass(NamedTuple):
    """A plan of `SIZE` rows, all of which or none sample; `wanted` are the places of the answer that its rows `taken` give."""

    plan: StepPlan
    wanted: NDArray[np.intp]
    taken: NDArray[np.intp]


def passes(plan: StepPlan, wanted: NDArray[np.int64], spare_block: int) -> Iterator[Pass]:
    """`plan` cut into passes, in order of its tokens: a row's earlier tokens are written before its later ones look. `wanted` are the flat
    indexes of the tokens whose logits are asked for."""
    row_of = np.repeat(np.arange(plan.rows.size), np.diff(plan.starts))
    for start in range(0, plan.tokens, SIZE):
        end = min(start + SIZE, plan.tokens)
        asked = np.flatnonzero((wanted >= start) & (wanted < end))
        yield Pass(_cut(plan, row_of, slice(start, end), spare_block, sample=asked.size > 0), asked, wanted[asked] - start)


def _cut(plan: StepPlan, row_of: NDArray[np.intp], tokens: slice, spare_block: int, *, sample: bool) -> StepPlan:
    count = tokens.stop - tokens.start
    tables = np.full((SIZE, plan.block_tables.shape[1]), spare_block, np.int32)
    tables[:count] = plan.block_tables[row_of[tokens]]
    fed = np.zeros((2, SIZE), np.int32)
    fed[:, :count] = plan.token_ids[tokens], plan.positions[tokens]
    return StepPlan(
        step=plan.step,
        rows=np.arange(SIZE, dtype=np.int32),
        starts=np.arange(SIZE + 1, dtype=np.int32),
        token_ids=fed[0],
        positions=fed[1],
        block_tables=tables,
        sample=np.full(SIZE, sample, np.bool_),
    )
