"""Reference of `sample` and `greedy` in float64, a row at a time. Judge of gpu/sample.py, as the daemon's `runner/draw.py` is of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_GROUP = 64
_GROUP_KEY = 2**30
_COLDEST = 1e-5
_ALL = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row draws: the same numbers as `gpu.sample.Draws` has in tensors."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0

    @property
    def filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first largest token of each row int32 [rows] and its value float32 [rows], NaN where any logit is."""
    best, tokens = logits.double().max(dim=-1)
    first = (logits.double() == best[:, None]).int().argmax(dim=-1)
    return torch.where(best.isnan(), tokens, first).int(), best.float()


def sample(logits: Tensor, draws: list[Draw]) -> tuple[Tensor, Tensor]:
    """Returns the drawn token of each row and its best logit, as `greedy`."""
    tokens, best = greedy(logits)
    for row, draw in enumerate(draws):
        if draw.temperature >= _COLDEST and bool(best[row].isfinite()):
            tokens[row] = _drawn(logits[row].double(), draw)
    return tokens, best


def kept(logits: Tensor, draw: Draw) -> Tensor:
    """Returns which tokens of a row may be drawn, bool [vocab]: min_p and top_k, then top_p among what they keep. Ties share their fate."""
    scaled = logits.double() / draw.temperature
    best = scaled.max()
    keep = (scaled > -torch.inf) & ((scaled - best).exp() >= draw.min_p)
    if draw.top_k > 0:
        keep &= scaled >= scaled.sort(descending=True).values[min(draw.top_k, scaled.numel()) - 1]
    if draw.top_p < 1:
        weights = torch.where(keep, (scaled - best).exp(), 0.0)
        values, place = np.unique(-scaled.numpy(), return_inverse=True)
        mass = np.bincount(place, weights.numpy(), values.size)
        keep &= torch.from_numpy((mass.cumsum() - mass < draw.top_p * mass.sum())[place])
    return keep


def noise(ids: Tensor, draw: Draw) -> Tensor:
    """Returns standard Gumbel noise float64 in the shape of `ids`: -log(-log(1 - u)), u from a hash of (seed, position, id)."""
    first, second = _keys(draw.seed, draw.position)
    bits = (ids.numpy().astype(np.uint32) * np.uint32(0x9E3779B1)) ^ first
    bits = ((bits ^ (bits >> np.uint32(16))) * np.uint32(0x85EBCA6B)) ^ second
    bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    bits = (bits ^ (bits >> np.uint32(16))) & np.uint32(0x7FFFFFFF)
    unit = (bits.astype(np.float64) + 0.5) * (2.0**-31 * (1 - 2.0**-23))
    return torch.from_numpy(-np.log(-np.log1p(-unit)))


def _keys(seed: int, position: int) -> tuple[np.uint32, np.uint32]:
    """splitmix64 of the seed at the position, in halves."""
    mixed = (seed + 0x9E3779B97F4A7C15 * (position + 1)) & _ALL
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _ALL
    mixed ^= mixed >> 31
    return np.uint32(mixed & 0xFFFFFFFF), np.uint32(mixed >> 32)


def _drawn(logits: Tensor, draw: Draw) -> int:
    ids = torch.arange(logits.numel())
    if draw.filtered:
        ids = ids[kept(logits, draw)]
    else:
        groups = ids // _GROUP
        mass = torch.stack([(logits[groups == group] / draw.temperature).logsumexp(0) for group in range(int(groups[-1]) + 1)])
        group = (mass + noise(torch.arange(_GROUP_KEY, _GROUP_KEY + mass.numel()), draw)).argmax()
        ids = ids[groups == group]
    return int(ids[(logits[ids] / draw.temperature + noise(ids, draw)).argmax()])
