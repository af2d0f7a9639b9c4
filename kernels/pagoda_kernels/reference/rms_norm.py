"""What `gpu.rms_norm` computes, in plain torch: in float64, or with the roundings of a dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """`dtype` float64: without roundings. Any other: inside in fp32, the normed value and its product with `weight` rounded to `dtype`."""
    wide = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight.to(dtype) * normed.to(dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum, which is the residual of the next layer."""
    total = x.to(dtype) + residual.to(dtype)
    return rms_norm(total, weight, eps, dtype), total
