"""Keys and values of 8 bits, with one scale per token and head beside the pages. Shared by the ops that write and read the cache.

Scales are [2, blocks, kv_heads, block_size]: what a tile of keys needs lies side by side, and a block's are one piece to copy. They are
float32: asynchronous copies take no fewer than 4 bytes, and a load by other means stops the loop that waits for it.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.rows import check_rows

LARGEST: Final = {torch.float8_e4m3fn: 448, torch.int8: 127}
"""What the largest element of a head becomes."""


@triton.jit
def _magnitude(x, inside):
    """The bits without the sign: their order is that of the magnitudes, and a NaN is the largest of all."""
    return tl.where(inside, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)


@triton.jit
def _narrowed(x, KIND: tl.constexpr):
    if KIND == tl.int8:  # noqa: SIM300 - a constexpr
        x = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum has no room for fractions, so this is x rounded to the nearest even
    return x.to(KIND)


@triton.jit
def quantised(first, second, inside, LARGEST_OF: tl.constexpr, KIND: tl.constexpr):  # noqa: ANN201 - no types on a device
    """Both halves of heads [heads, columns], each head with a scale of its own: values of KIND, and the scales [heads] in float32."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    bits = tl.maximum(tl.max(_magnitude(first, inside), 1), tl.max(_magnitude(second, inside), 1))
    largest = tl.maximum(bits, 0x0DA24260).to(tl.float32, bitcast=True)  # 1e-30: a head of zeros has a scale as well
    grow = (LARGEST_OF / largest)[:, None]
    return _narrowed(first * grow, KIND), _narrowed(second * grow, KIND), largest / LARGEST_OF


def check_kv(query: Tensor, kv: Tensor, scales: Tensor | None, block_size: int) -> None:
    """ValueError unless `kv` [2, slots, kv_heads, head_dim] is of query's dtype and has no scales, or of 8 bits and has them."""
    if scales is None and kv.dtype == query.dtype:
        return
    if scales is None or kv.dtype not in LARGEST or query.dtype not in (torch.bfloat16, torch.float16):
        have = "no scales" if scales is None else "scales"
        raise ValueError(f"query and kv must be of one dtype, or kv of 8 bits with scales, got {query.dtype}, {kv.dtype} and {have}")
    check_rows((scales,), scales_shape(kv, block_size), torch.float32)


def scales_shape(kv: Tensor, block_size: int) -> tuple[int, ...]:
    """Shape of the scales of `kv` [..., slots, kv_heads, head_dim]."""
    *planes, slots, kv_heads, _ = kv.shape
    return (*planes, slots // block_size, kv_heads, block_size)


def words(values: Tensor) -> Tensor:
    """`values` [..., head_dim] of 8 bits, four to an int32."""
    return values.view(torch.int32)
