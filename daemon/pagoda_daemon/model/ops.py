"""The decoder's inner operations on plain tensors, one small function each. Called by `model.decoder` and `model.moe`.

Numerics follow transformers: norms in fp32, the rest in the weights' dtype. Attention is `model.attention`, turning is `model.rope`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each last dimension to a mean square of 1, in fp32, then by `weight`, which is broadcast."""
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(hidden.dtype)


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[tokens, in] times `weight` [out, in] transposed, plus `bias` [out]."""
    return functional.linear(hidden, weight, bias)


def gated(gate_up: Tensor) -> Tensor:
    """silu of the first half of the last dimension, times the second half."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
