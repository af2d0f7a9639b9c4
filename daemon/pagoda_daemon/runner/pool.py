"""pool: the states of a step's tokens, summed over each row that wants an embedding. Called by the model worker."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.core.batch import Pooled, PooledTokens


def pool(tokens: PooledTokens, wanted: NDArray[np.int64], states: Tensor) -> Pooled:
    """`states[i]` is that of the token at flat index `wanted[i]`; every one of `tokens` is among them."""
    order = np.argsort(wanted)
    lines = order[np.searchsorted(wanted, tokens.fed, sorter=order)]
    rows, places, counts = np.unique(tokens.rows, return_inverse=True, return_counts=True)
    sums = torch.zeros(rows.size, states.shape[1])
    sums.index_add_(0, torch.from_numpy(places.astype(np.int64)), states[torch.from_numpy(lines).to(states.device)].float().cpu())
    return Pooled(rows.astype(np.int32), counts.astype(np.int32), sums.numpy())
