"""Causal attention of many queries per row over paged keys and values. Called by the daemon's runner for prompts and their chunks on a GPU.

A tile is `query_tile` tokens of one row times the heads that share a KV head: BLOCK_M rows of one matrix product. Each program takes a tile
and a KV head, and goes once, in order, over tiles of BLOCK_N keys that start at multiples of BLOCK_N: a token's output is the same bits in
any batch and in any chunks of its prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.descriptors import described
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.prefill_config import HEAD_DIMS, Config, arch_of, choose_config, quantised_config
from pagoda_kernels.gpu.quantised import check_kv

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pagoda_kernels.gpu.pages import Pages

_LOG2_E = 1.4426950408889634


@triton.jit
def _tile(work, starts, lengths, item):
    """The tile of a program: its row, the row's first token, its queries, its length, and the tile's first query in the row."""
    row = tl.load(work + 1 + item)
    first = tl.load(work + 1 + tl.load(work) + item)
    start = tl.load(starts + row)
    return row, start, tl.load(starts + row + 1) - start, tl.load(lengths + row), first


@triton.jit
def _hidden(score, column, position, window, WINDOW: tl.constexpr):
    """Take from `score` what a line at `position` does not see."""
    seen = column <= position
    if WINDOW:
        seen = seen & (column > position - window)
    return tl.where(seen, score, float("-inf"))


@triton.jit
def _ids(tables, start, stop, columns, BLOCK_SIZE: tl.constexpr, DESCRIPTORS: tl.constexpr):
    """The block of each key from `start`, or with descriptors of all of them. Past the last key the table may end: nothing is read."""
    if DESCRIPTORS:
        ids = tl.load(tables + start // BLOCK_SIZE, mask=start < stop, other=0)
    else:
        ids = tl.load(tables + start // BLOCK_SIZE + columns // BLOCK_SIZE, mask=start + columns < stop, other=0)
    return ids


@triton.jit
def _into(start, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where in its block a tile begins."""
    return start % BLOCK_SIZE if BLOCK_N < BLOCK_SIZE else 0


@triton.jit
def _softmax(score, best, total, scale, WINDOW: tl.constexpr, LIFT: tl.constexpr):
    """One turn of the running softmax, in powers of 2: the weights, the new best and total, and how much the sums so far decay.

    LIFT: the weights, and with them the total, are 2^LIFT times as large.
    """
    new_best = tl.maximum(best, tl.max(score, 1) * scale)
    shift = new_best
    if WINDOW:  # a line may have seen nothing yet, and -inf - -inf is NaN
        shift = tl.where(new_best == float("-inf"), 0.0, new_best)
    weight = tl.exp2(score * scale - (shift - LIFT)[:, None])
    decay = tl.exp2(best - shift)
    return weight, new_best, total * decay + tl.sum(weight, 1), decay


