"""RMS norm of rows, alone or after a residual is added. Called by the daemon's runner for a GPU.

One program per row: its launch depends on the width alone, so a row's bits are the same in any batch, and no count of tokens compiles anew.
Roundings are those of the daemon's torch ops: fp32 inside, the normed value rounded to the tensor's dtype, then times the weight in it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, empty_like

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.levels import LARGEST, ScaledRows, quantised
from pagoda_kernels.gpu.rows import check_rows, whole_row


@cached
@triton.jit
def _rms_norm_kernel(
    x, residual, weight, out, scales, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, LARGEST: tl.constexpr
):
    """LARGEST: of the levels that `out` takes, with their scale; 0: it takes the numbers."""
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
    scaled = (normed.to(tl.float32) * scale.to(tl.float32)).to(hidden.dtype)
    if LARGEST > 0:
        levels, step = quantised(scaled.to(tl.float32), LARGEST, out.dtype.element_ty)
        tl.store(out + start + columns, levels, mask=inside)
        tl.store(scales + tl.program_id(0), step)
    else:
        tl.store(out + start + columns, scaled, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Each row of `x` [tokens, width] scaled to a mean square of 1, times `weight` [width]; into `out`, which may be `x`.

    fp32, bf16 or fp16, contiguous, all of one dtype: ValueError otherwise.
    """
    out = empty_like(x) if out is None else out
    check_rows((out,), x.shape, x.dtype)
    _launch(x, x, weight, eps, out, None, add=False)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Add `x` to `residual` in place, rounded to their dtype, and return the norm of the sum as `rms_norm` does. `out` may be `x`."""
    out = empty_like(x) if out is None else out
    check_rows((out,), x.shape, x.dtype)
    _launch(x, residual, weight, eps, out, None, add=True)
    return out


def rms_norm_levels(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> ScaledRows:
    """What `quantise_rows` makes of `rms_norm` (without a residual) or of `add_rms_norm`, bit for bit, in one launch."""
    out = ScaledRows.empty(len(x), x.shape[1], dtype, x.device)
    _launch(x, x if residual is None else residual, weight, eps, out.levels, out.scales, add=residual is not None)
    return out


def _launch(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor, scales: Tensor | None, *, add: bool) -> None:
    tokens, width = x.shape
    check_rows((x, residual), x.shape, x.dtype)
    check_rows((weight,), (width,), x.dtype)
    if tokens:
        block, warps = whole_row(width)
        largest = 0.0 if scales is None else LARGEST[out.dtype]
        _rms_norm_kernel[(tokens,)](
            x, residual, weight, out, scales, eps, WIDTH=width, BLOCK=block, ADD=add, LARGEST=largest, num_warps=warps
        )


def _export(width: int, *, add: bool, levels: str = "") -> Export:
    block, warps = whole_row(width)
    return Export(
        name=f"{'add_rms_norm' if add else 'rms_norm'}_{width}" + (f"_{levels[1:]}" if levels else ""),
        kernel=_rms_norm_kernel,
        signature=dict.fromkeys(("x", "residual", "weight", "out"), "*bf16")
        | {"eps": "fp32"}
        | ({"out": levels, "scales": "*fp32"} if levels else {}),
        constants={"WIDTH": width, "BLOCK": block, "ADD": add, "LARGEST": 127.0 if levels == "*i8" else 448.0 if levels else 0.0}
        | ({} if levels else {"scales": None}),
        options={"num_warps": warps},
        bands=Bands(registers=64, wide_loads=1.0),
        archs=ARCHS[1:4] if levels == "*fp8e4nv" else ARCHS,
    )


EXPORTS = (
    *(_export(1024, add=False), _export(4096, add=False), _export(4096, add=True)),
    *(_export(4096, add=True, levels=kind) for kind in ("*fp8e4nv", "*i8")),
)
