"""shape: changes logits before the draw: allowed ids, bad words, min_tokens, bias, penalties (vLLM's order). Called by `sampler`.

Every row brings all its tokens, so there are no counts to keep, none to lose in a preemption and none to clear when a row changes
hands; the cost is proportional to the tokens of the rows that use it (docs/sampling.md has the numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import ShapedRow
from pagoda_daemon.core.sampling import Shaping

_Flat = NDArray[np.int64]


class Shaper:
    """Holds one scratch array of zeros, in which tokens are counted and which is cleared by what was counted."""

    def __init__(self) -> None:
        self._counts = torch.zeros(0, dtype=torch.int32)

    def shape(self, logits: Tensor, rows: Sequence[ShapedRow]) -> Tensor:
        """A float32 copy of `logits` with `rows` changed."""
        shaped = logits.to(torch.float32, copy=True)
        flat, width = shaped.view(-1), logits.shape[-1]
        _allow(shaped, rows)
        if (banned := _gather(rows, banned_ids, width)).size:
            flat[_index(banned, flat)] = -torch.inf
        if (biased := _gather(rows, lambda row: row.shaping.bias_ids, width)).size:
            bias = np.concatenate([row.shaping.bias for row in rows])
            flat.index_add_(0, _index(biased, flat), torch.from_numpy(bias).to(flat.device))
        _repeat(flat, rows, width)
        self._count(flat, rows, width)
        return shaped

    def _count(self, flat: Tensor, rows: Sequence[ShapedRow], width: int) -> None:
        """Frequency times how often, and presence once, off each token of the answer."""
        counted = [row for row in rows if row.shaping.frequency or row.shaping.presence]
        tokens = _gather(counted, _answer, width)
        if not tokens.size:
            return
        if self._counts.numel() < flat.numel() or self._counts.device != flat.device:
            self._counts = torch.zeros(flat.numel(), dtype=torch.int32, device=flat.device)
        index = _index(tokens, flat)
        self._counts.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        often, value = self._counts[index], flat[index]
        self._counts[index] = 0
        frequency, presence = (_per_token(counted, _answer, of).to(flat.device) for of in (_frequency, _presence))
        flat[index] = value - frequency * often - presence  # the same token of a row writes the same value however often


def _allow(shaped: Tensor, rows: Sequence[ShapedRow]) -> None:
    for row in rows:
        if row.shaping.allowed is not None:
            logits = shaped[row.at]
            ids = _index(row.shaping.allowed.astype(np.int64), logits)
            values = logits[ids]
            logits.fill_(-torch.inf)
            logits[ids] = values


def banned_ids(row: ShapedRow) -> Ints:
    """The ids that may not come next: bad words that would be completed, stop ids before min_tokens."""
    shaping, answer = row.shaping, _answer(row)
    early = shaping.stop_ids if answer.size < shaping.min_tokens else shaping.stop_ids[:0]
    words = [word[-1] for word in shaping.bad_words if len(word) - 1 <= answer.size and _ends_with(answer, word[:-1])]
    return np.concatenate((early, np.asarray(words, np.int32)))


def _ends_with(answer: Ints, begin: tuple[int, ...]) -> bool:
    return not begin or answer[-len(begin) :].tolist() == list(begin)


def _repeat(flat: Tensor, rows: Sequence[ShapedRow], width: int) -> None:
    """Logits of every token known, of the prompt too: divided by the penalty where positive, else multiplied."""
    repeated = [row for row in rows if row.shaping.repetition != 1]
    if not repeated:
        return
    index = _index(_gather(repeated, _everything, width), flat)
    value, penalty = flat[index], _per_token(repeated, _everything, _repetition).to(flat.device)
    flat[index] = torch.where(value > 0, value / penalty, value * penalty)


def _everything(row: ShapedRow) -> Ints:
    return row.tokens


def _answer(row: ShapedRow) -> Ints:
    return row.tokens[row.prompt_len :]


def _repetition(shaping: Shaping) -> float:
    return shaping.repetition


def _frequency(shaping: Shaping) -> float:
    return shaping.frequency


def _presence(shaping: Shaping) -> float:
    return shaping.presence


def _gather(rows: Sequence[ShapedRow], ids: Callable[[ShapedRow], Ints], width: int) -> _Flat:
    """Flat indexes of `ids` of each row."""
    parts = [ids(row).astype(np.int64) + row.at * width for row in rows]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _per_token(rows: Sequence[ShapedRow], ids: Callable[[ShapedRow], Ints], of: Callable[[Shaping], float]) -> Tensor:
    """Each row's number, once per token."""
    values = np.asarray([of(row.shaping) for row in rows], np.float32)
    return torch.from_numpy(np.repeat(values, [ids(row).size for row in rows]))


def _index(flat: _Flat, like: Tensor) -> Tensor:
    return torch.from_numpy(flat).to(like.device)