@cached
@triton.jit(do_not_specialize=["window", "slots"])
def _paged_attention_prefill_kernel(
    query,
    values,
    key_blocks,
    value_blocks,
    out,
    tables,
    table_starts,
    lengths,
    starts,
    work,
    window,
    slots,
    scale,
    keys,
    key_scales,
    value_scales,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    SCALED: tl.constexpr,
):
    group: tl.constexpr = HEADS // KV_HEADS
    tile: tl.constexpr = BLOCK_M // group
    block: tl.constexpr = BLOCK_SIZE * KV_HEADS * HEAD_DIM
    head = tl.program_id(0)
    if tl.program_id(1) >= tl.load(work):
        return
    row, row_start, queries, length, first = _tile(work, starts, lengths, tl.program_id(1))
    lines = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    token = first + lines // group
    real = ((lines < tile * group) & (token < queries))[:, None]
    place = ((row_start + token).to(tl.int64) * HEADS + head * group + lines % group)[:, None] * HEAD_DIM + dims
    turned = tl.load(query + place, mask=real, other=0.0)
    # Small weights times values' scales are lifted into the normal numbers of float16, which begin at 6e-5.
    lift: tl.constexpr = 8.0 if SCALED else 0.0
    if SCALED:  # 8 bits become float16 in a third of the instructions that bfloat16 takes
        turned = turned.to(tl.float16)
    position = (length - queries + token)[:, None]

    # The keys that any line of this tile sees are begin .. stop; those before `whole` are seen by all of its lines (without a window).
    first_position = length - queries + first
    stop = tl.maximum(tl.minimum(length, first_position + tile), 0)
    whole = tl.maximum(first_position, 0) // BLOCK_N * BLOCK_N
    begin = 0
    if WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N

    columns = tl.arange(0, BLOCK_N)
    inside = (columns % BLOCK_SIZE)[:, None] * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM + dims
    tables += tl.load(table_starts + row)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    # Values follow one turn behind their keys: their product runs on the tensor cores under the softmax of the next tile. The first turn
    # has none: weights of zero, and nothing is read.
    weight = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    decay = tl.full([BLOCK_M], 1.0, tl.float32)
    ids = _ids(tables, begin, stop, columns, BLOCK_SIZE, DESCRIPTORS)
    ids_behind = ids
    if DESCRIPTORS:
        ids_behind = slots // BLOCK_SIZE  # there is no such block: the copy gives zeros
    for start in range(begin, stop, BLOCK_N):
        # Loaded here and used in the next turn: an id used in its own turn makes the compiler load keys and values one tile at a time.
        next_ids = _ids(tables, start + BLOCK_N, stop, columns, BLOCK_SIZE, DESCRIPTORS)
        if DESCRIPTORS:
            key = key_blocks.load([ids * BLOCK_SIZE, head * HEAD_DIM])
        else:
            key = tl.load(keys + _into(start, BLOCK_SIZE, BLOCK_N) * (KV_HEADS * HEAD_DIM) + inside + ids.to(tl.int64)[:, None] * block)
        score = tl.dot(turned, key.to(turned.dtype).T, input_precision="ieee")
        if SCALED:
            line = ids.to(tl.int64) * (KV_HEADS * BLOCK_SIZE) + head * BLOCK_SIZE + _into(start, BLOCK_SIZE, BLOCK_N) + columns % BLOCK_SIZE
            score = score * tl.load(key_scales + line, mask=start + columns < stop, other=0.0)[None, :]
        if DESCRIPTORS:
            value = value_blocks.load([ids_behind * BLOCK_SIZE, head * HEAD_DIM])
        else:
            behind = (start + columns >= begin + BLOCK_N)[:, None]
            gone = _into(start + BLOCK_SIZE - BLOCK_N, BLOCK_SIZE, BLOCK_N) * (KV_HEADS * HEAD_DIM)
            value = tl.load(values + gone + inside + ids_behind.to(tl.int64)[:, None] * block, mask=behind, other=0.0)
        acc = tl.dot(weight.to(turned.dtype), value.to(turned.dtype), acc * decay[:, None], input_precision="ieee")
        # One loop with a branch, not a loop for each kind of tile: two of them spill registers at BLOCK_N 128 (sm_90).
        masked = start >= whole
        if WINDOW:
            masked = masked | (start < stop - window)
        if masked:
            score = _hidden(score, (start + columns)[None, :], position, window, WINDOW)
        weight, best, total, decay = _softmax(score, best, total, scale, WINDOW, lift)
        if SCALED:
            weight = weight * tl.load(value_scales + line, mask=start + columns < stop, other=0.0)[None, :]
        # A plain copy would be a value that crosses two turns, and such a loop is not pipelined at all: a choice is none.
        ids_behind = tl.where(start < stop, ids, 0)
        ids = next_ids
    # Loaded key by key: behind the last one the slots hold anything, and 0 * NaN is NaN.
    last = tl.maximum(stop - 1, 0) // BLOCK_N * BLOCK_N
    of_last = ids_behind.to(tl.int64) if DESCRIPTORS else ids_behind.to(tl.int64)[:, None]
    inside += _into(last, BLOCK_SIZE, BLOCK_N) * (KV_HEADS * HEAD_DIM)
    value = tl.load(values + inside + of_last * block, mask=(last + columns < stop)[:, None], other=0.0)
    acc = tl.dot(weight.to(turned.dtype), value.to(turned.dtype), acc * decay[:, None], input_precision="ieee")
    # A padding row has seen nothing: zeros.
    result = tl.where((total > 0.0)[:, None], acc / total[:, None], 0.0)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=real)


