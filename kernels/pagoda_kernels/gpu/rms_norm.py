"""RMS norm of rows, alone or after a residual is added. Called by the daemon's runner for a GPU.

One program per row: its launch depends on the width alone, so a row's bits are the same in any batch, and no count of tokens compiles anew.
Roundings are those of the daemon's torch ops: fp32 inside, the normed value rounded to the tensor's dtype, then times the weight in it.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from torch import Tensor, empty_like

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.rows import check_rows

_WARP = 32
_PER_THREAD = 16  # elements: two 128-bit loads of bf16 per tensor, at 40 registers (sm_90)
_MOST_WARPS = 32


@cached
@triton.jit
def _rms_norm_kernel(x, residual, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    hidden = tl.load(x + start + columns, mask=inside, other=0.0)
    if ADD:
        before = tl.load(residual + start + columns, mask=inside, other=0.0)
        hidden = (hidden.to(tl.float32) + before.to(tl.float32)).to(before.dtype)
        tl.store(residual + start + columns, hidden, mask=inside)
    scale = tl.load(weight + columns, mask=inside, other=0.0)
    wide = hidden.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=0) / WIDTH
    normed = (wide * tl.rsqrt(mean_square + eps)).to(hidden.dtype)
    scaled = normed.to(tl.float32) * scale.to(tl.float32)
    tl.store(out + start + columns, scaled.to(hidden.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Each row of `x` [tokens, width] scaled to a mean square of 1, times `weight` [width]; into `out`, which may be `x`.

    fp32, bf16 or fp16, contiguous, all of one dtype: ValueError otherwise.
    """
    return _launch(x, x, weight, eps, empty_like(x) if out is None else out, add=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Add `x` to `residual` in place, rounded to their dtype, and return the norm of the sum as `rms_norm` does. `out` may be `x`."""
    return _launch(x, residual, weight, eps, empty_like(x) if out is None else out, add=True)


def _launch(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor, *, add: bool) -> Tensor:
    tokens, width = x.shape
    check_rows((x, residual, out), x.shape, x.dtype)
    check_rows((weight,), (width,), x.dtype)
    if tokens:
        block, warps = _cut(width)
        _rms_norm_kernel[(tokens,)](x, residual, weight, out, eps, WIDTH=width, BLOCK=block, ADD=add, num_warps=warps)
    return out


@cache
def _cut(width: int) -> tuple[int, int]:
    """Lanes of a row, and warps."""
    block = triton.next_power_of_2(width)
    return block, min(max(block // (_WARP * _PER_THREAD), 1), _MOST_WARPS)


def _export(width: int, *, add: bool) -> Export:
    block, warps = _cut(width)
    return Export(
        name=f"{'add_rms_norm' if add else 'rms_norm'}_{width}",
        kernel=_rms_norm_kernel,
        signature=dict.fromkeys(("x", "residual", "weight", "out"), "*bf16") | {"eps": "fp32"},
        constants={"WIDTH": width, "BLOCK": block, "ADD": add},
        options={"num_warps": warps},
        bands=Bands(registers=64, wide_loads=1.0),
    )


EXPORTS = (_export(1024, add=False), _export(4096, add=False), _export(4096, add=True))
