"""Weights of 4 bits out of their packed words: device functions of `linear_w4a16`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pair(bits, zero, MAGIC: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """Two levels out of the low 4 bits of both halves of `bits`, less the two of `zero`, which are above the magic number: [..., 2].

    PTX: two at a time. The compiler takes each level out of its pair, reduces it and puts it back: 4 instructions instead of 1.4, most of
    them of integers, which run at half the rate.
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
        high -= (zero >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return tl.join(low, high)


@triton.jit
def _levels(words, zero, zero_8, SLABS: tl.constexpr, MAGIC: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """Levels minus zeros [64 * SLABS, 128] of packed `words` [512 * SLABS / 2, 4]; `zero_8`: of the outputs that are 8 further.

    The permutation renames registers, lanes and warps to what the tensor cores take as a left operand, and moves nothing.
    """
    near = tl.join(_pair(words, zero, MAGIC, DTYPE, PTX), _pair(words >> 8, zero, MAGIC, DTYPE, PTX))
    far = tl.join(_pair(words >> 4, zero_8, MAGIC, DTYPE, PTX), _pair(words >> 12, zero_8, MAGIC, DTYPE, PTX))
    spread = tl.join(near, far).reshape(2, SLABS, 4, 8, 4, 4, 2, 2, 2)
    return spread.permute(1, 2, 8, 3, 0, 5, 7, 4, 6).reshape(SLABS * 64, 128)


@triton.jit
def _zero(levels, MAGIC: tl.constexpr):
    """Zeros above the magic number, two of each, as levels are."""
    wide = levels.to(tl.int32)
    return wide | wide << 16 | MAGIC
