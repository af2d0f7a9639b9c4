"""The experts of a sparse MLP: each token through its own few of many. Called by the daemon's model, once per sparse layer.

Rows sorted by expert (moe_route) are cut into tiles of one expert. Two launches multiply them: by gate and up, with the gate applied in
between, and by down. A third adds up what each token's experts say, in the order of their weights: no atomics, the same bits every time.
Grids are as large as the worst spread of tokens needs; a program that finds no tile ends. Nothing is read on the host, so that a CUDA
graph can hold it all.

Rounded to the dtype are what the gate lets through, the output of an expert, and the sum over experts. The daemon's torch ops round
both halves and the gate as well, which alone takes the error of bf16 from 2.5e-3 to 4.7e-3. The weights of the experts come with the
last sum, in fp32: before it they would be one rounding more, and save nothing.
A token's bits depend on its own row and on the configuration, which follows from the number of tokens, and on nothing of its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.experts.moe_config import Config, choose_config
from pagoda_kernels.gpu.experts.moe_route import LINE, Routing, moe_route
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.prefill_config import arch_of
from pagoda_kernels.gpu.rows import blocks_of, check_rows

if TYPE_CHECKING:
    from pagoda_kernels.gpu.experts.moe_route import Routed

_SUMMED = 1024  # columns of a program that adds up: 8 to a thread of 4 warps, one 128-bit load of bf16 from each expert
_LEAST_FETCHED = 64  # rows of a tile from which on a copy of the block is worth its neighbours' rows


@triton.jit
def _tile_of(tiles, tile, LINE: tl.constexpr):
    """A tile's expert, its first row, and its rows."""
    line = tiles + LINE * (1 + tile)
    return tl.load(line), tl.load(line + 1), tl.load(line + 2)


@triton.jit
def _weights(blocks, weights, row, end, start, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             DESCRIPTORS: tl.constexpr):  # fmt: skip
    """BLOCK_N rows from `row`, BLOCK_K columns from `start`, of weights [.., WIDTH]. Rows from `end` on may be anything that is there."""
    if DESCRIPTORS:
        found = blocks.load([row, start])
    else:
        line = row + tl.arange(0, BLOCK_N)[:, None]
        column = start + tl.arange(0, BLOCK_K)[None, :]
        at = weights + line.to(tl.int64) * WIDTH + column
        if HEIGHT % BLOCK_N == 0 and WIDTH % BLOCK_K == 0:
            found = tl.load(at)
        else:
            found = tl.load(at, mask=(line < end) & (column < WIDTH), other=0.0)
    return found


@triton.jit
def _rows(at, start, real, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr):
    """BLOCK_K columns from `start` of the rows at `at` [rows, 1]."""
    column = start + tl.arange(0, BLOCK_K)[None, :]
    if WIDTH % BLOCK_K == 0:
        found = tl.load(at + column, mask=real, other=0.0)
    else:
        found = tl.load(at + column, mask=real & (column < WIDTH), other=0.0)
    return found


@triton.jit
def _product(rows, weights, total, SWAP: tl.constexpr):
    """`total` plus rows [M, K] times weights [N, K]: [M, N], or with SWAP [N, M]."""
    return tl.dot(weights, rows.T, total, input_precision="ieee") if SWAP else tl.dot(rows, weights.T, total, input_precision="ieee")


@triton.jit
def _zeros(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SWAP: tl.constexpr):
    return tl.zeros([BLOCK_N, BLOCK_M], tl.float32) if SWAP else tl.zeros([BLOCK_M, BLOCK_N], tl.float32)


@triton.jit
def _store(out, values, row, real, column, WIDTH: tl.constexpr, SWAP: tl.constexpr):
    """Write values [M, N], or with SWAP [N, M], to the columns of the rows that are real."""
    if SWAP:
        at = row.to(tl.int64)[None, :] * WIDTH + column[:, None]
        mask = real[None, :] & (column < WIDTH)[:, None]
    else:
        at = row.to(tl.int64)[:, None] * WIDTH + column[None, :]
        mask = real[:, None] & (column < WIDTH)[None, :]
    tl.store(out + at, values.to(out.dtype.element_ty), mask=mask)


@cached
@triton.jit
def _gate_up_kernel(
    hidden, blocks, weights, inner, order, tiles,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, LINE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """inner [rows, WIDTH]: silu of a tile's rows times its expert's gate, times its rows times up."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    expert, first, rows = _tile_of(tiles, tile, LINE)
    lines = tl.arange(0, BLOCK_M)
    real = lines < rows
    token = tl.load(order + first + lines, mask=real, other=0) // TOP_K
    at = hidden + token.to(tl.int64)[:, None] * HIDDEN
    gate_row = expert * (2 * WIDTH) + tl.program_id(0) * BLOCK_N
    up_row = gate_row + WIDTH
    end = expert * (2 * WIDTH) + 2 * WIDTH
    gate = _zeros(BLOCK_M, BLOCK_N, SWAP)
    up = _zeros(BLOCK_M, BLOCK_N, SWAP)
    for start in range(0, HIDDEN, BLOCK_K):
        some = _rows(at, start, real[:, None], HIDDEN, BLOCK_K)
        gates = _weights(blocks, weights, gate_row, end, start, WIDTH, HIDDEN, BLOCK_N, BLOCK_K, DESCRIPTORS)
        ups = _weights(blocks, weights, up_row, end, start, WIDTH, HIDDEN, BLOCK_N, BLOCK_K, DESCRIPTORS)
        gate = _product(some, gates, gate, SWAP)
        up = _product(some, ups, up, SWAP)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    _store(inner, gate / (1.0 + tl.exp(-gate)) * up, first + lines, real, column, WIDTH, SWAP)


@cached
@triton.jit
def _down_kernel(
    row_blocks, inner, blocks, weights, parts, order, tiles,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, LINE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, DESCRIPTORS: tl.constexpr,
    FETCHED: tl.constexpr,
):  # fmt: skip
    """parts [tokens * top_k, HIDDEN]: a tile's rows times its expert's down, each where its pair belongs."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    expert, first, rows = _tile_of(tiles, tile, LINE)
    lines = tl.arange(0, BLOCK_M)
    real = lines < rows
    at = inner + (first + lines).to(tl.int64)[:, None] * WIDTH
    row = expert * HIDDEN + tl.program_id(0) * BLOCK_N
    total = _zeros(BLOCK_M, BLOCK_N, SWAP)
    for start in range(0, WIDTH, BLOCK_K):
        some = row_blocks.load([first, start]) if FETCHED else _rows(at, start, real[:, None], WIDTH, BLOCK_K)
        downs = _weights(blocks, weights, row, expert * HIDDEN + HIDDEN, start, HIDDEN, WIDTH, BLOCK_N, BLOCK_K, DESCRIPTORS)
        total = _product(some, downs, total, SWAP)
    pair = tl.load(order + first + lines, mask=real, other=0)
    _store(parts, total, pair, real, tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), HIDDEN, SWAP)


