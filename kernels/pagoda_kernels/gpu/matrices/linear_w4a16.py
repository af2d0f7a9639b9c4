"""x times the transpose of weights of 4 bits, x in bf16 or fp16. Called by the daemon's model for a GPU.

Written as out^T = W x^T: the weights are unpacked in registers as the left side of the tensor cores' product, the rows of x are its narrow
right side. All units of TILE_N outputs x 128 inputs stand in one line, which a persistent grid cuts into equal pieces: every multiprocessor
streams weights, however few rows there are. If a piece ends within a tile of outputs, its sums go to a scratch, and the last program to
arrive adds the tile's pieces in their order. The cuts depend on the weights and the device alone: a row has the same bits in any batch of
the same width (16, 32 or 64 rows; larger batches are computed 64 rows at a time, and from DENSE_ROWS on with dequantised weights).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.matrices.dequantise_w4 import dequantise_w4
from pagoda_kernels.gpu.matrices.w4_levels import levels_of, magic_of, pointer_to_zeros, zero_of
from pagoda_kernels.gpu.matrices.w4_weights import GROUP, SLAB, Weights4
from pagoda_kernels.gpu.rows import check_rows

DENSE_ROWS: Final = 256  # from so many rows on a layer is dequantised for cuBLAS
WIDTHS: Final = (16, 32, 64)  # rows of one launch
WARMED_BY: Final = (*WIDTHS, DENSE_ROWS)  # calls of so many rows compile everything
_DENSE_BYTES: Final = 2**26  # of the weights that are dequantised at once
_MOST_PIECES: Final = 2**31  # the kernel computes the cuts in 32 bits


@dataclass(frozen=True, slots=True)
class Config:
    """Outputs of a tile, loads in flight, warps, programs per multiprocessor.

    ptx: unpack two levels at a time in PTX (w4_levels.py), on NVIDIA. No device has run that yet, so nothing asks for it.
    """

    tile_n: int = 128
    stages: int = 4
    warps: int = 4
    programs: int = 3
    ptx: bool = False

    def __post_init__(self) -> None:
        """Refuse tiles that the packed slabs would cut."""
        if self.tile_n not in (SLAB, 2 * SLAB, 4 * SLAB):
            raise ValueError(f"tile_n must be 64, 128 or 256, got {self.tile_n}")


def w4_config(width: int) -> Config:
    """Return the configuration for launches of `width` rows: 16, 32 or 64."""
    if width == WIDTHS[0]:
        return Config()
    if width == WIDTHS[1]:
        return Config(warps=8, programs=2)  # with 4 warps, sums take 225 registers
    return Config(warps=8, stages=3, programs=1)  # four stages do not fit on sm_89


@dataclass(frozen=True, slots=True)
class W4Scratch:
    """Sums of pieces, float32, and one counter per tile, which each launch leaves at 0. One scratch serves all layers, one after the other.

    processors: multiprocessors of the device, read once.
    """

    partial: Tensor
    counters: Tensor
    processors: int

    @classmethod
    def of(cls, outputs: int, device: torch.device | str, configs: tuple[Config, ...] = ()) -> Self:
        """Allocate for matrices of at most so many outputs; `configs`: others than w4_config's."""
        place = torch.device(device)
        processors = torch.cuda.get_device_properties(place).multi_processor_count if place.type == "cuda" else 2
        chosen = [(w4_config(width), width) for width in WIDTHS] + [(config, WIDTHS[-1]) for config in configs]
        floats = max(2 * processors * one.programs * one.tile_n * width for one, width in chosen)
        counters = torch.zeros(2 * triton.cdiv(outputs, 2 * SLAB), dtype=torch.int32, device=place)
        return cls(torch.empty(floats, dtype=torch.float32, device=place), counters, processors)


