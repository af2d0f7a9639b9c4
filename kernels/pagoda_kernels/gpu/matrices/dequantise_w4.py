"""4-bit weights as bf16 or fp16, for products of many rows. Called by linear_w4a16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.matrices.w4_levels import levels_of, magic_of, pointer_to_zeros, zero_of
from pagoda_kernels.gpu.matrices.w4_weights import Weights4
from pagoda_kernels.gpu.rows import check_rows


@cached
@triton.jit
def _dequantise_w4_kernel(
    packed, scales, zeros, out, outputs, inputs, groups, MAGIC: tl.constexpr, ASYMMETRIC: tl.constexpr,
):  # fmt: skip
    """One program writes 64 outputs x 128 inputs, each (level - zero) * scale rounded once."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    group, slab = tl.program_id(0), tl.program_id(1)
    unit = slab * groups + group
    place = tl.arange(0, 256)
    n = tl.arange(0, 64)
    k = group * 128 + tl.arange(0, 128)
    words = tl.load(packed + unit.to(tl.int64) * 1024 + place[:, None] * 4 + tl.arange(0, 4)[None, :])
    if ASYMMETRIC:
        zero_at = zeros + unit * 64 + place % 128 // 32 * 16 + place // 4 % 8
        zero, zero_8 = zero_of(tl.load(zero_at), MAGIC)[:, None], zero_of(tl.load(zero_at + 8), MAGIC)[:, None]
    else:
        zero = zero_of(tl.full([1, 1], 8, tl.int32), MAGIC)
        zero_8 = zero
    levels = levels_of(words, zero, zero_8, 1, MAGIC, DTYPE, PTX=False)
    weights = levels.to(tl.float32) * tl.load(scales + unit * 64 + n).to(tl.float32)[:, None]
    at = (slab * 64 + n)[:, None]
    tl.store(out + at.to(tl.int64) * inputs + k[None, :], weights.to(DTYPE), mask=(at < outputs) & (k < inputs)[None, :])


def dequantise_w4(weights: Weights4, dtype: torch.dtype, *, out: Tensor | None = None) -> Tensor:
    """Return the weights as [outputs, inputs] in bf16 or fp16, into `out` where given: as many bytes as before they were quantised."""
    shape = (weights.outputs, weights.inputs)
    out = weights.packed.new_empty(shape, dtype=dtype) if out is None else out
    check_rows((out,), shape, dtype)
    slabs, groups = weights.packed.shape[:2]
    _dequantise_w4_kernel[(groups, slabs)](
        weights.packed, weights.scales, pointer_to_zeros(weights), out, *shape, groups,
        MAGIC=magic_of(dtype), ASYMMETRIC=weights.zeros is not None, num_warps=4,
    )  # fmt: skip
    return out


EXPORTS = (
    Export(
        name="dequantise_w4",
        kernel=_dequantise_w4_kernel,
        signature={"packed": "*i32", "scales": "*bf16", "zeros": "*i32", "out": "*bf16"}
        | dict.fromkeys(("outputs", "inputs", "groups"), "i32"),
        constants={"MAGIC": 0x43004300, "ASYMMETRIC": False},
        options={"num_warps": 4},
        bands=Bands(registers=128),
        aligned=("outputs", "inputs", "groups"),
    ),
)
