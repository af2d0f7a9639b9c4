"""Unpacking 4-bit weights in registers. Called by linear_w4a16 and dequantise_w4."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.matrices.w4_weights import Weights4


@triton.jit
def _pair(bits, zero):
    """Two levels above the magic number, in the halves of `bits`, as numbers: [..., 2]."""
    low = bits.to(tl.int16).to(zero.dtype, bitcast=True)
    high = (bits >> 16).to(tl.int16).to(zero.dtype, bitcast=True)
    return tl.join(low - zero, high - zero)


@triton.jit
def levels_of(words, zero, zero_8, SLABS: tl.constexpr, MAGIC: tl.constexpr):  # noqa: ANN201 - of Triton's types
    """Levels minus zeros [64 * SLABS, 128] of packed `words` [512 * SLABS / 2, 4]; `zero_8`: of the outputs that are 8 further.

    The permutation renames registers, lanes and warps to what the tensor cores take as a left operand, and moves nothing.
    """
    near = tl.join(_pair(words & 0x000F000F | MAGIC, zero), _pair(words >> 8 & 0x000F000F | MAGIC, zero))
    far = tl.join(_pair(words >> 4 & 0x000F000F | MAGIC, zero_8), _pair(words >> 12 & 0x000F000F | MAGIC, zero_8))
    spread = tl.join(near, far).reshape(2, SLABS, 4, 8, 4, 4, 2, 2, 2)
    return spread.permute(1, 2, 8, 3, 0, 5, 7, 4, 6).reshape(SLABS * 64, 128)


@triton.jit
def zero_of(levels, MAGIC: tl.constexpr, DTYPE: tl.constexpr):  # noqa: ANN201
    """Zeros above the magic number, as levels are."""
    return (levels.to(tl.int16) | (MAGIC & 0x7FFF)).to(DTYPE, bitcast=True)


def magic_of(dtype: torch.dtype) -> int:
    """Two floats whose last 4 bits count ones: 128 in bf16, 1024 in fp16."""
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"activations must be bfloat16 or float16, got {dtype}")
    return 0x43004300 if dtype == torch.bfloat16 else 0x64006400


def pointer_to_zeros(weights: Weights4) -> Tensor:
    """A pointer for a kernel that reads none."""
    return weights.packed if weights.zeros is None else weights.zeros