@triton.jit
def _scales(first, groups, SLABS: tl.constexpr):
    """Scales [64 * SLABS] of one group. By halves: if there are fewer than threads, a thread loads those that it multiplies by."""
    if SLABS == 1:
        return tl.load(first + tl.arange(0, 64))
    place = tl.arange(0, SLABS * 32)
    near = first + place // 64 * (groups * 64) + place % 64
    return tl.join(tl.load(near), tl.load(near + SLABS // 2 * (groups * 64))).permute(1, 0).reshape(SLABS * 64)


@triton.jit
def _stored(acc, bias, out, m, n, rows, outputs, BIAS: tl.constexpr):
    """Write sums [n, m] to `out`, transposed."""
    if BIAS:
        acc += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    inside = (m < rows)[None, :] & (n < outputs)[:, None]
    tl.store(out + m[None, :] * outputs + n[:, None], acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _product(
    x, packed, scales, zeros, first, last, rows, inputs, groups,
    TILE_N: tl.constexpr, TILE_M: tl.constexpr, MAGIC: tl.constexpr, ASYMMETRIC: tl.constexpr, WHOLE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Sums [TILE_N, TILE_M] over the groups first .. last of one tile, whose weights begin at `packed`, `scales` and `zeros`."""
    SLABS: tl.constexpr = TILE_N // 64
    DTYPE: tl.constexpr = x.dtype.element_ty
    place = tl.arange(0, TILE_N * 4)
    lane, slab, half = place % 128, place // 128 % SLABS, place // (128 * SLABS)
    words = packed + (slab.to(tl.int64) * groups * 1024 + half * 512 + lane * 4)[:, None] + tl.arange(0, 4)[None, :]
    zero_at = zeros + slab * (groups * 64) + lane // 32 * 16 + lane // 4 % 8
    m = tl.arange(0, TILE_M)
    k = tl.arange(0, 128)
    hidden = x + m[:, None] * inputs + k[None, :]
    acc = tl.zeros([TILE_N, TILE_M], tl.float32)
    # Scales and zeros are loaded one group ahead: no product of matrices takes them, so that the compiler does not do it.
    scale = _scales(scales + first * 64, groups, SLABS)
    if ASYMMETRIC:
        near, far = tl.load(zero_at + first * 64), tl.load(zero_at + first * 64 + 8)
    for group in range(first, last):
        ahead = tl.minimum(group + 1, last - 1) * 64
        next_scale = _scales(scales + ahead, groups, SLABS)
        inside = (m < rows)[:, None]
        if not WHOLE:
            inside = inside & (group * 128 + k < inputs)[None, :]
        rows_of_x = tl.load(hidden + group * 128, mask=inside, other=0.0)
        if ASYMMETRIC:
            next_near, next_far = tl.load(zero_at + ahead), tl.load(zero_at + ahead + 8)
            zero, zero_8 = zero_of(near, MAGIC)[:, None], zero_of(far, MAGIC)[:, None]
        else:
            zero = zero_of(tl.full([1, 1], 8, tl.int32), MAGIC)
            zero_8 = zero
        levels = levels_of(tl.load(words + group * 1024), zero, zero_8, SLABS, MAGIC, DTYPE, PTX)
        acc += tl.dot(levels, rows_of_x.T) * scale.to(tl.float32)[:, None]
        scale = next_scale
        if ASYMMETRIC:
            near, far = next_near, next_far
    return acc


@cached
@triton.jit(do_not_specialize=["rows"])
def _linear_w4a16_kernel(
    x, packed, scales, zeros, bias, out, partial, counters, rows, outputs, inputs, groups,
    TILE_N: tl.constexpr, TILE_M: tl.constexpr, MAGIC: tl.constexpr, ASYMMETRIC: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """One program computes its piece of all units. WHOLE: the inputs fill their last group."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    units = tl.cdiv(outputs, TILE_N) * groups
    begin, end = program * units // programs, (program + 1) * units // programs
    m = tl.arange(0, TILE_M)
    n = tl.arange(0, TILE_N)
    for tile in range(begin // groups, tl.cdiv(end, groups)):
        first = tl.maximum(begin - tile * groups, 0)
        last = tl.minimum(end - tile * groups, groups)
        slab = tile * (TILE_N // 64)
        acc = _product(
            x, packed + slab.to(tl.int64) * groups * 1024, scales + slab * groups * 64, zeros + slab * groups * 64,
            first, last, rows, inputs, groups, TILE_N, TILE_M, MAGIC, ASYMMETRIC, WHOLE, PTX,
        )  # fmt: skip
        if last - first == groups:
            _stored(acc, bias, out, m, tile * TILE_N + n, rows, outputs, BIAS)
        else:
            # A program has at most two pieces of tiles: one that goes on with a tile, and one that begins a tile.
            mine = 2 * program + (first == 0).to(tl.int32)
            tl.store(partial + (mine * TILE_M + m)[None, :] * TILE_N + n[:, None], acc, mask=(m < rows)[None, :])
            tl.debug_barrier()  # all threads have written before one of them counts
            arrived = tl.atomic_add(counters + tile, 1)
            opener = ((tile * groups + 1) * programs - 1) // units
            closer = ((tile + 1) * groups * programs - 1) // units
            if arrived == closer - opener:
                total = tl.zeros([TILE_N, TILE_M], tl.float32)
                for piece in tl.range(opener, closer + 1, num_stages=3):
                    at = (2 * piece + (piece == opener).to(tl.int32)) * TILE_M + m
                    total += tl.load(partial + at[None, :] * TILE_N + n[:, None], mask=(m < rows)[None, :], other=0.0, cache_modifier=".cg")
                _stored(total, bias, out, m, tile * TILE_N + n, rows, outputs, BIAS)
                tl.atomic_xchg(counters + tile, 0)


def linear_w4a16(
    x: Tensor, weights: Weights4, scratch: W4Scratch, bias: Tensor | None = None,
    *, out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Return `x` [rows, inputs] times the transpose of `weights`, plus `bias` [outputs]; into `out` [rows, outputs] where given.

    x, bias and out in bf16 or fp16, contiguous: ValueError otherwise. config: default w4_config of the rows.
    """
    rows = len(x)
    magic_of(x.dtype)
    check_rows((x,), (rows, weights.inputs), x.dtype)
    out = x.new_empty(rows, weights.outputs) if out is None else out
    check_rows((out,), (rows, weights.outputs), x.dtype)
    if rows >= DENSE_ROWS:
        return _dense(x, weights, bias, out)
    for first in range(0, rows, WIDTHS[-1]):
        _launch(x[first : first + WIDTHS[-1]], weights, scratch, bias, out[first : first + WIDTHS[-1]], config)
    return out


def _dense(x: Tensor, weights: Weights4, bias: Tensor | None, out: Tensor) -> Tensor:
    """By cuBLAS, so many outputs at a time that their weights in x's dtype take _DENSE_BYTES at most."""
    step = max(_DENSE_BYTES // (weights.inputs * x.element_size()) // (2 * SLAB), 1) * 2 * SLAB
    for first in range(0, weights.outputs, step):
        part = dequantise_w4(weights.of_outputs(first, first + step), x.dtype)
        here = out[:, first : first + step]
        if bias is None:
            torch.mm(x, part.T, out=here)
        else:
            torch.addmm(bias[first : first + step], x, part.T, out=here)
    return out


def _launch(x: Tensor, weights: Weights4, scratch: W4Scratch, bias: Tensor | None, out: Tensor, config: Config | None) -> None:
    rows, inputs = x.shape
    width = next(width for width in WIDTHS if rows <= width)
    config = config or w4_config(width)
    slabs, groups = weights.packed.shape[:2]
    if slabs % (config.tile_n // SLAB):
        config = replace(config, tile_n=2 * SLAB)  # to whose multiples the weights are padded
    units = triton.cdiv(weights.outputs, config.tile_n) * groups
    programs = min(scratch.processors * config.programs, units)
    _check(weights, scratch, 2 * programs * config.tile_n * width, (units + 1) * programs)
    _linear_w4a16_kernel[(programs,)](
        x, weights.packed, weights.scales, pointer_to_zeros(weights), weights.scales if bias is None else bias, out, scratch.partial,
        scratch.counters, rows, weights.outputs, inputs, groups,
        TILE_N=config.tile_n, TILE_M=width, MAGIC=magic_of(x.dtype), ASYMMETRIC=weights.zeros is not None, BIAS=bias is not None,
        WHOLE=inputs % GROUP == 0, PTX=config.ptx, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _check(weights: Weights4, scratch: W4Scratch, floats: int, product: int) -> None:
    """Refuse a scratch that is too small, and matrices whose cuts the kernel cannot compute."""
    if len(scratch.partial) < floats or len(scratch.counters) < len(weights.packed):
        raise ValueError(f"the scratch must hold {floats} sums and {len(weights.packed)} counters, got {len(scratch.partial)} sums")
    if product >= _MOST_PIECES:
        raise ValueError(f"{weights.outputs} outputs of {weights.inputs} inputs are too many for the 32 bits of the kernel's cuts")
