"""What `gpu.linear_w4a16` computes, in plain torch and float64. It reads the packed weights by their definition, one nibble at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from pagoda_kernels.gpu.matrices.w4_weights import GROUP, SLAB, Weights4


def dequantised_w4(weights: Weights4) -> Tensor:
    """[outputs, inputs], float64, not rounded."""
    output, at = torch.arange(weights.outputs)[:, None], torch.arange(weights.inputs)[None, :]
    slab, group = output // SLAB, at // GROUP
    lane = output % 8 * 4 + at // 2 % 4
    word = at // 64 % 2 * 512 + output // 16 % 4 * 128 + lane * 4 + at // 16 % 4
    shift = at % 2 * 16 + at // 8 % 2 * 8 + output // 8 % 2 * 4
    levels = weights.packed.cpu()[slab, group, word] >> shift & 15
    zeros = 8 if weights.zeros is None else weights.zeros.cpu()[slab, group, output % SLAB].double()
    return (levels.double() - zeros) * weights.scales.cpu()[slab, group, output % SLAB].double()


def linear_w4a16(x: Tensor, weights: Weights4, bias: Tensor | None = None) -> Tensor:
    """`x` [rows, inputs] times the transpose of the weights, and `bias` [outputs]."""
    out = x.cpu().double() @ dequantised_w4(weights).T
    return out if bias is None else out + bias.cpu().double()
