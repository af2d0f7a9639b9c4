"""Sampler: logits → one token per row. Called by the model worker; `shaping`, `draw` and `noise` do its parts. Knows nothing of requests.

Greedy is an exact argmax, and a step in which all is greedy does nothing else: 32 rows of 32k in bf16 take 0.4 ms of one core (numpy's
argmax is 7 times faster than torch's, and finds a NaN as well).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagoda_daemon.core.arrays import Floats, Ints
from pagoda_daemon.core.batch import NOT_FINITE, NOTHING_LEFT, Masks, SamplingRows
from pagoda_daemon.core.sampling import DrawRows
from pagoda_daemon.runner.draw import draw
from pagoda_daemon.runner.shaping import Shaper

# Colder is greedy: logits / 1e-38 is infinite in float32, while at 1e-5 a gap of 0.001 is already e^100 to 1.
_COLDEST = 1e-5
# Logits sampled together on a CPU: 32 rows of 32k at once, 8 of 128k, which halves their time; smaller blocks pay more in calls.
_BLOCK = 2**20


Draw = Callable[[Tensor, DrawRows, Ints], Ints]
"""As `draw.draw`."""


class Sampled(NamedTuple):
    """A token per row; `errors` by index of row, whose token means nothing."""

    tokens: Ints
    errors: dict[int, str]


class Sampler:
    """One per worker: holds scratch, no state."""

    def __init__(self, draw: Draw = draw) -> None:
        self._shaper = Shaper()
        self._draw = draw

    def sample(self, logits: Tensor, sampling: SamplingRows, positions: Ints) -> Sampled:
        """`logits` [rows, vocab] are left as they are; the tokens will stand at `positions`."""
        shaped = logits
        if sampling.shaped:
            shaped = self._shaper.shape(logits, sampling.shaped)
        if sampling.masks is not None:
            shaped = _mask(shaped.clone() if shaped is logits else shaped, sampling.masks)
        tokens, best = np.empty(positions.size, np.int32), np.empty(positions.size, np.float32)
        for rows in _blocks(shaped):
            wide = shaped[rows].float()
            tokens[rows], best[rows] = _greedy(wide)
            if sampling.random is not None:
                hot = np.flatnonzero(np.isfinite(best[rows]) & (sampling.random["temperature"][rows] >= _COLDEST))
                if hot.size:
                    chosen = hot + rows.start
                    warm = wide if hot.size == wide.shape[0] else wide[torch.from_numpy(hot).to(wide.device)]
                    tokens[chosen] = self._draw(warm, sampling.random[chosen], positions[chosen])
        return Sampled(tokens, unchosen(best))


def unchosen(best: Floats) -> dict[int, str]:
    """Rows without a token to choose, and why, from the largest logit of each."""
    wrong = np.flatnonzero(~np.isfinite(best)).tolist()
    return {row: NOTHING_LEFT if best[row] == -np.inf else NOT_FINITE for row in wrong}


def _mask(logits: Tensor, masks: Masks) -> Tensor:
    """What the grammars forbid, off; in place."""
    forbidden = torch.from_numpy(~masks.allowed(logits.shape[-1])).to(logits.device)
    at = torch.from_numpy(masks.at.astype(np.int64)).to(logits.device)
    logits[at] = logits[at].masked_fill_(forbidden, -torch.inf)
    return logits


def _blocks(logits: Tensor) -> Iterator[slice]:
    """Rows that are sampled together; any cut gives the same tokens."""
    count = logits.shape[0] if logits.device.type != "cpu" else max(1, _BLOCK // logits.shape[-1])
    return (slice(at, at + count) for at in range(0, logits.shape[0], max(1, count)))


def _greedy(logits: Tensor) -> tuple[Ints, Floats]:
    """The first largest of each row and its value: NaN where there is any, since both libraries hold a NaN to be the largest."""
    if logits.device.type == "cpu":
        array = logits.numpy()
        tokens = array.argmax(axis=-1)
        return tokens.astype(np.int32), array[np.arange(tokens.size), tokens]
    found = logits.argmax(dim=-1, keepdim=True)
    return found[:, 0].cpu().numpy().astype(np.int32), logits.gather(1, found)[:, 0].cpu().numpy()
