"""How far two tensors of one dtype lie apart, counted in the values that the dtype has between them."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def ulps_apart(out: Tensor, expected: Tensor) -> Tensor:
    """int64, of the tensors' shape; 0 for equal bits, for two zeros and for two NaNs. ValueError where dtypes or shapes differ."""
    if out.dtype != expected.dtype or out.shape != expected.shape:
        raise ValueError(f"{out.dtype} {tuple(out.shape)} beside {expected.dtype} {tuple(expected.shape)}")
    apart = (_ordered(out) - _ordered(expected)).abs()
    return apart.masked_fill(out.isnan() & expected.isnan(), 0)


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of the values: negative ones have their magnitude's bits negated."""
    kind = _BITS[values.dtype]
    bits = values.contiguous().view(kind).long()
    return torch.where(bits < 0, torch.iinfo(kind).min - bits, bits)
