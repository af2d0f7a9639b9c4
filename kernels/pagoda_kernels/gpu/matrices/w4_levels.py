"""Unpacking 4-bit weights in registers. Called by linear_w4a16 and dequantise_w4."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.matrices.w4_weights import Weights4


@triton.jit
def _pair(bits, zero, MAGIC: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """Two levels out of the low 4 bits of both halves of `bits`, less the two of `zero`, which are above the magic number: [..., 2].

    PTX: two at a time, on NVIDIA. The compiler takes each level out of its pair, reduces it and puts it back: 4 instructions instead of
    1.4, most of them of integers, which run at half the rate.
    """
    if PTX and MAGIC == 0x43004300:
        levels = tl.inline_asm_elementwise(
            "{ .reg .b32 t, m; lop3.b32 t, $1, 0x000F000F, 0x43004300, 0xEA; xor.b32 m, $2, 0x80008000; fma.rn.bf16x2 $0, t, $3, m; }",
            "=r,r,r,r", [bits, zero, 0x3F803F80], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    elif PTX:
        levels = tl.inline_asm_elementwise(
            "{ .reg .b32 t; lop3.b32 t, $1, 0x000F000F, 0x64006400, 0xEA; sub.f16x2 $0, t, $2; }",
            "=r,r,r", [bits, zero], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        levels = bits & 0x000F000F | MAGIC
    low, high = levels.to(tl.int16).to(DTYPE, bitcast=True), (levels >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    if not PTX:
        low -= zero.to(tl.int16).to(DTYPE, bitcast=True)
        high -= zero.to(tl.int16).to(DTYPE, bitcast=True)
    return tl.join(low, high)


@triton.jit
def levels_of(words, zero, zero_8, SLABS: tl.constexpr, MAGIC: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):  # noqa: ANN201
    """Levels minus zeros [64 * SLABS, 128] of packed `words` [512 * SLABS / 2, 4]; `zero_8`: of the outputs that are 8 further.

    The permutation renames registers, lanes and warps to what the tensor cores take as a left operand, and moves nothing.
    """
    near = tl.join(_pair(words, zero, MAGIC, DTYPE, PTX), _pair(words >> 8, zero, MAGIC, DTYPE, PTX))
    far = tl.join(_pair(words >> 4, zero_8, MAGIC, DTYPE, PTX), _pair(words >> 12, zero_8, MAGIC, DTYPE, PTX))
    spread = tl.join(near, far).reshape(2, SLABS, 4, 8, 4, 4, 2, 2, 2)
    return spread.permute(1, 2, 8, 3, 0, 5, 7, 4, 6).reshape(SLABS * 64, 128)


@triton.jit
def zero_of(levels, MAGIC: tl.constexpr):  # noqa: ANN201
    """Zeros above the magic number, two of each, as levels are."""
    wide = levels.to(tl.int32)
    return wide | wide << 16 | MAGIC


def magic_of(dtype: torch.dtype) -> int:
    """Two floats whose last 4 bits count ones: 128 in bf16, 1024 in fp16."""
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"activations must be bfloat16 or float16, got {dtype}")
    return 0x43004300 if dtype == torch.bfloat16 else 0x64006400


def pointer_to_zeros(weights: Weights4) -> Tensor:
    """A pointer for a kernel that reads none."""
    return weights.packed if weights.zeros is None else weights.zeros
