"""The kernel of paged_attention_prefill with both products under the softmax: scores one tile ahead, values one tile behind.

For blocks that are whole tiles, fetched by descriptors (TMA). Launched by paged_attention_prefill; the device functions here serve both.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def _scaled(score, weight, scale, ASSEMBLY: tl.constexpr):
    """score * scale, and the weights unchanged. As one assembly statement it stays before the products that need the weights: the scores'
    registers are then free for the next ones. Elsewhere the compiler moves it behind them, and ptxas lets no two products run at once."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "mul.f32 $0, $2, $4; mov.b32 $1, $3;",
            "=&r,=&r,r,r,r",
            [score, weight, scale],
            dtype=(tl.float32, tl.float32),
            is_pure=False,
            pack=1,
        )
    else:  # noqa: RET505 - what Triton does not compile has to be in a branch
        return score * scale, weight


@triton.jit(do_not_specialize=["window", "slots"])
def _paged_attention_prefill_ahead_kernel(
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
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    group: tl.constexpr = HEADS // KV_HEADS
    tile: tl.constexpr = BLOCK_M // group
    width: tl.constexpr = KV_HEADS * HEAD_DIM
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
    position = (length - queries + token)[:, None]

    first_position = length - queries + first
    stop = tl.maximum(tl.minimum(length, first_position + tile), 0)
    whole = tl.maximum(first_position, 0) // BLOCK_N * BLOCK_N
    begin = 0
    if WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N

    columns = tl.arange(0, BLOCK_N)
    tables += tl.load(table_starts + row)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weight = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    decay = tl.full([BLOCK_M], 1.0, tl.float32)
    none = tl.zeros([BLOCK_M, 16], query.dtype.element_ty)
    no_key = tl.zeros([16, 16], query.dtype.element_ty)
    # Of what is not there a copy gives zeros: no block has the id `slots // BLOCK_SIZE`.
    absent = slots // BLOCK_SIZE
    id_now = tl.load(tables + begin // BLOCK_SIZE, mask=begin < stop, other=absent)
    key = key_blocks.load([id_now * BLOCK_SIZE, head * HEAD_DIM])
    score = tl.dot(turned, key.T)
    id_ahead = tl.load(tables + (begin + BLOCK_N) // BLOCK_SIZE, mask=begin + BLOCK_N < stop, other=absent)
    id_behind = absent
    for start in range(begin, stop, BLOCK_N):
        next_id = tl.load(tables + (start + 2 * BLOCK_N) // BLOCK_SIZE, mask=start + 2 * BLOCK_N < stop, other=absent)
        id_now = tl.load(tables + start // BLOCK_SIZE)
        key = key_blocks.load([id_ahead * BLOCK_SIZE, head * HEAD_DIM])
        value = value_blocks.load([id_behind * BLOCK_SIZE, head * HEAD_DIM])
        # The compiler waits for a product that is used in its own turn, and with it for all before. This one costs nothing: it lets the
        # two below run on until the next turn.
        nothing = tl.dot(none, no_key)
        score, weight = _scaled(score, weight, scale, ASSEMBLY)
        acc = acc * decay[:, None]
        share = weight.to(value.dtype)
        score_ahead = tl.dot(turned, key.T)
        acc = tl.dot(share, value, acc)
        masked = start >= whole
        if WINDOW:
            masked = masked | (start < stop - window)
        if masked:
            score = _hidden(score, (start + columns)[None, :], position, window, WINDOW)
        new_best = tl.maximum(best, tl.max(score, 1))
        shift = new_best
        if WINDOW:  # a line may have seen nothing yet, and -inf - -inf is NaN
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)
        weight = tl.exp2(score - shift[:, None])
        decay = tl.exp2(best - shift)
        total = total * decay + tl.sum(weight, 1) + tl.max(nothing, 1)
        best = new_best
        score = score_ahead
        id_behind = id_now
        id_ahead = next_id
    # The last values by key: behind the last one the slots hold anything, and 0 * NaN is NaN.
    last = tl.maximum(stop - 1, 0) // BLOCK_N * BLOCK_N
    inside = columns[:, None] * width + head * HEAD_DIM + dims
    last_value = tl.load(values + id_behind.to(tl.int64) * (BLOCK_SIZE * width) + inside, mask=(last + columns < stop)[:, None], other=0.0)
    acc = tl.dot(weight.to(last_value.dtype), last_value, acc * decay[:, None])
    # A padding row has seen nothing: zeros.
    result = tl.where((total > 0.0)[:, None], acc / total[:, None], 0.0)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=real)
