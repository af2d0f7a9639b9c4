"""A step's logits as an answer: what is wrong with one row is that row's error, and a token not known to the plan counts all the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pagoda_daemon.core.batch import SamplingRows, ScoredTokens, StepPlan, StepResult
from pagoda_daemon.core.sampling import Shaping
from pagoda_daemon.runner.answer import answer, wanted_logits
from pagoda_daemon.runner.sampler import NOT_FINITE, Sampler
from support.engine.sampling_rows import shaped_row

WIDTH = 16


def ints(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.asarray(values, np.int32)


def plan_of(sampling: SamplingRows, fed: tuple[int, ...] = (5, 6, 7, 8)) -> StepPlan:
    """Rows 3, 1 and 0: two that decode, one (2 tokens) in the middle of its prompt."""
    sample = np.asarray([True, False, True])
    return StepPlan(0, ints(3, 1, 0), ints(0, 1, 3, 4), ints(*fed), ints(9, 0, 1, 4), np.zeros((3, 1), np.int32), sample, sampling)


def logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2))


def ask(plan: StepPlan, scores: torch.Tensor, fed: tuple[int, ...] | None = None) -> StepResult:
    return answer(Sampler(), plan, scores, None if fed is None else ints(*fed))


def test_the_last_tokens_come_first_and_then_those_that_are_scored() -> None:
    scored = ScoredTokens(ints(1, 1), ints(1, 2), ints(4, 4), ints(0, 0))
    assert wanted_logits(plan_of(SamplingRows())).tolist() == [0, 3]
    assert wanted_logits(plan_of(SamplingRows(scored=scored))).tolist() == [0, 3, 1, 2]


def test_rows_that_are_not_finite_end_alone_with_their_logprobs() -> None:
    scored = ScoredTokens(ints(1, 1), ints(1, 2), ints(4, 4), ints(0, 0))
    plan = plan_of(SamplingRows(top_logprobs=ints(1, 2), scored=scored))
    scores = logits(4)
    good = ask(plan, scores)
    assert good.errors == ()
    assert good.logprobs is not None
    assert good.prompt_logprobs is not None
    assert (good.rows.tolist(), good.logprobs.rows.tolist(), good.prompt_logprobs.rows.tolist()) == ([3, 0], [3, 0], [1, 1])
    scores[0, 2] = torch.nan
    bad = ask(plan, scores)
    assert bad.errors == ((3, NOT_FINITE),)
    assert bad.logprobs is not None
    assert (bad.rows.tolist(), bad.token_ids.tolist(), bad.logprobs.rows.tolist()) == ([0], good.token_ids[1:].tolist(), [0])
    scores = logits(4)
    scores[3] = torch.inf
    assert ask(plan, scores).errors == ((1, NOT_FINITE),)
    assert ask(plan, scores).rows.tolist() == [3, 0]


def test_log_probabilities_are_those_of_the_row_that_asked() -> None:
    """By numpy, from the logits of each row; the first row, which samples too, did not ask."""
    for asked in (ints(-1, 2), ints(1, -1), ints(2, 1)):
        scores = logits(2)
        got = ask(plan_of(SamplingRows(top_logprobs=asked)), scores)
        assert got.logprobs is not None
        rows = np.flatnonzero(asked >= 0)
        assert got.logprobs.rows.tolist() == got.rows[rows].tolist()
        shown = scores.double().numpy()[rows]
        own = shown - np.log(np.exp(shown).sum(axis=1, keepdims=True))
        best = own.argsort(axis=1)[:, ::-1]
        for at, width in enumerate(asked[rows].tolist()):
            assert got.logprobs.logprob[at] == pytest.approx(own[at, got.token_ids[rows[at]]], abs=1e-5)
            assert got.logprobs.rank[at] == 1
            assert got.logprobs.widths[at] == width
            assert got.logprobs.top_ids[at, :width].tolist() == best[at, :width].tolist()
            assert got.logprobs.top_logprobs[at, :width] == pytest.approx(own[at, best[at, :width]], abs=1e-5)


def test_a_token_that_the_plan_did_not_know_is_penalised_and_ends_a_bad_word_too() -> None:
    best = int(logits(2)[1].argmax())
    for shaping in (Shaping(presence=100.0), Shaping(bad_words=((best, best),))):
        unknown = plan_of(SamplingRows(shaped=(shaped_row(1, shaping, [1], [-1]),)), fed=(5, 6, 7, -1))
        assert ask(unknown, logits(2), (5, 6, 7, best)).token_ids[1] != best
        assert ask(unknown, logits(2), (5, 6, 7, (best + 1) % WIDTH)).token_ids[1] == best
