"""Sampling: exact when greedy, reproducible and batch-independent when not, and a bad row stays alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pagoda_daemon.runner.sampler import Choice, sample

WIDTH = 64


def choice(rows: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 7, start: int = 0) -> Choice:
    """`rows` rows that differ in position only."""
    return Choice(
        np.full(rows, temperature, np.float32),
        np.full(rows, top_p, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, seed, np.uint64),
        np.arange(start, start + rows, dtype=np.int32),
    )


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-6])
def test_greedy_is_the_argmax_whatever_the_filters(temperature: float) -> None:
    scores = logits(8)
    tokens, finite = sample(scores, choice(8, temperature=temperature, top_p=0.1, top_k=3))
    assert tokens.tolist() == scores.argmax(-1).tolist()
    assert finite.all()


def test_a_row_gets_the_same_token_alone_and_in_any_company() -> None:
    scores = logits(16)
    together, _ = sample(scores, choice(16))
    for row in range(16):
        alone, _ = sample(scores[row : row + 1], choice(1, start=row))
        assert alone[0] == together[row]


def test_seeds_and_positions_change_the_noise() -> None:
    scores = torch.zeros(1, WIDTH).expand(32, WIDTH)
    base, _ = sample(scores, choice(32))
    assert len(set(base.tolist())) > 10
    for other in (choice(32, seed=8), choice(32, seed=7 + 2**32), choice(32, start=100)):
        assert (sample(scores, other)[0] != base).sum() > 16


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_tokens_come_as_often_as_their_probability(seed: int) -> None:
    rows = 20_000
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(rows, 4)
    tokens, _ = sample(scores, choice(rows, temperature=1.5, seed=seed))
    wanted = (scores[0] / 1.5).softmax(-1).numpy()
    got = np.bincount(tokens, minlength=4) / rows
    # 5 standard deviations of a binomial share.
    assert (np.abs(got - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / rows)).all()


def test_top_k_keeps_the_k_best() -> None:
    scores = logits(1).expand(2000, WIDTH)
    tokens, _ = sample(scores, choice(2000, temperature=5.0, top_k=3))
    assert set(tokens.tolist()) == set(scores[0].topk(3).indices.tolist())


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    scores = torch.tensor([0.1, 0.5, 0.15, 0.25]).log().expand(2000, 4)
    assert set(sample(scores, choice(2000, top_p=0.7))[0].tolist()) == {1, 3}
    assert set(sample(scores, choice(2000, top_p=0.8))[0].tolist()) == {1, 3, 2}
    assert set(sample(scores, choice(2000, top_p=1e-6))[0].tolist()) == {1}


def test_filters_of_one_row_leave_the_others_alone() -> None:
    scores = torch.zeros(400, WIDTH)
    mixed = choice(400)
    mixed.top_k[:200] = 1
    mixed.top_k[200:] = 0
    plain, _ = sample(scores, choice(400))
    tokens, _ = sample(scores, mixed)
    assert tokens[200:].tolist() == plain[200:].tolist()


def test_a_row_that_is_not_finite_is_named_and_the_others_are_sampled() -> None:
    scores = logits(4)
    expected, _ = sample(scores, choice(4))
    scores[1, 3] = torch.nan
    scores[2, 0] = torch.inf
    tokens, finite = sample(scores, choice(4))
    assert finite.tolist() == [True, False, False, True]
    assert tokens[[0, 3]].tolist() == expected[[0, 3]].tolist()
