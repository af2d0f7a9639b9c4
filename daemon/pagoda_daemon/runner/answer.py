"""answer: a step's logits → StepResult: sampled tokens, log-probabilities for those who asked, errors of single rows.

Called by the torch worker. Whatever is wrong with one row becomes that row's error; the others get what they would have got alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.batch import NOT_FINITE, Bools, Ints, Logprobs, RowError, SamplingRows, StepPlan, StepResult
from pagoda_daemon.runner.logprobs import answer_logprobs, prompt_logprobs
from pagoda_daemon.runner.sampler import Sampler


def wanted_logits(plan: StepPlan) -> NDArray[np.int64]:
    """Flat indexes of the tokens whose logits are needed: the last of each row that samples, then the scored prompt's."""
    last = plan.starts[1:][plan.sample] - 1
    scored = plan.sampling.scored
    return (last if scored is None else np.concatenate((last, scored.fed))).astype(np.int64)


def answer(sampler: Sampler, plan: StepPlan, logits: Tensor, fed: Ints | None = None) -> StepResult:
    """`logits` are those of `wanted_logits`; `fed` the plan's tokens where some were not known when it was made."""
    rows = plan.rows[plan.sample]
    own, positions = logits[: rows.size], plan.lengths[plan.sample]
    sampling = plan.sampling if fed is None else _completed(plan, fed)
    tokens, wrong = sampler.sample(own, sampling, positions)
    errors = {int(rows[index]): why for index, why in wrong.items()}
    scores = _scores(plan, logits[rows.size :], errors)
    fine = ~np.isin(rows, list(errors)) if errors else np.ones(rows.size, np.bool_)
    return StepResult(
        rows[fine],
        tokens[fine],
        tuple(RowError(row, why) for row, why in errors.items()),
        _said(plan, own, (rows, tokens), fine),
        scores,
    )


def _completed(plan: StepPlan, fed: Ints) -> SamplingRows:
    """The last token of a row that samples is the last one it was fed: known by now, also where it was sampled in the step before."""
    last = fed[plan.starts[1:] - 1][plan.sample]
    shaped = [row._replace(tokens=np.append(row.tokens[:-1], last[row.at])) for row in plan.sampling.shaped]
    return replace(plan.sampling, shaped=tuple(shaped)) if shaped else plan.sampling


def _said(plan: StepPlan, logits: Tensor, sampled: tuple[Ints, Ints], fine: Bools) -> Logprobs | None:
    top = plan.sampling.top_logprobs
    if top is None:
        return None
    rows, tokens = sampled
    return answer_logprobs(logits, tokens, rows, np.where(fine, top, -1).astype(np.int32))


def _scores(plan: StepPlan, logits: Tensor, errors: dict[int, str]) -> Logprobs | None:
    """Adds to `errors` the rows whose prompt has no finite score."""
    if plan.sampling.scored is None:
        return None
    found, finite = prompt_logprobs(logits, plan.sampling.scored)
    errors.update((row, NOT_FINITE) for row in found.rows[~finite].tolist())
    return found
