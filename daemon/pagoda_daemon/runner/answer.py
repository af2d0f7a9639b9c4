"""answer: a step's logits → StepResult: sampled tokens, log-probabilities for those who asked, errors of single rows.

Called by the model worker. Whatever is wrong with one row becomes that row's error; the others get what they would have got alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.core.arrays import Bools, Floats, Ints
from pagoda_daemon.core.batch import NOT_FINITE, Logprobs, RowError, SamplingRows, StepPlan, StepResult
from pagoda_daemon.runner.logprobs import answer_logprobs, prompt_logprobs
from pagoda_daemon.runner.sampler import Sampler, unchosen


class Likeliest(NamedTuple):
    """Token ids and their logits, [rows] each; the logit is NaN where any of the row is."""

    tokens: Ints
    logits: Floats


def wanted_logits(plan: StepPlan) -> NDArray[np.int64]:
    """Flat indexes of the tokens that are looked at: the last of each row that samples, the scored prompt's, and what else is pooled."""
    last = plan.starts[1:][plan.sample] - 1
    scored, pooled = plan.sampling.scored, plan.sampling.pooled
    known = last if scored is None else np.concatenate((last, scored.fed))
    return (known if pooled is None else np.concatenate((known, np.setdiff1d(pooled.fed, known)))).astype(np.int64)


def answer(sampler: Sampler, plan: StepPlan, logits: Tensor, fed: Ints | None = None) -> StepResult:
    """`logits` are those of `wanted_logits`; `fed` the plan's tokens where some were not known when it was made."""
    rows = plan.rows[plan.sample]
    own, positions = logits[: rows.size], plan.lengths[plan.sample]
    sampling = plan.sampling if fed is None else _completed(plan, fed)
    tokens, wrong = sampler.sample(own, sampling, positions)
    errors = {int(rows[index]): why for index, why in wrong.items()}
    scores = _scores(plan, logits[rows.size :], errors)
    fine = _fine(rows, errors)
    return StepResult(rows[fine], tokens[fine], _errors(errors), _said(plan, own, (rows, tokens), fine), scores)


def answer_likeliest(plan: StepPlan, found: Likeliest) -> StepResult:
    """`answer` where the forward pass has chosen."""
    return sampled(plan.rows, found)


def sampled(rows: Ints, found: Likeliest) -> StepResult:
    """A token for each of `rows` that has one to choose."""
    wrong = unchosen(found.logits)
    if not wrong:
        return StepResult(rows, found.tokens)
    errors = {int(rows[index]): why for index, why in wrong.items()}
    fine = _fine(rows, errors)
    return StepResult(rows[fine], found.tokens[fine], _errors(errors))


def _fine(rows: Ints, errors: Mapping[int, str]) -> Bools:
    return ~np.isin(rows, list(errors)) if errors else np.ones(rows.size, np.bool_)


def _errors(errors: Mapping[int, str]) -> tuple[RowError, ...]:
    return tuple(RowError(row, why) for row, why in errors.items())


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
    found, finite = prompt_logprobs(logits[: plan.sampling.scored.fed.size], plan.sampling.scored)
    errors.update((row, NOT_FINITE) for row in found.rows[~finite].tolist())
    return found
