"""Plans of one shape, for `engine.deterministic`: every forward pass has the same number of tokens, each of them a row of its own.

Called by the model worker. A matrix product rounds otherwise for 1, 7 and 40 rows (other kernels, other blocking), so in bf16 a token's
logits depend on how many others share the step. With one shape only, and each token attended alone, a token's numbers are a function of
its context: whatever else is in the batch, however the prompt is cut, however often it is computed again. Padding repeats token 0 in a
spare block. What it costs is in docs/sampling.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.model.config import ModelSpec

# One tile of AMX rows, where more are not cheaper per pass; without AMX 8 rows are cheaper alone and dearer together.
_SIZE = 16


def pass_size(spec: ModelSpec) -> int:
    """Tokens per pass. In a sparse model the number of tokens that share an expert is a matter of company: there each goes alone."""
    return _SIZE if spec.experts is None else 1


class Pass(NamedTuple):
    """A plan of one size, all rows of which or none sample; `wanted` are the places of the answer that its rows `taken` give."""

    plan: StepPlan
    wanted: NDArray[np.intp]
    taken: NDArray[np.intp]


def passes(plan: StepPlan, wanted: NDArray[np.int64], spare_block: int, size: int) -> Iterator[Pass]:
    """`plan` cut into passes, in order of its tokens: a row's earlier tokens are written before its later ones look. `wanted` are the flat
    indexes of the tokens whose logits are asked for."""
    row_of = np.repeat(np.arange(plan.rows.size), np.diff(plan.starts))
    for start in range(0, plan.tokens, size):
        end = min(start + size, plan.tokens)
        asked = np.flatnonzero((wanted >= start) & (wanted < end))
        cut = _one_token_rows(plan, row_of[start:end], np.arange(start, end), size, spare_block)
        yield Pass(replace(cut, sample=np.full(size, asked.size > 0, np.bool_)), asked, wanted[asked] - start)


def _one_token_rows(plan: StepPlan, rows: NDArray[np.intp], tokens: NDArray[np.intp], size: int, spare_block: int) -> StepPlan:
    tables = np.full((size, plan.block_tables.shape[1]), spare_block, np.int32)
    tables[: tokens.size] = plan.block_tables[rows]
    fed = np.zeros((2, size), np.int32)
    fed[:, : tokens.size] = plan.token_ids[tokens], plan.positions[tokens]
    return StepPlan(
        step=plan.step,
        rows=np.arange(size, dtype=np.int32),
        starts=np.arange(size + 1, dtype=np.int32),
        token_ids=fed[0],
        positions=fed[1],
        block_tables=tables,
        sample=np.zeros(size, np.bool_),
    )
