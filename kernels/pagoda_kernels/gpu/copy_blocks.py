"""Copies of whole blocks inside the paged cache, in all layers. Called by the daemon's runner for a GPU, between steps."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.quantised import scales_shape
from pagoda_kernels.gpu.rows import check_rows

_PART = 4096  # elements of a program: four 128-bit loads of bf16 in flight per thread of 4 warps
_WARPS = 4


@cached
@triton.jit(do_not_specialize=["blocks"], do_not_specialize_on_alignment=["pairs"])
def _copy_blocks_kernel(kv, staged, pairs, blocks, BLOCK: tl.constexpr, PART: tl.constexpr, OUT: tl.constexpr):
    """A plane is one layer's keys, or its values: `blocks` blocks of BLOCK elements."""
    pair, plane = tl.program_id(0), tl.program_id(1)
    element = tl.program_id(2) * PART + tl.arange(0, PART)
    inside = element < BLOCK
    block = tl.load(pairs + 2 * pair + OUT).to(tl.int64)
    in_pool = kv + (plane.to(tl.int64) * blocks + block) * BLOCK + element
    in_staged = staged + (pair.to(tl.int64) * tl.num_programs(1) + plane) * BLOCK + element
    if OUT:
        tl.store(in_pool, tl.load(in_staged, mask=inside), mask=inside)
    else:
        tl.store(in_staged, tl.load(in_pool, mask=inside), mask=inside)


def copy_blocks(kv_all: Tensor, pairs: Tensor, block_size: int, scales: Tensor | None = None) -> None:
    """Copy block `pairs[i, 0]` over block `pairs[i, 1]` in every layer of `kv_all` [layers, 2, slots, kv_heads, head_dim], in place, and of
    `scales` [layers, 2, blocks, kv_heads, block_size], where a cache of 8 bits has them.

    `pairs` int32 [n, 2] on the device; a block may be the source of several pairs, and one pair's destination another's source: all
    sources are read before anything is written, into memory taken for the call: not for a CUDA graph. No two pairs have one destination.
    ValueError where a tensor is not contiguous or `slots` not a multiple of `block_size`.
    """
    layers, _, slots, kv_heads, head_dim = kv_all.shape
    check_rows((kv_all,), (layers, 2, slots, kv_heads, head_dim), kv_all.dtype)
    check_rows((pairs,), (len(pairs), 2), torch.int32)
    if slots % block_size:
        raise ValueError(f"{slots} slots are not whole blocks of {block_size}")
    _copy(kv_all.view(torch.int8) if kv_all.itemsize == 1 else kv_all, pairs, slots // block_size)
    if scales is not None:
        check_rows((scales,), scales_shape(kv_all, block_size), torch.float32)
        _copy(scales, pairs, slots // block_size)


def _copy(planes: Tensor, pairs: Tensor, blocks: int) -> None:
    """`planes` [layers, 2, ...], each `blocks` blocks one behind the other."""
    count = planes.shape[0] * planes.shape[1]
    block = planes[0, 0].numel() // max(blocks, 1)
    staged = planes.new_empty(len(pairs), count, block)
    if staged.numel():
        for out in (False, True):
            grid = (len(pairs), count, triton.cdiv(block, _PART))
            _copy_blocks_kernel[grid](planes, staged, pairs, blocks, BLOCK=block, PART=_PART, OUT=out, num_warps=_WARPS)


EXPORTS = tuple(
    Export(
        name=f"copy_blocks_{'out' if out else 'in'}",
        kernel=_copy_blocks_kernel,
        signature={"kv": "*bf16", "staged": "*bf16", "pairs": "*i32", "blocks": "i32"},
        constants={"BLOCK": 16 * 8 * 128, "PART": _PART, "OUT": out},
        options={"num_warps": _WARPS},
        bands=Bands(registers=64, wide_loads=0.8),
    )
    for out in (False, True)
)
