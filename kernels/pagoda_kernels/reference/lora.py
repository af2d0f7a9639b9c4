"""What `gpu.lora` computes, in plain torch: in float64, or with the roundings of a dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def lora_add(
    out: Tensor,
    hidden: Tensor,
    slots: Sequence[int],
    adapters: Mapping[int, Sequence[tuple[Tensor, Tensor] | None]],
    outputs: Sequence[int],
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """`out` [tokens, sum of outputs], and to it, of each token with an adapter, `hidden` [tokens, inputs] times A, times B. `adapters`: by
    slot, of each module A [rank, inputs] and B [outputs, rank], or None; `slots[i]`: that of token i, 0 for none. Both products and the sum
    are rounded to `dtype`."""
    found = out.to(dtype, copy=True)
    for token, slot in enumerate(slots):
        if slot:
            parts = zip(adapters[slot], outputs, strict=True)
            found[token] += torch.cat([_of(pair, hidden[token : token + 1].to(dtype), size) for pair, size in parts], dim=1)[0]
    return found


def _of(pair: tuple[Tensor, Tensor] | None, hidden: Tensor, size: int) -> Tensor:
    if pair is None:
        return hidden.new_zeros(1, size)
    shrink, expand = (one.to(hidden.dtype) for one in pair)
    return (hidden @ shrink.T) @ expand.T
