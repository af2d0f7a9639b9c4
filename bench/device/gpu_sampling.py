"""The trials of greedy and of sample over a vocabulary of 128k, beside torch's sort. Called by gpu_kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import gpu_peers
import torch
from gpu_device import Machine
from gpu_numbers import Cost, buffer_sets
from gpu_trial import OURS, Errors, Side, Trial, spoil
from torch import Tensor

_FEW = 0.01  # of the rows may draw another token than in float64: where two are equally near
_GROUP, _GROUP_KEY = 64, 2**30
_32 = 0xFFFFFFFF
_SPREAD, _MIX_A, _MIX_B = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
_UNIT = 2.0**-31 * (1 - 2.0**-23)


@dataclass(frozen=True, slots=True)
class Draws:
    """`sigma`: of the logits; at 1 a top_p keeps most of the vocabulary, at 4 some hundred tokens. Temperature 0: greedy."""

    rows: int
    vocab: int = 131072
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    sigma: float = 4.0
    dtype: torch.dtype = torch.float32

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def kept(self, scaled: Tensor) -> Tensor:
        """Which tokens may be drawn, bool [rows, vocab]: min_p and top_k, then top_p among these. `scaled`: float64, over temperature."""
        ordered, ids = scaled.sort(dim=-1, descending=True)
        keep = (ordered - ordered[:, :1]).exp() >= self.min_p
        if self.top_k:
            keep &= ordered >= ordered[:, self.top_k - 1 : self.top_k]
        mass = ordered.masked_fill(~keep, -torch.inf).softmax(-1)
        keep &= mass.cumsum(-1) - mass < self.top_p
        return torch.zeros_like(keep).scatter_(1, ids, keep)


def trial(op: ModuleType, draws: Draws, machine: Machine) -> Trial:
    """Each logit read once."""
    draws = replace(draws, rows=min(draws.rows, 3), vocab=1000) if machine.dry else draws
    size = draws.rows * draws.vocab * draws.dtype.itemsize
    sets = buffer_sets(size, machine.l2, machine.room)
    logits = [machine.randn(draws.rows, draws.vocab, dtype=draws.dtype).mul_(draws.sigma) for _ in range(sets.number)]
    out = logits[0].new_empty(draws.rows, dtype=torch.int32), logits[0].new_empty(draws.rows, dtype=torch.float32)
    seeds = torch.randint(0, 2**62, (draws.rows,), device=machine.device)
    positions = torch.arange(draws.rows, dtype=torch.int32, device=machine.device)

    def ours() -> Side:
        scratch = op.SampleScratch.of(draws.rows, draws.vocab, machine.device)
        if not draws.temperature:
            return Side([partial(op.greedy, one, scratch=scratch, out=out) for one in logits])
        asked = _asked(op, draws, seeds, positions)
        return Side([partial(op.sample, one, asked, scratch=scratch, out=out) for one in logits])

    def theirs() -> Side:
        if not draws.temperature:
            return Side([partial(_torch_greedy, one) for one in logits])
        return Side([partial(_torch_sort, one, draws) for one in logits], judge=partial(_allowed, logits[0], draws))

    others = gpu_peers.sample(machine.peers, logits, draws, partial(_allowed, logits[0], draws))
    sides: dict[str, Callable[[], Side]] = {OURS: ours, "torch": theirs, **others}
    judge = partial(_judge, logits[0], draws, seeds, positions)
    return Trial(Cost(size), sets.resident, sides, partial(spoil, *out), judge, _FEW)


def _asked(op: ModuleType, draws: Draws, seeds: Tensor, positions: Tensor) -> Any:
    def all_rows(number: float, dtype: torch.dtype) -> Tensor:
        return torch.full((draws.rows,), number, dtype=dtype, device=seeds.device)

    return op.Draws(
        temperature=all_rows(draws.temperature, torch.float32),
        top_k=all_rows(draws.top_k, torch.int32),
        top_p=all_rows(draws.top_p, torch.float32),
        min_p=all_rows(draws.min_p, torch.float32),
        seed=seeds,
        position=positions,
        filtered=draws.filtered,
    )


def _torch_greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    best, tokens = logits.max(dim=-1)
    return tokens, best


def _torch_sort(logits: Tensor, draws: Draws) -> Tensor:
    """What engines do without a kernel: sort, cut, divide by exponential noise."""
    scaled, ids = (logits.float() / draws.temperature), None
    if draws.filtered:
        scaled, ids = scaled.sort(dim=-1, descending=True)
        if draws.top_k:
            scaled = scaled.masked_fill(scaled < scaled[:, draws.top_k - 1 : draws.top_k], -torch.inf)
        if draws.min_p:
            scaled = scaled.masked_fill(scaled < scaled[:, :1] + math.log(draws.min_p), -torch.inf)
        share = scaled.softmax(dim=-1)
        scaled = scaled.masked_fill(share.cumsum(dim=-1) - share >= draws.top_p, -torch.inf)
    share = scaled.softmax(dim=-1)
    at = (share / torch.empty_like(share).exponential_()).argmax(dim=-1, keepdim=True)
    return (at if ids is None else ids.gather(1, at))[:, 0]


def _judge(logits: Tensor, draws: Draws, seeds: Tensor, positions: Tensor, found: tuple[Tensor, Tensor]) -> Errors:
    """The share of rows with another token than in float64, or another best."""
    tokens, best = found
    right = _greedy(logits) if not draws.temperature else _drawn(logits, draws, seeds, positions)
    return _share((tokens.long() != right) | (best != logits.float().amax(-1)))


def _allowed(logits: Tensor, draws: Draws, tokens: Tensor) -> Errors:
    """The share of rows whose token the filters forbid."""
    return _share(~draws.kept(logits.double() / draws.temperature).gather(1, tokens[:, None])[:, 0])


def _share(wrong: Tensor) -> Errors:
    return Errors(float(wrong.double().mean()), 0.0)


def _greedy(logits: Tensor) -> Tensor:
    return (logits == logits.amax(-1, keepdim=True)).int().argmax(dim=-1)


def _drawn(logits: Tensor, draws: Draws, seeds: Tensor, positions: Tensor) -> Tensor:
    """Filtered rows by their tokens' noise; plain ones a run of 64 tokens by its mass and noise, then a token in it."""
    scaled = logits.double() / draws.temperature
    ids = torch.arange(draws.vocab, device=logits.device)
    keys = _keys(seeds, positions)
    noisy = scaled + _gumbel(ids, keys)
    if draws.filtered:
        return noisy.masked_fill(~draws.kept(scaled), -torch.inf).argmax(dim=-1)
    groups = -(-draws.vocab // _GROUP)
    padded = torch.nn.functional.pad(scaled, (0, groups * _GROUP - draws.vocab), value=-torch.inf)
    mass = padded.view(draws.rows, groups, _GROUP).logsumexp(-1)
    group = (mass + _gumbel(torch.arange(groups, device=ids.device) + _GROUP_KEY, keys)).argmax(dim=-1)
    return noisy.masked_fill(ids // _GROUP != group[:, None], -torch.inf).argmax(dim=-1)


def _keys(seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """splitmix64 of each row's seed at its position, in halves; [rows, 1]. In Python's integers: torch has no unsigned 64 bits."""
    mixed = []
    for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
        bits = (seed + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed.append(bits ^ (bits >> 31))
    first, second = (
        torch.tensor(half, device=seeds.device)[:, None] for half in ([one & _32 for one in mixed], [one >> 32 for one in mixed])
    )
    return first, second


def _gumbel(ids: Tensor, keys: tuple[Tensor, Tensor]) -> Tensor:
    """[rows, n] float64, as the daemon's noise: 32-bit arithmetic in int64, whose products of 32 bits keep their low half."""
    bits = ((ids * _SPREAD) & _32) ^ keys[0]
    bits = (((bits ^ (bits >> 16)) * _MIX_A) & _32) ^ keys[1]
    bits = ((bits ^ (bits >> 13)) * _MIX_B) & _32
    bits = (bits ^ (bits >> 16)) & 0x7FFFFFFF
    return -torch.log(-torch.log1p(-(bits.double() + 0.5) * _UNIT))
