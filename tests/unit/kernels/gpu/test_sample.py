"""sample and greedy against their float64 reference: the same token for the same noise, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from pagoda_kernels.gpu.sample import CHUNK, ROOM, Draws, SampleScratch, greedy, sample
from pagoda_kernels.reference import sample as reference
from pagoda_kernels.reference.sample import Draw
from pagoda_kernels.testing import device
from torch import Tensor

_TYPES = {"top_k": torch.int32, "position": torch.int32, "seed": torch.int64}
# One of each kind and all together; -1 and 1.0 are off as well; seeds use all their bits.
_KINDS = [
    Draw(0.0),
    Draw(1.0, seed=3, position=7),
    Draw(0.7, top_k=1, seed=2**63 + 5),
    Draw(0.7, top_k=5, seed=2**64 - 1, position=1),
    Draw(1.3, top_p=0.9, seed=4),
    Draw(5.0, top_p=0.999, top_k=-1, seed=5),
    Draw(1.3, min_p=0.1, seed=6),
    Draw(2.0, top_k=50, top_p=0.8, min_p=0.01, seed=7, position=100_000),
    Draw(0.3, top_k=2**31 - 1, seed=8),
    Draw(1e-5, top_p=1e-30, seed=9),
    Draw(9e-6, top_k=3, seed=10),
    Draw(100.0, min_p=1.0, seed=11),
]


def _draws(draws: list[Draw]) -> Draws:
    def column(name: str) -> Tensor:
        numbers = [getattr(draw, name) for draw in draws]
        if name == "seed":
            numbers = [seed - 2**64 if seed >= 2**63 else seed for seed in numbers]
        return torch.tensor(numbers, dtype=_TYPES.get(name, torch.float32), device=device())

    names = [one.name for one in fields(Draws) if one.name != "filtered"]
    return Draws(**{name: column(name) for name in names}, filtered=any(draw.filtered for draw in draws))


def _sampled(logits: Tensor, draws: list[Draw], room: int = ROOM) -> tuple[Tensor, Tensor]:
    on = logits.to(device())
    tokens, best = sample(on, _draws(draws), scratch=SampleScratch.of(on.shape[0] + 1, on.shape[1], device(), room))
    return tokens.cpu(), best.cpu()


def _logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def _same(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 31, 1000, CHUNK, 2 * CHUNK + 3])
def test_greedy_takes_the_first_largest(vocab: int, dtype: torch.dtype) -> None:
    logits = _logits(4, vocab).to(dtype)
    logits[1, :: max(1, vocab // 3)] = 20.0
    logits[2] = -7.0
    logits[3] = -0.0
    logits[3, vocab // 2] = 0.0
    found = greedy(logits.to(device()))
    _same((found[0].cpu(), found[1].cpu()), reference.greedy(logits))


def test_a_nan_anywhere_and_infinities_are_seen_in_the_best() -> None:
    logits = _logits(6, CHUNK + 5)
    logits[0, 3] = logits[1, CHUNK + 4] = logits[2] = torch.nan
    logits[3] = -torch.inf
    logits[4, 9] = torch.inf
    for tokens, best in (greedy(logits.to(device())), _sampled(logits, [Draw(1.0, top_k=3)] * 6)):
        torch.testing.assert_close(best[:5].cpu(), torch.tensor([torch.nan] * 3 + [-torch.inf, torch.inf]), equal_nan=True)
        assert best[5] == logits[5].max()
        assert ((tokens >= 0) & (tokens < CHUNK + 5)).all()


def test_strided_rows_are_read_where_they_are_and_no_rows_are_no_tokens() -> None:
    wide = _logits(3, 200)
    wide[:, 150:] = torch.nan
    _same(greedy(wide.to(device())[:, :150]), tuple(one.to(device()) for one in reference.greedy(wide[:, :150])))
    assert greedy(wide.to(device())[:0])[0].shape == (0,)


def test_rows_may_lie_further_apart_than_an_int32_counts() -> None:
    near = _logits(3, 70).bfloat16()
    far = torch.empty_strided((3, 70), (2**30 + 16, 1), dtype=torch.bfloat16, device=device())
    far.copy_(near)
    draws = [Draw(1.0, seed=1), Draw(1.0, seed=2), Draw(1.0, top_k=20, seed=3)]
    _same(_sampled(far, draws), reference.sample(near, draws))


@pytest.mark.parametrize("vocab", [1, 31, 1000, 4099])
def test_mixed_rows_draw_the_reference_s_tokens(vocab: int) -> None:
    logits = _logits(len(_KINDS), vocab, seed=vocab)
    _same(_sampled(logits, _KINDS), reference.sample(logits, _KINDS))


def test_rows_without_filters_draw_the_reference_s_tokens() -> None:
    draws = [Draw(temperature, seed=seed) for seed, temperature in enumerate([0.0, 0.01, 0.5, 1.0, 1.0, 1.0, 3.0, 100.0])]
    logits = _logits(len(draws), CHUNK + 100, seed=1)
    logits[:, ::3] = -torch.inf
    logits[3, CHUNK:] = -torch.inf
    logits[4, : CHUNK + 1] = -torch.inf
    _same(_sampled(logits, draws), reference.sample(logits, draws))


@pytest.mark.parametrize(
    ("draw", "last"),
    [
        (Draw(1.0, top_k=11), 200),
        (Draw(1.0, top_p=0.3), 200),
        (Draw(1.0, min_p=0.36), 200),
        (Draw(1.0, top_k=150, top_p=0.8), 300),
        # The first 10 are a fifth of what top_k keeps, and less of all tokens.
        (Draw(1.0, top_k=11, top_p=0.2), 110),
        (Draw(1.0, top_k=150, top_p=0.15), 110),
        (Draw(9e-6, min_p=0.01), 101),
    ],
    ids=str,
)
def test_equal_logits_share_their_fate(draw: Draw, last: int) -> None:
    """Those equal to the last that passes each filter may all be drawn; banned tokens never are; what is too cold takes the first."""
    logits = torch.full((4, 400), -torch.inf)
    logits[:, 100:110] = 2.0
    logits[:, 110:200] = 1.0
    logits[:, 200:300] = 0.0
    draws = [replace(draw, seed=seed) for seed in range(4)]
    if last > 101:
        assert reference.kept(logits[0], draw).nonzero()[:, 0].tolist() == list(range(100, last))
    found = _sampled(logits, draws)
    assert ((found[0] >= 100) & (found[0] < last)).all()
    _same(found, reference.sample(logits, draws))


def test_more_candidates_than_the_list_holds_are_all_looked_at() -> None:
    logits = 0.1 * _logits(3, 1100)
    draws = [Draw(1.0, top_k=300, seed=1), Draw(1.0, top_p=0.97, seed=2), Draw(1.0, min_p=1e-3, top_p=0.5, seed=3)]
    _same(_sampled(logits, draws, room=64), reference.sample(logits, draws))


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits = _logits(len(_KINDS), 300).bfloat16()
    together = _sampled(logits, _KINDS)
    for row in (1, 3, 7):
        alone = _sampled(logits[row : row + 1], [_KINDS[row]])
        _same(alone, (together[0][row : row + 1], together[1][row : row + 1]))


@pytest.mark.parametrize("draw", [Draw(1.0), Draw(1.0, top_k=6, top_p=0.95)], ids=["plain", "filtered"])
def test_the_tokens_follow_their_probabilities(draw: Draw) -> None:
    """Chi-square over seeds, 99.9 %, of the reference's tokens, and the op draws the same. The 3 groups have different masses."""
    logits = torch.full((1, 150), -torch.inf)
    logits[0, [0, 1, 63, 64, 65, 100, 128, 149]] = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.0, 1.0, 1.5, -1.0])
    draws = [replace(draw, seed=seed * 7919, position=seed % 3) for seed in range(1000)]
    rows = logits.expand(len(draws), -1)
    tokens, _ = reference.sample(rows, draws)
    same = len(draws) if device().type == "cuda" else 12
    assert _sampled(rows[:same], draws[:same])[0].tolist() == tokens[:same].tolist()
    kept = reference.kept(logits[0], draw)
    wanted = torch.where(kept, logits[0].double(), -torch.inf).softmax(0) * len(draws)
    found = torch.bincount(tokens.long(), minlength=150)
    assert (found[~kept] == 0).all()
    chi = ((found - wanted)[kept].square() / wanted[kept]).sum()
    assert chi < {8: 24.3, 7: 22.5, 6: 20.5}[int(kept.sum())]
