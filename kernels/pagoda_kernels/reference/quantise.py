"""What 8 bits keep of keys and values, in plain torch: one scale per token and head, such that its largest element becomes the largest."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


def quantise(kv: Tensor, dtype: torch.dtype, block_size: int) -> tuple[Tensor, Tensor]:
    """`kv` [2, slots, kv_heads, head_dim] in `dtype`, and its scales, float32 [2, slots / block_size, kv_heads, block_size]."""
    largest = kv.float().abs().amax(-1).clamp(min=1e-30)
    grown = kv.float() * (_LARGEST[dtype] / largest)[..., None]
    narrow = (grown.round() if dtype == torch.int8 else grown).to(dtype)
    return narrow, (largest / _LARGEST[dtype]).view(2, -1, block_size, kv.shape[2]).transpose(2, 3).contiguous()


def dequantise(kv: Tensor, scales: Tensor) -> Tensor:
    """What `kv` and `scales` stand for, float64 [2, slots, kv_heads, head_dim]."""
    return kv.double() * scales.double().transpose(2, 3).flatten(1, 2)[..., None]
