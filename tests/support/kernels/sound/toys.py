"""Kernels that may ship: the gate has nothing against them (tests/unit/kernels/test_aot.py)."""

import triton
import triton.language as tl
from pagoda_kernels.exports import Bands, Export


@triton.jit
def _copy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def product(a_ptr, b_ptr, out_ptr, inner, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a_at = a_ptr + rows[:, None] * inner + depth[None, :]
    b_at = b_ptr + depth[:, None] * N + columns[None, :]
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, inner, K):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total)
        a_at += K
        b_at += K * N
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total)


PRODUCT = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32", "inner": "i32"}

EXPORTS = (
    Export(
        name="copy",
        kernel=_copy,
        signature={"x_ptr": "*bf16", "out_ptr": "*bf16"},
        constants={"BLOCK": 1024},
        bands=Bands(registers=64, wide_loads=1.0),
    ),
    Export(
        name="product",
        kernel=product,
        signature=PRODUCT,
        constants={"M": 64, "N": 64, "K": 64},
        options={"num_warps": 4, "num_stages": 3},
        aligned=("inner",),
        bands=Bands(registers=160, mma={"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "MFMA"}, depth=1, wide_loads=1.0),
    ),
)