def prefill_work(starts: NDArray[np.int32], tile: int, lengths: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
    """Return the work list of paged_attention_prefill, int32 [1 + 2 * tiles]: tiles, the row of each, the first query of each in its row.

    starts: int32 [rows + 1], ascending: the queries of row r are starts[r] .. starts[r + 1]. tile: `query_tile` of the call to come.
    lengths: the rows' contexts, for an order that knows them. Longest first: the last tiles to start are then the shortest, and the
    processors end close together. ValueError where tile is below 1.
    """
    if tile < 1:
        raise ValueError(f"a tile has at least one query, got {tile}")
    queries = np.diff(starts)
    tiles = -(-queries // tile)
    row = np.repeat(np.arange(len(queries)), tiles)
    first = (np.arange(len(row)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * tile
    reach = first if lengths is None else first + (lengths - queries)[row]
    order = np.argsort(-reach, kind="stable")
    return np.concatenate([[len(row)], row[order], first[order]]).astype(np.int32)


def paged_attention_prefill(
    query: Tensor,
    kv: Tensor,
    pages: Pages,
    starts: Tensor,
    work: Tensor,
    *,
    scales: Tensor | None = None,
    window: int | None = None,
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """Return the causal attention of each row's last tokens over the row's context, in `out` where it is given.

    query [tokens, heads, head_dim]: the queries of row r are query[starts[r]:starts[r + 1]], the last tokens of its context of
    pages.lengths[r] tokens, whose keys and values are written. kv [2, slots, kv_heads, head_dim] of query's dtype, or of 8 bits with
    `scales` (quantised.py) and a query of 16 bits, computed in float16. starts: int32 [rows + 1]. work: prefill_work(starts,
    query_tile(heads, kv_heads, config)); behind its tiles it may be longer, as a captured graph needs it. A query sees itself and what
    comes before it; with a window only the last `window` of these tokens. The scale is 1 / sqrt(head_dim). Queries of a padding row
    (length 0) give zeros; tokens of no row are not written. Everything is contiguous, else ValueError.
    """
    config = config or _config(query, scales)
    out = torch.empty_like(query) if out is None else out
    _check(query, kv, out, config)
    check_kv(query, kv, scales, pages.block_size)
    _check_rows(pages, starts, work, window, config)
    (heads, head_dim), kv_heads = query.shape[1:], kv.shape[2]
    descriptors = config.descriptors and config.block_n == pages.block_size
    if len(work) < 2:
        return out
    keys, values = kv.unbind(0)
    _paged_attention_prefill_kernel[(kv_heads, len(work) // 2)](
        query,
        values,
        *((described(keys, config.block_n), described(values, config.block_n)) if descriptors else (None, None)),
        out,
        pages.tables,
        pages.table_starts,
        pages.lengths,
        starts,
        work,
        window or 0,
        kv.shape[1],
        _LOG2_E / head_dim**0.5,
        keys,
        *((None, None) if scales is None else scales.unbind(0)),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=pages.block_size,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        WINDOW=window is not None,
        DESCRIPTORS=descriptors,
        SCALED=scales is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def _config(query: Tensor, scales: Tensor | None) -> Config:
    if scales is None:
        return choose_config(query.shape[2], query.dtype, arch_of(query.device))
    return quantised_config(query.shape[2], arch_of(query.device))


def _check(query: Tensor, kv: Tensor, out: Tensor, config: Config) -> None:
    heads, head_dim = query.shape[1:]
    if kv.ndim != 4 or kv.shape[0] != 2 or kv.shape[3] != head_dim or heads % kv.shape[2]:
        raise ValueError(f"kv {list(kv.shape)} does not fit a query {list(query.shape)}")
    if head_dim not in HEAD_DIMS or heads // kv.shape[2] > config.block_m:
        raise ValueError(
            f"head_dim must be one of {HEAD_DIMS} and a group at most {config.block_m} heads: {list(query.shape)}, {list(kv.shape)}"
        )
    if out.dtype != query.dtype or out.shape != query.shape:
        raise ValueError(f"out must be of query's dtype and shape: {query.dtype}, {out.dtype} {list(out.shape)}")
    if not (query.is_contiguous() and kv.is_contiguous() and out.is_contiguous()):
        raise ValueError("query, kv and out must be contiguous")


def _check_rows(pages: Pages, starts: Tensor, work: Tensor, window: int | None, config: Config) -> None:
    if config.block_n % pages.block_size and pages.block_size % config.block_n:
        raise ValueError(f"a tile of {config.block_n} keys must be whole blocks of {pages.block_size}, or a block whole tiles")
    if len(starts) != pages.rows + 1 or starts.dtype != torch.int32 or work.dtype != torch.int32:
        raise ValueError(f"starts must be int32 [{pages.rows + 1}] and work int32, got {starts.dtype} {list(starts.shape)}, {work.dtype}")
    if window is not None and window < 1:
        raise ValueError(f"a window holds at least the query itself, got {window}")
