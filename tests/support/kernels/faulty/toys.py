"""Kernels that may not ship, each for one reason (tests/unit/kernels/test_aot.py)."""

import triton
import triton.language as tl
from pagoda_kernels.exports import Bands, Export
from support.kernels.sound.toys import PRODUCT, product


@triton.jit
def _every_third(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at * 3))


@triton.jit
def _unlike_shapes(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.arange(0, 2 * BLOCK))


def _product(name, bands, m, n, k, warps, stages):
    constants, options = {"M": m, "N": n, "K": k}, {"num_warps": warps, "num_stages": stages}
    return Export(
        name=name,
        kernel=product,
        signature=PRODUCT,
        constants=constants,
        options=options,
        bands=bands,
        aligned=("inner",),
        archs=("sm_90",),
    )


def _copy(name, kernel, bands):
    signature = {"x_ptr": "*bf16", "out_ptr": "*bf16"}
    return Export(name=name, kernel=kernel, signature=signature, constants={"BLOCK": 1024}, bands=bands, archs=("sm_90",))


EXPORTS = (
    _product("spills", Bands(), 128, 256, 32, 4, 2),
    _product("too large", Bands(), 128, 128, 128, 8, 4),
    _product("not pipelined", Bands(depth=0), 64, 64, 64, 4, 1),
    _product("too few rows", Bands(mma={"sm_90": "HGMMA"}), 16, 64, 64, 4, 3),
    _product("hungry", Bands(registers=32), 64, 64, 64, 4, 3),
    _copy("narrow", _every_third, Bands(wide_loads=0.5)),
    _copy("wrong", _unlike_shapes, Bands()),
)
