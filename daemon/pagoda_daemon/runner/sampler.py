"""sample: logits → one token per row. Called by the torch worker. Knows rows of a matrix, nothing of requests.

Greedy is an exact argmax. Otherwise temperature, then top_k, then top_p, then the Gumbel trick: argmax(logits + noise). The noise is a
hash of (seed, position, token id), so a row gets the same token whatever else is in the batch, and a rounding error of 1e-6 in a
logit changes the choice with a probability of about 1e-6 (an inverse cumulative sum would add such errors up over the vocabulary).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagoda_daemon.batch import Bools, Floats, Ints, Seeds, StepPlan

_MASK = 0xFFFFFFFF
# Colder is greedy: logits / 1e-38 is infinite in float32, while at 1e-5 a gap of 0.001 is already e^100 to 1.
_COLDEST = 1e-5


class Choice(NamedTuple):
    """How each row of logits is sampled."""

    temperature: Floats
    top_p: Floats
    top_k: Ints
    seeds: Seeds
    positions: Ints

    @classmethod
    def of(cls, plan: StepPlan) -> Choice:
        """For the rows of `plan` that sample; their token stands after the last one fed."""
        rows = plan.sample
        return cls(plan.temperature[rows], plan.top_p[rows], plan.top_k[rows], plan.seeds[rows], plan.lengths[rows])

    def where(self, rows: Bools) -> Choice:
        return Choice(self.temperature[rows], self.top_p[rows], self.top_k[rows], self.seeds[rows], self.positions[rows])


def sample(logits: Tensor, choice: Choice) -> tuple[Ints, Bools]:
    """Token per row, and which rows had a finite distribution at all (the token of the others means nothing)."""
    finite: Bools = torch.isfinite(logits).all(dim=-1).numpy()
    tokens = logits.argmax(dim=-1).numpy().astype(np.int32)
    random = finite & (choice.temperature >= _COLDEST)
    if random.any():
        tokens[random] = _random(logits[torch.from_numpy(random)].float(), choice.where(random))
    return tokens, finite


def _random(logits: Tensor, choice: Choice) -> Ints:
    scaled = logits / torch.from_numpy(choice.temperature)[:, None]
    if (choice.top_k > 0).any():
        scaled = _top_k(scaled, choice.top_k)
    if (choice.top_p < 1).any():
        scaled = _top_p(scaled, choice.top_p)
    chosen: Ints = (scaled + _gumbel(choice, logits.shape[-1])).argmax(dim=-1).numpy().astype(np.int32)
    return chosen


def _top_k(logits: Tensor, top_k: Ints) -> Tensor:
    """Keep each row's `top_k` largest; 0 keeps all."""
    width = logits.shape[-1]
    keep = torch.from_numpy(np.where(top_k > 0, np.minimum(top_k, width), width).astype(np.int64))
    lowest = logits.sort(dim=-1, descending=True).values.gather(1, keep[:, None] - 1)
    return logits.masked_fill(logits < lowest, -torch.inf)


def _top_p(logits: Tensor, top_p: Floats) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`; never empty."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(dim=-1)
    before = mass.cumsum(dim=-1) - mass
    dropped = (before >= torch.from_numpy(top_p)[:, None]) & (torch.arange(logits.shape[-1]) > 0)
    return logits.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), -torch.inf)


def _gumbel(choice: Choice, width: int) -> Tensor:
    """Noise per (row, token), uniform bits through -log(-log(u)). 64-bit integers because torch has no unsigned 32-bit arithmetic;
    the product of two 32-bit numbers may wrap, its low 32 bits are right."""
    low, high = choice.seeds & np.uint64(_MASK), choice.seeds >> np.uint64(32)
    keys = [torch.from_numpy(part.astype(np.int64))[:, None] for part in (low, high, choice.positions)]
    bits = torch.arange(width, dtype=torch.int64)[None, :]
    for key in keys:
        bits = _mix(bits ^ _mix(key))
    return -(-((bits.double() + 0.5) / 2.0**32).log()).log()


def _mix(x: Tensor) -> Tensor:
    """The finaliser of murmur3: every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B & _MASK
    x = (x ^ (x >> 13)) * 0xC2B2AE35 & _MASK
    return x ^ (x >> 16)
