"""What `gpu.silu_mul` computes, in plain torch: in float64, or with the roundings of a dtype."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """silu of the first half of the last dimension, times the second; both rounded to `dtype`."""
    gate, up = gate_up.to(dtype).chunk(2, dim=-1)
    return functional.silu(gate) * up
