"""What `gpu.quantise_rows` and `gpu.linear_w8a8` compute, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def quantise_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Levels of each row and its scale, in float64: the largest absolute value is the largest level."""
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    wide = x.double()
    scales = wide.abs().amax(-1) / largest
    steps = wide / torch.where(scales > 0, scales, 1.0)[:, None]
    return (steps.round() if dtype == torch.int8 else steps).to(dtype), scales


def linear_w8a8(
    x: tuple[Tensor, Tensor], weight: tuple[Tensor, Tensor], bias: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Levels and scales of rows and of weights: the product of what they stand for, computed in `dtype`."""
    rows, matrix = ((levels.to(dtype) * scales.to(dtype)[:, None]) for levels, scales in (x, weight))
    product = rows @ matrix.T
    return product if bias is None else product + bias.to(dtype)
