"""A linear map of 8-bit weights (fp8 e4m3 or int8, a scale per output) and 8-bit rows (a scale per row). Called by the daemon's decoder.

Weights are the left side of every tile's product, rows the right side: the tensor cores of sm_90 want 64 or more on the left, and take 8 on
the right, so that a batch of one wastes little. (With few rows on the left, Triton multiplies fp8 as fp16.) For few rows the inputs are cut
into pieces: a matrix of 4,096 outputs has 64 tiles, and the device 132 multiprocessors. The program that ends a tile's last piece adds
up all of them, in their order. (A second kernel for that took 2 us, where reading a matrix takes 4 to 14.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.levels import LARGEST, ScaledRows
from pagoda_kernels.gpu.prefill_config import arch_of
from pagoda_kernels.gpu.rows import blocks_of

_HOPPER: Final = 90
_SMALL: Final = (86, 89, 120, 121)  # compute capabilities with less than 100 KiB of shared memory for a program
_FEW: Final = 64  # rows up to which reading the weights is what takes the time
_BUSY: Final = 128  # programs that keep the multiprocessors of an H100 busy
_LEAST_SPLIT: Final = 512  # inputs: a shorter piece ends before its loads run ahead
_FAST_INPUTS: Final = 8192
_MOST_TILES: Final = 2**16  # of matrices whose inputs are in pieces
_MULTIPLE: Final = 16  # bytes of the widest load
WARMED_BY: Final = (1, 32, 64, 256, 257)
"""Calls of so many rows compile all that any other number launches."""


@dataclass(frozen=True, slots=True)
class Config:
    """Outputs, rows and inputs of a tile, warps, tiles on their way from memory, and the pieces that the inputs are cut into.

    `descriptors`: fetch a tile by one copy of a block (TMA), from sm_90 on."""

    block_out: int = 64
    block_rows: int = 16
    block_k: int = 128
    warps: int = 4
    stages: int = 6
    splits: int = 1
    descriptors: bool = False


def choose_config(rows: int, outputs: int, inputs: int, dtype: torch.dtype = torch.int8, arch: int = _HOPPER) -> Config:
    """Return how the kernel is cut for so many rows, on a device of compute capability `arch` / 10.

    Chosen by compiled code: tiles of 128 x 256 spill registers in fp8, which adds each tile to the sums of all."""
    if rows <= _FEW:
        small = Config(block_rows=max(16, triton.next_power_of_2(rows)))
        return replace(small, stages=5 if small.block_rows == _FEW else 6, splits=_splits(outputs, inputs))
    if arch == _HOPPER:
        wide = rows > 256 and dtype == torch.int8
        return Config(128, 256 if wide else 128, 128, 8, 4, descriptors=True)
    return Config(128, 128, 128 if arch not in _SMALL else 64, 8, 3)


def _splits(outputs: int, inputs: int) -> int:
    """The same for any number of rows: a row's sums are then added in the same order."""
    splits = 1
    while triton.cdiv(outputs, 64) * splits < _BUSY and inputs // (2 * splits) >= _LEAST_SPLIT:
        splits *= 2
    return splits


@triton.jit
def _stored(total, weight_scales, scales, bias, out, output, row, rows, outputs):
    """Sums of levels [outputs, rows] of a tile become numbers, each with both scales and the bias, rounded once."""
    output_inside, row_inside = output < outputs, row < rows
    result = total.to(tl.float32) * tl.load(weight_scales + output, mask=output_inside, other=0.0)[:, None]
    result *= tl.load(scales + row, mask=row_inside, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + output, mask=output_inside, other=0.0).to(tl.float32)[:, None]
    places = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=output_inside[:, None] & row_inside[None, :])


