"""A row that no request has, behind all others of a step. With it a deep check gets into the arrays of a plan, and its answer out of those
of a result. Called by `state` and `deep_check`; pure.

It is last, so it moves no other index. Its block is the one that the pool does not know: every worker has one more than `blocks_total`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import GREEDY, Logprobs, SamplingRows, StepPlan, StepResult
from pagoda_daemon.core.messages import DeepCheckPrompt
from pagoda_daemon.core.sampling import Sampling, draw_of
from pagoda_daemon.scheduler.limits import Limits

_TWO_BEST = 2
_GREEDY_DRAW = draw_of(Sampling(max_tokens=1), seed=0)


class ExtraAnswer(NamedTuple):
    """What the device said of the extra row; `token` None and `error` where it could not."""

    token: int | None
    margin: float | None
    error: str | None


def empty_plan(step: int) -> StepPlan:
    """Without any request."""
    none = np.zeros(0, np.int32)
    return StepPlan(step, none, np.zeros(1, np.int32), none, none, np.zeros((0, 1), np.int32), np.zeros(0, np.bool_))


def with_extra_row(plan: StepPlan, check: DeepCheckPrompt, limits: Limits) -> StepPlan:
    """`plan` with the check's whole prompt, which fits into one block."""
    prompt = np.asarray(check.prompt, np.int32)
    table = np.zeros((1, max(1, plan.block_tables.shape[1])), np.int32)
    table[0, 0] = limits.worker.blocks_total
    tables = np.concatenate([plan.block_tables.reshape(plan.rows.size, -1), table]) if plan.rows.size else table
    return replace(
        plan,
        rows=_and(plan.rows, limits.max_concurrency),
        starts=_and(plan.starts, int(plan.starts[-1]) + prompt.size),
        token_ids=np.concatenate([plan.token_ids, prompt]),
        positions=np.concatenate([plan.positions, np.arange(prompt.size, dtype=np.int32)]),
        block_tables=tables,
        sample=np.append(plan.sample, True),
        adapters=None if plan.adapters is None else _and(plan.adapters, 0),
        sampling=_greedy_too(plan.sampling, int(plan.sample.sum()), margin=check.margin),
    )


def without_extra_row(result: StepResult, row: int) -> tuple[StepResult, ExtraAnswer]:
    """The others' result, and what became of `row`."""
    mine = np.flatnonzero(result.rows == row)
    errors = [why for at, why in result.errors if at == row]
    answer = ExtraAnswer(
        int(result.token_ids[mine[0]]) if mine.size else None, _margin(result.logprobs, row), errors[0] if errors else None
    )
    kept = result.rows != row
    logprobs = None if result.logprobs is None else _without(result.logprobs, row)
    others = tuple(error for error in result.errors if error.row != row)
    return replace(result, rows=result.rows[kept], token_ids=result.token_ids[kept], errors=others, logprobs=logprobs), answer


def _greedy_too(sampling: SamplingRows, rows: int, *, margin: bool) -> SamplingRows:
    top = sampling.top_logprobs
    if margin and top is None:
        top = np.full(rows, -1, np.int32)
    if sampling is GREEDY and top is None:
        return sampling
    random = None if sampling.random is None else np.append(sampling.random, _GREEDY_DRAW)
    return replace(sampling, random=random, top_logprobs=None if top is None else _and(top, _TWO_BEST if margin else -1))


def _margin(logprobs: Logprobs | None, row: int) -> float | None:
    """How far the best token is ahead of the second."""
    if logprobs is None:
        return None
    at = np.flatnonzero(logprobs.rows == row)
    if not at.size or int(logprobs.widths[at[0]]) < _TWO_BEST:
        return None
    best, second = logprobs.top_logprobs[at[0], :_TWO_BEST].tolist()
    return float(best - second)


def _without(logprobs: Logprobs, row: int) -> Logprobs | None:
    kept = logprobs.rows != row
    return Logprobs(*(column[kept] for column in logprobs)) if kept.any() else None


def _and(ids: Ints, value: int) -> Ints:
    return np.append(ids, np.int32(value))