@cached
@triton.jit
def _sum_kernel(
    parts, weights, out, live, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, LIVE: tl.constexpr
):  # fmt: skip
    """out [tokens, HIDDEN]: a token's parts times their weights, added up in the order of the weights; zeros where it has none."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < HIDDEN
    read = inside
    if LIVE:
        read = read & (tl.load(live + token) + 0 * column >= 0)
    total = tl.zeros([BLOCK], tl.float32)
    for index in tl.static_range(TOP_K):
        pair = token * TOP_K + index
        total += tl.load(parts + pair * HIDDEN + column, mask=read, other=0.0).to(tl.float32) * tl.load(weights + pair)
    tl.store(out + token * HIDDEN + column, total.to(out.dtype.element_ty), mask=inside)


def moe_grouped(
    hidden: Tensor,
    logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    routing: Routing,
    *,
    live: Tensor | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Return what the experts make of each token, [tokens, hidden], in `out` where it is given.

    hidden [tokens, hidden]; logits [tokens, experts] of the router; gate_up [experts, 2 * width, hidden], down [experts, hidden, width].
    fp32, bf16 or fp16, all of one dtype, contiguous: ValueError otherwise. live: int64 [tokens]; a token of less than 0 is padding, touches
    no expert, and gets zeros. `config`: default the one of choose_config.
    """
    tokens, width = hidden.shape
    out = hidden.new_empty(tokens, width) if out is None else out
    _check(hidden, logits, gate_up, down, out)
    if not tokens:
        return out
    rows = tokens * routing.top_k
    config = config or choose_config(rows / len(gate_up), hidden.dtype, arch_of(hidden.device))
    routed = moe_route(logits, routing, config.block_m, live)
    inner, parts = hidden.new_empty(rows, down.shape[2]), hidden.new_empty(rows, width)
    _multiply_gate_up(hidden, gate_up, inner, routed, config)
    _multiply_down(inner, down, parts, routed, config)
    _sum_kernel[(tokens, triton.cdiv(width, _SUMMED))](
        parts, routed.weights, out, live, TOP_K=routing.top_k, HIDDEN=width, BLOCK=_SUMMED, LIVE=live is not None, num_warps=4
    )
    return out


def _multiply_gate_up(hidden: Tensor, gate_up: Tensor, inner: Tensor, routed: Routed, config: Config) -> None:
    width, descriptors = inner.shape[1], _fetches(gate_up, config)
    _gate_up_kernel[(triton.cdiv(width, config.block_n), len(routed.tiles) - 1)](
        hidden, blocks_of(gate_up, config.block_n, config.block_k) if descriptors else None, gate_up, inner, routed.order, routed.tiles,
        TOP_K=routed.weights.shape[1], HIDDEN=hidden.shape[1], WIDTH=width, LINE=LINE,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, SWAP=config.swap, DESCRIPTORS=descriptors,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _multiply_down(inner: Tensor, down: Tensor, parts: Tensor, routed: Routed, config: Config) -> None:
    width, descriptors = parts.shape[1], _fetches(down, config)
    fetched = descriptors and config.block_m >= _LEAST_FETCHED
    _down_kernel[(triton.cdiv(width, config.down_n), len(routed.tiles) - 1)](
        blocks_of(inner, config.block_m, config.down_k) if fetched else None, inner,
        blocks_of(down, config.down_n, config.down_k) if descriptors else None, down, parts, routed.order, routed.tiles,
        HIDDEN=width, WIDTH=inner.shape[1], LINE=LINE,
        BLOCK_M=config.block_m, BLOCK_N=config.down_n, BLOCK_K=config.down_k, SWAP=config.swap, DESCRIPTORS=descriptors, FETCHED=fetched,
        num_warps=config.down_warps, num_stages=config.down_stages,
    )  # fmt: skip


def _fetches(weights: Tensor, config: Config) -> bool:
    """Whether a copy of a block may be asked for: its lines begin at multiples of 16 bytes."""
    return config.descriptors and weights.shape[-1] * weights.element_size() % 16 == 0


def _check(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, out: Tensor) -> None:
    (tokens, width), experts, inner = hidden.shape, logits.shape[-1], down.shape[-1]
    check_rows((hidden, out), (tokens, width), hidden.dtype)
    check_rows((logits,), (tokens, experts), hidden.dtype)
    check_rows((gate_up,), (experts, 2 * inner, width), hidden.dtype)
    check_rows((down,), (experts, width, inner), hidden.dtype)