@cached
@triton.jit(do_not_specialize=["rows"])
def _linear_w8a8_kernel(
    weight, levels, weight_boxes, level_boxes, weight_scales, scales, bias, out, partial, counters, rows, outputs, inputs, span,
    BLOCK_OUT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr, PIECES: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """One tile of one piece: inputs from `span` times the piece on. WHOLE: every tile of inputs is full."""
    integers: tl.constexpr = weight.dtype.element_ty == tl.int8
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    piece = tl.program_id(2)
    column = tl.arange(0, BLOCK_K)
    row_inside = row < rows
    output_inside = output < outputs
    lefts = weight + output.to(tl.int64)[:, None] * inputs + column[None, :]
    rights = levels + row.to(tl.int64)[:, None] * inputs + column[None, :]
    acc = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.int32 if integers else tl.float32)
    for start in range(piece * span, tl.minimum(piece * span + span, inputs), BLOCK_K):
        if DESCRIPTORS:
            left = weight_boxes.load([tl.program_id(1) * BLOCK_OUT, start])
            right = level_boxes.load([tl.program_id(0) * BLOCK_ROWS, start])
        elif WHOLE:
            left = tl.load(lefts + start, mask=output_inside[:, None], other=0.0)
            right = tl.load(rights + start, mask=row_inside[:, None], other=0.0)
        else:
            inside = (start + column < inputs)[None, :]
            left = tl.load(lefts + start, mask=output_inside[:, None] & inside, other=0.0)
            right = tl.load(rights + start, mask=row_inside[:, None] & inside, other=0.0)
        if integers:
            acc += tl.dot(left, right.T, out_dtype=tl.int32)
        else:
            # sm_90 adds fp8 products with 14 bits. Tiles are added in fp32: else 14,336 inputs are 0.28 % off (H200).
            acc = tl.dot(left, right.T, acc, max_num_imprecise_acc=BLOCK_K)
    if PIECES == 1:
        _stored(acc, weight_scales, scales, bias, out, output, row, rows, outputs)
    else:
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tiles = tl.num_programs(0) * tl.num_programs(1)
        place = tl.arange(0, BLOCK_OUT)[:, None] * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[None, :]
        tl.store(partial + (piece * tiles + tile) * (BLOCK_OUT * BLOCK_ROWS) + place, acc)
        tl.debug_barrier()  # all threads have written before one of them counts
        if tl.atomic_add(counters + tile, 1) == PIECES - 1:
            total = tl.zeros([BLOCK_OUT, BLOCK_ROWS], tl.int32 if integers else tl.float32)
            for each in tl.static_range(0, PIECES):
                total += tl.load(partial + (each * tiles + tile) * (BLOCK_OUT * BLOCK_ROWS) + place, cache_modifier=".cg")
            _stored(total, weight_scales, scales, bias, out, output, row, rows, outputs)
            tl.atomic_xchg(counters + tile, 0)


@cache
def _counters(device: torch.device) -> Tensor:
    """Zeros, as each launch leaves them. One per device: its launches are one behind the other, on one stream."""
    return torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)


def linear_w8a8(
    x: ScaledRows, weight: ScaledRows, bias: Tensor | None = None, *, dtype: torch.dtype = torch.bfloat16, config: Config | None = None
) -> Tensor:
    """[rows, outputs] in `dtype`: `x` [rows, inputs] times `weight` [outputs, inputs] transposed, plus `bias` [outputs] of that dtype.

    Both of one type of levels, contiguous, with inputs and outputs that are multiples of 16: ValueError otherwise. On a GPU, more than 64
    rows of fp8 are multiplied by torch, which is faster there; a `config` asks for the kernel.
    """
    _check(x, weight, bias, dtype)
    rows, (outputs, inputs) = len(x.levels), weight.levels.shape
    by_torch = x.levels.dtype == torch.float8_e4m3fn and dtype == torch.bfloat16  # it writes nothing else where rows have scales
    if config is None and rows > _FEW and by_torch and x.levels.is_cuda:
        return _by_torch(x, weight, bias, dtype)
    out = torch.empty(rows, outputs, dtype=dtype, device=x.levels.device)
    if rows:
        _launch(x, weight, bias, out, config or choose_config(rows, outputs, inputs, x.levels.dtype, arch_of(out.device)))
    return out


