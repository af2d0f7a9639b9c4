"""Rows of numbers as 8-bit levels with a scale per row. Called by the daemon on activations, and once on each matrix of weights.

One program per row: a row's bits are the same in any batch, and no count of rows compiles anew.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.levels import LARGEST, ScaledRows, quantised
from pagoda_kernels.gpu.rows import check_rows, whole_row


@cached
@triton.jit
def _quantise_rows_kernel(x, levels, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    row = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
    steps, scale = quantised(row, LARGEST, levels.dtype.element_ty)
    tl.store(levels + start + columns, steps, mask=inside)
    tl.store(scales + tl.program_id(0), scale)


def quantise_rows(x: Tensor, dtype: torch.dtype) -> ScaledRows:
    """Levels of type `dtype` (float8_e4m3fn, int8) of each row of `x` [rows, width], contiguous, in fp32, bf16 or fp16.

    The scale is the row's largest absolute value over the largest level. ValueError for another dtype, or strides.
    """
    rows, width = x.shape
    check_rows((x,), x.shape, x.dtype)
    if dtype not in LARGEST:
        raise ValueError(f"levels must be one of {', '.join(map(str, LARGEST))}, got {dtype}")
    out = ScaledRows.empty(rows, width, dtype, x.device)
    if rows:
        block, warps = whole_row(width)
        _quantise_rows_kernel[(rows,)](x, out.levels, out.scales, WIDTH=width, BLOCK=block, LARGEST=LARGEST[dtype], num_warps=warps)
    return out


def _export(name: str, kind: str, width: int, largest: float, archs: tuple[str, ...]) -> Export:
    block, warps = whole_row(width)
    return Export(
        name=f"quantise_rows_{name}_{width}",
        kernel=_quantise_rows_kernel,
        signature={"x": "*bf16", "levels": kind, "scales": "*fp32"},
        constants={"WIDTH": width, "BLOCK": block, "LARGEST": largest},
        options={"num_warps": warps},
        bands=Bands(registers=64, wide_loads=1.0),
        archs=archs,
    )


EXPORTS = (
    _export("fp8", "*fp8e4nv", 4096, 448.0, ("sm_89", "sm_90", "sm_100")),
    _export("int8", "*i8", 4096, 127.0, ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")),
    _export("fp8", "*fp8e4nv", 14336, 448.0, ("sm_90",)),
)
