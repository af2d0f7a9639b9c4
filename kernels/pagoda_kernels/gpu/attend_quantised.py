"""Decode attention over keys and values of 8 bits, for one group of queries: a device function of `paged_attention_decode`.

Both products are of float16. Values are read as words of four bytes and multiplied as four matrices, one for each byte: the tensor cores
want the tokens of a column side by side, and to gather them byte by byte takes four times as many loads from shared memory.
"""

import triton
import triton.language as tl


@triton.jit
def block_ids(table, start, stop, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):  # noqa: ANN201 - no types on a device
    """Block ids of the tokens start .. start + TILE: one number if the tile lies in one block, else one per token."""
    tokens = start if BLOCK_SIZE % TILE == 0 else start + tl.arange(0, TILE)
    return tl.load(table + tokens // BLOCK_SIZE, mask=tokens < stop, other=0)


@triton.jit
def _from_int8(byte):
    """int16 of 0 .. 255 as the float16 of the int8 that it is: in 1024 + n the last bits are n, and no conversion is needed."""
    return ((byte ^ 0x80) | 0x6400).to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def _halves(words, PLACE: tl.constexpr, KIND: tl.constexpr):
    """Byte PLACE of each word, as float16."""
    byte = (words >> (8 * PLACE)) & 0xFF
    return _from_int8(byte.to(tl.int16)) if KIND == tl.int8 else byte.to(tl.uint8).to(KIND, bitcast=True).to(tl.float16)  # noqa: SIM300 - a constexpr


@triton.jit
def attend_quantised(  # noqa: ANN201
    query, keys, values, key_scales, value_scales, table, start, stop, low,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Online softmax of the queries [M, D] over the tokens start .. stop that are not below `low`: (sums [M, D], log2 scale, sum).

    Weights are 2^8 times as large as elsewhere, in the sums and in the sum: a small one times a value's scale is below 6e-5, where the
    normal numbers of float16 begin.
    """
    KIND: tl.constexpr = keys.dtype.element_ty
    scale: tl.constexpr = 1.4426950408889634 / HEAD_DIM**0.5
    dims = tl.arange(0, D)
    places = tl.arange(0, D // 4)
    tile = tl.arange(0, TILE)
    acc_0 = tl.zeros([M, D // 4], tl.float32)
    acc_1 = tl.zeros([M, D // 4], tl.float32)
    acc_2 = tl.zeros([M, D // 4], tl.float32)
    acc_3 = tl.zeros([M, D // 4], tl.float32)
    total = tl.zeros([M, TILE], tl.float32)  # summed over its tokens at the end, as without scales
    top = tl.full([M], -1e30, tl.float32)
    ids = block_ids(table, start, stop, BLOCK_SIZE, TILE)
    for first in range(start, stop, TILE):
        next_ids = block_ids(table, first + TILE, stop, BLOCK_SIZE, TILE)
        tokens = first + tile
        seen = (tokens >= low) & (tokens < stop)
        loaded, whole = seen[:, None], seen[:, None]
        if HEAD_DIM != D:
            loaded, whole = loaded & (dims < HEAD_DIM)[None, :], whole & (places < HEAD_DIM // 4)[None, :]
        # What is of 64 bits is of the block: one number where a tile lies in one.
        block = ids.to(tl.int64) * (BLOCK_SIZE * KV_HEADS)
        inside = tokens % BLOCK_SIZE
        if BLOCK_SIZE % TILE == 0:
            key_rows, value_rows = keys + block * HEAD_DIM, values + block * (HEAD_DIM // 4)
        else:
            key_rows, value_rows = (keys + block * HEAD_DIM)[:, None], (values + block * (HEAD_DIM // 4))[:, None]
        k = tl.load(key_rows + ((inside * (KV_HEADS * HEAD_DIM))[:, None] + dims[None, :]), mask=loaded, other=0.0)
        v = tl.load(value_rows + ((inside * (KV_HEADS * HEAD_DIM // 4))[:, None] + places[None, :]), mask=whole, other=0)
        key_scale = tl.load(key_scales + block + inside, mask=seen, other=0.0)
        value_scale = tl.load(value_scales + block + inside, mask=seen, other=0.0)
        k = _from_int8(k.to(tl.uint8, bitcast=True).to(tl.int16)) if KIND == tl.int8 else k.to(tl.float16)  # noqa: SIM300
        scores = tl.dot(query, tl.trans(k)) * (key_scale * scale)[None, :]
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - (higher - 8.0)[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink[:, None] + weights
        weights = (weights * value_scale[None, :]).to(tl.float16)
        acc_0 = tl.dot(weights, _halves(v, 0, KIND), acc_0 * shrink[:, None])
        acc_1 = tl.dot(weights, _halves(v, 1, KIND), acc_1 * shrink[:, None])
        acc_2 = tl.dot(weights, _halves(v, 2, KIND), acc_2 * shrink[:, None])
        acc_3 = tl.dot(weights, _halves(v, 3, KIND), acc_3 * shrink[:, None])
        top = higher
        ids = next_ids
    acc = tl.join(tl.join(acc_0, acc_2), tl.join(acc_1, acc_3)).reshape(M, D)
    return acc, top, tl.sum(total, 1)