def _by_torch(x: ScaledRows, weight: ScaledRows, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """By cuBLAS or CUTLASS. `use_fast_accum` keeps all sums in 14 bits on sm_90 and takes 11 % less time. On an H200, 4,096 inputs are then
    0.13 % off beside the 0.17 % of rounding to bf16, and 14,336 inputs 0.28 %."""
    return torch._scaled_mm(  # noqa: SLF001 - no public name in torch 2.11
        x.levels,
        weight.levels.t(),
        scale_a=x.scales[:, None],
        scale_b=weight.scales[None, :],
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=weight.levels.shape[1] <= _FAST_INPUTS,
    )


def _launch(x: ScaledRows, weight: ScaledRows, bias: Tensor | None, out: Tensor, config: Config) -> None:
    (rows, inputs), outputs = x.levels.shape, len(weight.levels)
    span = triton.cdiv(triton.cdiv(inputs, config.block_k), config.splits) * config.block_k
    pieces = triton.cdiv(inputs, span)
    tiles = triton.cdiv(rows, config.block_rows), triton.cdiv(outputs, config.block_out)
    partial = counters = None
    if pieces > 1:
        if tiles[0] * tiles[1] > _MOST_TILES:
            raise ValueError(f"inputs in pieces are for at most {_MOST_TILES} tiles, these are {tiles[0] * tiles[1]}")
        kind = torch.int32 if weight.levels.dtype == torch.int8 else torch.float32
        partial = torch.empty(pieces * tiles[0] * tiles[1], config.block_out * config.block_rows, dtype=kind, device=out.device)
        counters = _counters(out.device)
    _linear_w8a8_kernel[(*tiles, pieces)](
        weight.levels, x.levels,
        blocks_of(weight.levels, config.block_out, config.block_k) if config.descriptors else None,
        blocks_of(x.levels, config.block_rows, config.block_k) if config.descriptors else None,
        weight.scales, x.scales, bias, out, partial, counters, rows, outputs, inputs, span,
        BLOCK_OUT=config.block_out, BLOCK_ROWS=config.block_rows, BLOCK_K=config.block_k, WHOLE=inputs % config.block_k == 0,
        PIECES=pieces, DESCRIPTORS=config.descriptors, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _check(x: ScaledRows, weight: ScaledRows, bias: Tensor | None, dtype: torch.dtype) -> None:
    (rows, inputs), outputs = x.levels.shape, len(weight.levels)
    if weight.levels.shape != (outputs, inputs) or inputs % _MULTIPLE or outputs % _MULTIPLE:
        raise ValueError(
            f"weights must be [outputs, {inputs}], both multiples of {_MULTIPLE}, got {list(weight.levels.shape)} for rows of {inputs}"
        )
    if x.levels.dtype != weight.levels.dtype or x.levels.dtype not in LARGEST:
        raise ValueError(f"levels must be of one type of {', '.join(map(str, LARGEST))}, got {x.levels.dtype} and {weight.levels.dtype}")
    expected: dict[str, tuple[Tensor, tuple[int, ...], Any]] = {
        "rows": (x.levels, (rows, inputs), x.levels.dtype),
        "scales of rows": (x.scales, (rows,), torch.float32),
        "scales of weights": (weight.scales, (outputs,), torch.float32),
        "weights": (weight.levels, (outputs, inputs), x.levels.dtype),
    }
    if bias is not None:
        expected["bias"] = bias, (outputs,), dtype
    for what, (tensor, shape, kind) in expected.items():
        if tensor.shape != shape or tensor.dtype != kind or not tensor.is_contiguous():
            raise ValueError(f"{what} must be contiguous {kind} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")


_MMA: Final = {
    "*fp8e4nv": {"sm_89": "QMMA", "sm_90": "QGMMA", "sm_100": "UTCQMMA"},
    "*i8": {"sm_80": "IMMA", "sm_89": "IMMA", "sm_90": "IGMMA"},
}


def _export(name: str, kind: str, config: Config, archs: tuple[str, ...]) -> Export:
    fetched = {"weight_boxes": config.block_out, "level_boxes": config.block_rows}
    boxes = {what: f"tensordesc<{kind[1:]}[{size}, {config.block_k}]>" for what, size in fetched.items()} if config.descriptors else {}
    absent = {} if config.descriptors else dict.fromkeys(fetched)
    return Export(
        name=f"linear_{name}",
        kernel=_linear_w8a8_kernel,
        signature={"weight": kind, "levels": kind, "weight_scales": "*fp32", "scales": "*fp32", "out": "*bf16"}
        | ({"partial": "*i32" if kind == "*i8" else "*fp32", "counters": "*i32"} if config.splits > 1 else {})
        | boxes
        | dict.fromkeys(("rows", "outputs", "inputs", "span"), "i32"),
        constants=absent
        | ({} if config.splits > 1 else {"partial": None, "counters": None})
        | {"bias": None, "BLOCK_OUT": config.block_out, "BLOCK_ROWS": config.block_rows, "BLOCK_K": config.block_k}
        | {"WHOLE": True, "PIECES": config.splits, "DESCRIPTORS": config.descriptors},
        options={"num_warps": config.warps, "num_stages": config.stages},
        bands=Bands(registers=255, mma=_MMA[kind], depth=2),
        aligned=("outputs", "inputs", "span"),
        archs=archs,
    )


_FEW_ARCHS: Final = {"*fp8e4nv": ("sm_89", "sm_90", "sm_100"), "*i8": ("sm_80", "sm_89", "sm_90", "sm_100")}
_KINDS: Final = (("fp8", "*fp8e4nv", torch.float8_e4m3fn), ("int8", "*i8", torch.int8))
EXPORTS = (
    *(_export(f"{name}_rows_16", kind, choose_config(16, 4096, 4096), _FEW_ARCHS[kind]) for name, kind, _ in _KINDS),
    *(_export(f"{name}_rows_64", kind, choose_config(64, 28672, 4096), _FEW_ARCHS[kind]) for name, kind, _ in _KINDS),
    *(_export(f"{name}_rows_2048", kind, choose_config(2048, 4096, 4096, dtype), ("sm_90",)) for name, kind, dtype in _KINDS),
    _export("int8_rows_2048_sm_80", "*i8", choose_config(2048, 4096, 4096, arch=80), ("sm_80",)),
    *(_export(f"{name}_rows_2048_sm_89", kind, choose_config(2048, 4096, 4096, dtype, 89), ("sm_89",)) for name, kind, dtype in _KINDS),
)
