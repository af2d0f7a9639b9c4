"""logprobs: log-probability, rank and best alternatives of given tokens, from the model's own logits. Called by the model worker.

Only rows that ask are looked at, in slices: the float copy of a long prompt's logits over a vocabulary of 128k is half a megabyte a token.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from pagoda_daemon.core.arrays import Bools, Ints
from pagoda_daemon.core.batch import Logprobs, ScoredTokens
from pagoda_daemon.runner.draw import best

SLICE: Final = 2**22  # logits in float at a time: 16 MB
# What a token of probability 0 is said to have: JSON knows no infinity.
_NEVER = -9999.0


def answer_logprobs(logits: Tensor, tokens: Ints, rows: Ints, top: Ints) -> Logprobs:
    """Of sampled `tokens`; -1 in `top` leaves an entry out."""
    asked = np.flatnonzero(top >= 0)
    return _logprobs(logits, torch.from_numpy(asked), ScoredTokens(rows[asked], asked.astype(np.int32), tokens[asked], top[asked]))


def prompt_logprobs(logits: Tensor, scored: ScoredTokens) -> tuple[Logprobs, Bools]:
    """Of prompt tokens; row i of `logits` belongs to `scored`'s entry i. Also which entries are numbers at all."""
    found = _logprobs(logits, torch.arange(logits.shape[0]), scored)
    return found, ~np.isnan(found.logprob)


def _logprobs(logits: Tensor, at: Tensor, wanted: ScoredTokens) -> Logprobs:
    widest = min(int(wanted.top.max(initial=0)), logits.shape[-1])
    targets = torch.from_numpy(wanted.targets.astype(np.int64)).to(logits.device)[:, None]
    step = max(1, SLICE // logits.shape[-1])
    starts = range(0, max(1, len(at)), step)
    parts = [_slice(logits[at[i : i + step].to(logits.device)].float(), targets[i : i + step], widest) for i in starts]
    logprob, rank, ids, values = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    widths = np.minimum(wanted.top, widest)
    return Logprobs(wanted.rows, logprob, rank.astype(np.int32), ids.astype(np.int32), values, widths)


def _slice(logits: Tensor, targets: Tensor, widest: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value = logits.gather(1, targets)
    rank = (logits > value).sum(dim=-1) + 1
    logprobs = logits.log_softmax(dim=-1)  # each row alone, whatever the number of rows
    values, ids = best(logprobs, widest)
    return logprobs.gather(1, targets)[:, 0].clamp(min=_NEVER), rank, ids, values.clamp(min=_NEVER)
