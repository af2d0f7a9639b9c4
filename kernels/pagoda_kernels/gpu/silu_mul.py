"""The gate of a gated MLP: silu of the first half of each row, times its second half. Called by the daemon's runner for a GPU.

Roundings are those of the daemon's torch ops: silu in fp32, rounded to the dtype, then times the second half in it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.levels import LARGEST, ScaledRows, quantised
from pagoda_kernels.gpu.rows import check_rows, whole_row

_BLOCK = 1024  # columns of a program: 8 to a thread of 4 warps, one 128-bit load of bf16 from each half
_WARPS = 4


@triton.jit
def _gated(gate_up, token, columns, WIDTH: tl.constexpr):
    """The product's `columns`, rounded."""
    inside = columns < WIDTH
    first = gate_up + token * (2 * WIDTH) + columns
    gate = tl.load(first, mask=inside, other=0.0)
    up = tl.load(first + WIDTH, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    return (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@cached
@triton.jit
def _silu_mul_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)  # tokens * 2 * width may exceed 2^31
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + token * WIDTH + columns, _gated(gate_up, token, columns, WIDTH), mask=columns < WIDTH)


@cached
@triton.jit
def _silu_mul_levels_kernel(gate_up, levels, scales, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr):
    """One program per token: the scale is of its whole row."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    steps, scale = quantised(_gated(gate_up, token, columns, WIDTH).to(tl.float32), LARGEST, levels.dtype.element_ty)
    tl.store(levels + token * WIDTH + columns, steps, mask=columns < WIDTH)
    tl.store(scales + token, scale)


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """silu of `gate_up[:, :width]` times `gate_up[:, width:]`: [tokens, 2 * width] to [tokens, width], into `out` where given.

    fp32, bf16 or fp16, contiguous, both of one dtype: ValueError otherwise.
    """
    tokens, doubled = gate_up.shape
    width = doubled // 2
    out = gate_up.new_empty(tokens, width) if out is None else out
    check_rows((gate_up,), (tokens, 2 * width), gate_up.dtype)
    check_rows((out,), (tokens, width), gate_up.dtype)
    if tokens:
        _silu_mul_kernel[(tokens, -(-width // _BLOCK))](gate_up, out, WIDTH=width, BLOCK=_BLOCK, num_warps=_WARPS)
    return out


def silu_mul_levels(gate_up: Tensor, dtype: torch.dtype) -> ScaledRows:
    """What `quantise_rows` makes of `silu_mul`, bit for bit, in one launch."""
    tokens, doubled = gate_up.shape
    check_rows((gate_up,), (tokens, doubled // 2 * 2), gate_up.dtype)
    out = ScaledRows.empty(tokens, doubled // 2, dtype, gate_up.device)
    if tokens:
        block, warps = whole_row(doubled // 2)
        _silu_mul_levels_kernel[(tokens,)](
            gate_up, out.levels, out.scales, WIDTH=doubled // 2, BLOCK=block, LARGEST=LARGEST[dtype], num_warps=warps
        )
    return out


def _levels_export(kind: str, largest: float, archs: tuple[str, ...]) -> Export:
    block, warps = whole_row(14336)
    return Export(
        name=f"silu_mul_14336_{kind[1:]}",
        kernel=_silu_mul_levels_kernel,
        signature={"gate_up": "*bf16", "levels": kind, "scales": "*fp32"},
        constants={"WIDTH": 14336, "BLOCK": block, "LARGEST": largest},
        options={"num_warps": warps},
        bands=Bands(registers=64, wide_loads=1.0),
        archs=archs,
    )


EXPORTS = (
    _levels_export("*fp8e4nv", 448.0, ARCHS[1:4]),
    _levels_export("*i8", 127.0, ARCHS),
    Export(
        name="silu_mul_14336",
        kernel=_silu_mul_kernel,
        signature={"gate_up": "*bf16", "out": "*bf16"},
        constants={"WIDTH": 14336, "BLOCK": _BLOCK},
        options={"num_warps": _WARPS},
        bands=Bands(registers=64, wide_loads=1.0),
    ),
)
