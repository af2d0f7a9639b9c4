"""Sampling: exact when greedy, reproducible and batch-independent when not, distributed as the softmax says, and a bad row stays alone."""

from __future__ import annotations

import math
import statistics
from typing import NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.core.batch import GREEDY, Masks, SamplingRows
from pagoda_daemon.core.sampling import Shaping
from pagoda_daemon.runner import draw as draw_module
from pagoda_daemon.runner import sampler as sampler_module
from pagoda_daemon.runner.draw import _floors, best, near_best
from pagoda_daemon.runner.noise import gumbel
from pagoda_daemon.runner.sampler import NOT_FINITE, NOTHING_LEFT, Sampler
from support.engine.sampling_rows import draw_tokens, greedy_tokens, places, random_rows, shaped_row

WIDTH = 64


def logits(rows: int, seed: int = 0, width: int = WIDTH, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-38, 1e-6])
def test_greedy_is_the_argmax_whatever_the_filters(temperature: float) -> None:
    scores = logits(8)
    assert draw_tokens(scores, random_rows(8, temperature, top_p=0.1, top_k=3, min_p=0.5)).tolist() == scores.argmax(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_greedy_step_touches_nothing_but_the_argmax(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise AssertionError("a greedy step must not come here")

    monkeypatch.setattr(sampler_module, "draw", no)
    monkeypatch.setattr("pagoda_daemon.runner.shaping.Shaper.shape", no)
    scores = logits(8, width=1000).to(dtype)
    # The first of equal ones, as transformers' argmax: bf16 has many.
    assert greedy_tokens(scores) == [int((row == row.max()).nonzero()[0]) for row in scores]


FILTERS = (
    {},
    {"top_k": 3},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0},
    {"top_p": 0.999},
    {"top_n_sigma": 1.5},
    {"top_n_sigma": 3.0, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
)


def test_a_row_gets_the_same_token_alone_and_in_any_company() -> None:
    rows, width = 4 * len(FILTERS), 3000
    scores = logits(rows, width=width, scale=3.0)
    mixed = np.concatenate([random_rows(4, **settings) for settings in FILTERS])
    together = draw_tokens(scores, mixed)
    for row in range(rows):
        assert draw_tokens(scores[row : row + 1], mixed[[row]], start=row)[0] == together[row], f"row {row}"
    half = np.arange(0, rows, 2)
    shuffled = Sampler().sample(scores[half], SamplingRows(random=mixed[half]), places(rows)[half])
    assert shuffled.tokens.tolist() == together[half].tolist()


def test_seeds_and_positions_change_the_noise() -> None:
    scores = torch.zeros(1, WIDTH).expand(32, WIDTH)
    base = draw_tokens(scores, random_rows(32))
    assert len(set(base.tolist())) > 10
    others = [draw_tokens(scores, random_rows(32, seed=seed)) for seed in (8, 7 + 2**32)] + [
        draw_tokens(scores, random_rows(32), start=100)
    ]
    for other in others:
        assert (other != base).sum() > 16


def test_noise_is_a_fixed_function_of_seed_position_and_token() -> None:
    """A change here changes the answer to every seeded request: these numbers may only change with a note in the changelog."""
    ids = torch.tensor([0, 1, 31999], dtype=torch.int32)
    found = gumbel(ids, np.asarray([0, 2**63], np.uint64), np.asarray([1, 4096], np.int32))
    assert found.flatten().tolist() == pytest.approx(KNOWN_NOISE, abs=1e-4)
    alone = gumbel(ids[2:], np.asarray([2**63], np.uint64), np.asarray([4096], np.int32))
    assert alone[0, 0] == found[1, 2]


KNOWN_NOISE = [-1.0377, 2.2422, 1.8274, 0.3689, 0.9155, -0.6068]  # computed apart, with Python's integers


def test_noise_is_gumbel_distributed_and_uncorrelated_between_neighbours() -> None:
    noise = gumbel(torch.arange(200, dtype=torch.int32), np.arange(500, dtype=np.uint64), places(500)).double()
    # 1e5 draws: the mean (Euler's constant) within 5 standard errors, the variance (pi^2/6) within 3 %.
    assert abs(noise.mean().item() - 0.5772) < 5 * 1.2825 / 1e5**0.5
    assert noise.var().item() == pytest.approx(1.6449, rel=0.03)
    for other in (noise.roll(1, 0), noise.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack((noise.flatten(), other.flatten())))[0, 1]) < 5 / 1e5**0.5


def chi_square(tokens: np.ndarray, probabilities: torch.Tensor) -> float:
    """Pearson's statistic in standard deviations from its mean, cells below 5 expected put together."""
    expected = probabilities.double().numpy() * tokens.size
    counts = np.bincount(tokens, minlength=expected.size)
    small = expected < 5
    cells = np.append(expected[~small], expected[small].sum()), np.append(counts[~small], counts[small].sum())
    keep = cells[0] > 0
    statistic = float(((cells[1] - cells[0])[keep] ** 2 / cells[0][keep]).sum())
    freedom = int(keep.sum()) - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


def filtered(
    scores: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, top_n_sigma: float = 0.0
) -> torch.Tensor:
    """The distribution that a row's settings mean, written down naively in float64."""
    probabilities = (scores.double() / temperature).softmax(-1)
    if top_n_sigma:
        probabilities[scores < floor_of(scores.tolist(), top_n_sigma)] = 0
    probabilities[probabilities < min_p * probabilities.max()] = 0
    if top_k:
        probabilities[probabilities < probabilities.sort(descending=True).values[top_k - 1]] = 0
    probabilities /= probabilities.sum()
    ordered, order = probabilities.sort(descending=True)
    probabilities[order[ordered.cumsum(0) - ordered >= top_p]] = 0
    return probabilities / probabilities.sum()


def floor_of(logits: list[float], sigmas: float) -> float:
    """The least logit that top_n_sigma keeps, by its definition (arXiv 2411.07641); of banned tokens nothing counts."""
    free = [logit for logit in logits if logit > -math.inf]
    return max(free) - sigmas * statistics.pstdev(free)


# Each path settles some: the groups, the best 64, the best 256, and all, sorted.
DISTRIBUTIONS = {
    "whole": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 20},
    "top_k and top_p": {"top_k": 50, "top_p": 0.8, "temperature": 0.7},
    "top_p": {"top_p": 0.5},
    "wide top_p": {"top_p": 0.9},
    "widest top_p": {"top_p": 0.995},
    "wide top_k": {"top_k": 800},
    "min_p": {"min_p": 0.1},
    "min_p and top_p": {"min_p": 0.02, "top_p": 0.9},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "top_n_sigma and top_p": {"top_n_sigma": 2.0, "top_p": 0.8},
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_tokens_come_as_often_as_their_probability(name: str) -> None:
    rows, width = 4_000, 1001  # no multiple of a group's size
    scores = logits(1, seed=3, width=width, scale=2.5)
    tokens = np.concatenate(
        [draw_tokens(scores.expand(500, width), random_rows(500, **DISTRIBUTIONS[name]), start=at) for at in range(0, rows, 500)]
    )
    wanted = filtered(scores[0], **DISTRIBUTIONS[name])
    assert wanted[torch.from_numpy(tokens).long()].min() > 0, "a token came that the filters drop"
    assert abs(chi_square(tokens, wanted)) < 5


def test_the_chi_square_test_sees_a_wrong_temperature() -> None:
    scores = logits(1, seed=3, width=WIDTH)
    tokens = draw_tokens(scores.expand(12_000, WIDTH), random_rows(12_000, 1.1))
    assert chi_square(tokens, filtered(scores[0])) > 5


def test_where_top_n_sigma_leaves_fewer_than_top_k_no_vocabulary_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Qwen's own top_k of 20. A sort of all takes ten times as long as the rest of a step's draw."""

    def no(*_: object) -> NoReturn:
        raise AssertionError("everything was sorted")

    monkeypatch.setattr(draw_module, "_of_wide", no)
    scores = torch.randn(4, 8192, generator=torch.Generator().manual_seed(3))
    scores[:, 100:105] = 60.0
    tokens = draw_tokens(scores, random_rows(4, top_n_sigma=1.0, top_k=20))
    assert set(tokens.tolist()) <= set(range(100, 105))


def test_rows_that_see_few_candidates_get_the_token_that_all_candidates_give(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = logits(64, width=3000, scale=4.0)
    rows = random_rows(64, top_k=40, top_p=0.95)
    found = draw_tokens(scores, rows)
    monkeypatch.setattr(draw_module, "_WIDTHS", (2048, 2100, 2200))
    assert draw_tokens(scores, rows).tolist() == found.tolist()


@pytest.mark.parametrize("width", [100, 1600, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_are_found_through_their_groups(width: int, dtype: torch.dtype) -> None:
    scores = logits(9, width=width).to(dtype).float()
    values, ids = best(scores, 70)
    wanted = scores.sort(dim=-1, descending=True, stable=True)
    assert values.tolist() == wanted.values[:, :70].tolist()
    inside = values > values[:, -1:]  # which of those equal to the last are taken is free
    assert ids[inside].tolist() == wanted.indices[:, :70][inside].tolist()


@pytest.mark.parametrize("count", [0, 1, 70])
def test_the_best_are_found_where_each_is_in_a_group_of_its_own(count: int) -> None:
    values, ids = best(torch.arange(1600.0, 0, -1).repeat(2, 1), count)
    assert ids.tolist() == [list(range(count))] * 2
    assert values.tolist() == [[1600.0 - at for at in range(count)]] * 2


def test_equal_logits_are_kept_or_dropped_together() -> None:
    scores = torch.zeros(1, WIDTH)
    scores[0, :4] = 3.0
    tokens = draw_tokens(scores.expand(500, WIDTH), random_rows(500, top_k=2))
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_filters_of_one_row_leave_the_others_alone() -> None:
    scores = torch.zeros(400, WIDTH)
    mixed = random_rows(400)
    mixed["top_k"][:200] = 1
    assert draw_tokens(scores, mixed)[200:].tolist() == draw_tokens(scores, random_rows(400))[200:].tolist()


ROW = st.lists(st.one_of(st.floats(-30, 30, width=16), st.just(-math.inf)), min_size=9, max_size=9).filter(lambda row: max(row) > -math.inf)


@given(st.lists(st.tuples(ROW, st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7, 4.0, 1e30])), min_size=1, max_size=5))
def test_top_n_sigma_keeps_what_its_definition_keeps_in_each_row(rows: list[tuple[list[float], float]]) -> None:
    scores, sigmas = torch.tensor([row for row, _ in rows]), np.asarray([sigma for _, sigma in rows], np.float32)
    found = near_best(scores.clone(), scores, sigmas)
    for kept, logits_of_row, sigma in zip(found.tolist(), scores.tolist(), sigmas.tolist(), strict=True):
        floor = floor_of(logits_of_row, sigma) if sigma else -math.inf
        for after, before in zip(kept, logits_of_row, strict=True):
            if abs(before - floor) > 1e-4 or before == max(logits_of_row):  # nearer, the rounding of a float32 decides
                assert after == (before if before >= floor else -math.inf)


@pytest.mark.parametrize("width", [3, 1001, 70_001])
def test_what_top_n_sigma_keeps_of_a_row_does_not_depend_on_the_others(width: int) -> None:
    scores = logits(7, width=width, scale=4.0)
    scores[3, : width // 3] = -torch.inf
    sigmas = np.asarray([1.0, 0.0, 0.3, 1.5, 2.0, 0.0, 1.0], np.float32)
    together = near_best(scores.clone(), scores, sigmas)
    assert together[[1, 5]].equal(scores[[1, 5]])
    for row in range(7):
        assert near_best(scores[[row]], scores[[row]], sigmas[[row]]).equal(together[[row]])
    assert _floors(scores.numpy(), sigmas).tolist() == [_floors(scores[[row]].numpy(), sigmas[[row]]).item() for row in range(7)]


@pytest.mark.parametrize("temperature", [0.2, 1.0, 2.0])
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(temperature: float) -> None:
    scores = logits(1, width=200, scale=2.0)
    kept = {at for at, logit in enumerate(scores[0].tolist()) if logit >= floor_of(scores[0].tolist(), 1.2)}
    tokens = draw_tokens(scores.expand(3000, 200), random_rows(3000, temperature, top_n_sigma=1.2))
    assert set(tokens.tolist()) <= kept
    assert len(kept) > 3
    assert temperature < 1 or set(tokens.tolist()) == kept


@pytest.mark.parametrize("sigma", [1e-50, 1e-30, 3e38])
def test_the_least_and_the_largest_top_n_sigma_are_no_special_values(sigma: float) -> None:
    scores = logits(50, width=200)
    tokens = draw_tokens(scores, random_rows(50, top_n_sigma=sigma)).tolist()
    assert tokens == (draw_tokens(scores, random_rows(50)).tolist() if sigma > 1 else scores.argmax(-1).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("random", [False, True])
def test_a_row_that_is_not_finite_is_named_and_the_others_are_sampled(dtype: torch.dtype, random: bool) -> None:
    rows = SamplingRows(random=random_rows(5, top_p=0.9)) if random else GREEDY
    scores = logits(5).to(dtype)
    expected = Sampler().sample(scores, rows, places(5)).tokens
    scores[1, 3] = torch.nan
    scores[2, 0] = torch.inf
    scores[4] = torch.nan
    sampled = Sampler().sample(scores, rows, places(5))
    assert sampled.errors == dict.fromkeys((1, 2, 4), NOT_FINITE)
    assert sampled.tokens[[0, 3]].tolist() == expected[[0, 3]].tolist()


def test_a_row_with_nothing_left_to_choose_says_so_and_stays_alone() -> None:
    scores = logits(3)
    shaping = Shaping(allowed=np.asarray([5], np.int32), bad_words=((5,),))
    sampled = Sampler().sample(scores, SamplingRows(shaped=(shaped_row(1, shaping, [1], []),)), places(3))
    assert sampled.errors == {1: NOTHING_LEFT}
    assert sampled.tokens[[0, 2]].tolist() == scores.argmax(-1)[[0, 2]].tolist()


def test_the_logits_that_were_given_are_left_as_they_are() -> None:
    scores = logits(4)
    before = scores.clone()
    shaped = (shaped_row(0, Shaping(repetition=2.0, presence=1.0), [1], [2]),)
    Sampler().sample(scores, SamplingRows(random=random_rows(4, 0.5), shaped=shaped), places(4))
    assert scores.equal(before)


def test_masked_rows_draw_what_is_allowed_and_the_others_what_they_would_alone():
    logits = torch.randn(4, 70, generator=torch.Generator().manual_seed(3))
    kept, positions = logits.clone(), np.arange(4, dtype=np.int32)
    words = np.zeros((2, 3), np.int32)
    words[0, 2], words[1, 0], words[1, 1] = 1 << 3, 1 << 7, np.int32(-(2**31))  # 67; 7 and 63
    masked = SamplingRows(masks=Masks(np.array([1, 3], np.int32), words))
    tokens = Sampler().sample(logits, masked, positions).tokens.tolist()
    assert tokens[1] == 67
    assert tokens[3] == (7 if logits[3, 7] > logits[3, 63] else 63)
    alone = Sampler().sample(logits, SamplingRows(), positions).tokens.tolist()
    assert [tokens[0], tokens[2]] == [alone[0], alone[2]]
    assert torch.equal(logits, kept), "the model's own logits are left as they are"


def test_a_mask_that_leaves_nothing_is_that_rows_error():
    logits = torch.zeros(2, 40)
    masked = SamplingRows(masks=Masks(np.array([1], np.int32), np.zeros((1, 2), np.int32)))
    found = Sampler().sample(logits, masked, np.zeros(2, np.int32))
    assert list(found.errors) == [1]
    assert found.errors[1] == NOTHING_LEFT


def test_a_row_is_drawn_by_its_own_settings_whatever_rows_are_sampled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width = 6, 32
    scores = torch.randn(rows, width, generator=torch.Generator().manual_seed(3))
    mixed = random_rows(rows)
    mixed["temperature"], mixed["seed"] = np.linspace(0.5, 3.0, rows), np.arange(rows)
    together = draw_tokens(scores, mixed).tolist()
    assert len(set(together)) > 3
    monkeypatch.setattr(sampler_module, "_BLOCK", 2 * width)
    assert draw_tokens(scores, mixed).tolist() == together
