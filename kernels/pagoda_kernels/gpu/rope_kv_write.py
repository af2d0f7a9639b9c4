"""What lies between the QKV matrix and attention, in one pass: norms of heads, rotary turn, keys and values into the paged cache.

Called by the daemon's runner for a GPU. The cache may be of 8 bits, with scales (quantised.py). One program per token and group of heads,
whichever of queries, keys and values they are; its launch depends on the model's sizes alone. Roundings are those of the daemon's torch
ops: norms as `rms_norm`, each product and the sum of the turn rounded to the dtype. The cosines are read for both halves of a head: their
tables need not repeat them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.quantised import LARGEST, check_kv, quantised
from pagoda_kernels.gpu.rows import check_rows

_TILE = 1024  # elements of each half of its heads in a program
_PER_WARP = 256  # of them: 8 to a thread, one 128-bit load of bf16


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Tables of cosines and sines [max_len, head_dim] in the model's dtype, and the tokens' positions int32 [tokens], below max_len."""

    cos: Tensor
    sin: Tensor
    positions: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class KvPlace:
    """A layer's cache [2, slots, kv_heads, head_dim] and the tokens' slots int64 [tokens]; -1: nothing is written for that token.

    scales: where the cache is of 8 bits, float32 [2, blocks, kv_heads, block_size].
    """

    kv: Tensor
    slots: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """Weights [head_dim] of the norms of queries and of keys."""

    query: Tensor
    key: Tensor
    eps: float


@triton.jit
def _normed(first, second, scale_first, scale_second, eps, HEAD_DIM: tl.constexpr):
    dtype = first.dtype
    first, second = first.to(tl.float32), second.to(tl.float32)
    mean_square = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / HEAD_DIM
    factor = tl.rsqrt(mean_square + eps)[:, None]
    first = (first * factor).to(dtype).to(tl.float32) * scale_first.to(tl.float32)
    second = (second * factor).to(dtype).to(tl.float32) * scale_second.to(tl.float32)
    return first.to(dtype), second.to(dtype)


@triton.jit
def _turned(along, across, cos, sin):
    dtype = along.dtype
    left = (along.to(tl.float32) * cos.to(tl.float32)).to(dtype)
    right = (across.to(tl.float32) * sin.to(tl.float32)).to(dtype)
    return (left.to(tl.float32) + right.to(tl.float32)).to(dtype)


@cached
@triton.jit(do_not_specialize=["pool"], do_not_specialize_on_alignment=["positions", "slots"])
def _rope_kv_write_kernel(
    qkv,
    cos,
    sin,
    positions,
    kv,
    scales,
    slots,
    pool,
    query_norm,
    key_norm,
    eps,
    query,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORM: tl.constexpr,
    GROUP: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LARGEST_OF: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * GROUP + tl.arange(0, GROUP))[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    is_query = head < HEADS
    turns = head < HEADS + KV_HEADS
    inside = (head < HEADS + 2 * KV_HEADS) & (column < HALF)

    source = qkv + token * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + head * HEAD_DIM + column
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + HALF, mask=inside, other=0.0)

    # Read as a tile of the heads' shape, though all rows are one: a vector would change its layout through shared memory.
    row = head * 0 + column
    kept_first, kept_second = first, second
    if NORM:
        for_query, for_key = inside & is_query, inside & turns & (head >= HEADS)
        scale_first = tl.where(is_query, tl.load(query_norm + row, mask=for_query), tl.load(key_norm + row, mask=for_key))
        scale_second = tl.where(is_query, tl.load(query_norm + row + HALF, mask=for_query), tl.load(key_norm + row + HALF, mask=for_key))
        first, second = _normed(first, second, scale_first, scale_second, eps, HEAD_DIM)
    angle = tl.load(positions + token).to(tl.int64) * HEAD_DIM + row
    turning = inside & turns
    cos_first, cos_second = tl.load(cos + angle, mask=turning, other=0.0), tl.load(cos + angle + HALF, mask=turning, other=0.0)
    sin_first, sin_second = tl.load(sin + angle, mask=turning, other=0.0), tl.load(sin + angle + HALF, mask=turning, other=0.0)
    turned_first = tl.where(turns, _turned(first, -second, cos_first, sin_first), kept_first)
    turned_second = tl.where(turns, _turned(second, first, cos_second, sin_second), kept_second)

    asked = query + token * (HEADS * HEAD_DIM) + head * HEAD_DIM + column
    tl.store(asked, turned_first, mask=inside & is_query)
    tl.store(asked + HALF, turned_second, mask=inside & is_query)

    slot = tl.load(slots + token)
    is_value = (head >= HEADS + KV_HEADS).to(tl.int64)
    kv_head = head - HEADS - is_value * KV_HEADS
    # `pool` slots to a plane: keys, then values. Counted in int64: a pool's elements may exceed 2^31.
    kept = kv + (is_value * pool + slot) * (KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM + column
    written = inside & (head >= HEADS) & (slot + 0 * head >= 0)
    if LARGEST_OF:
        turned_first, turned_second, scale = quantised(turned_first, turned_second, inside, LARGEST_OF, kv.dtype.element_ty)
        lines = ((is_value * (pool // BLOCK_SIZE) + slot // BLOCK_SIZE) * KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        tl.store(scales + lines, scale[:, None], mask=(head >= HEADS) & (head < HEADS + 2 * KV_HEADS) & (slot + 0 * head >= 0))
    tl.store(kept, turned_first, mask=written)
    tl.store(kept + HALF, turned_second, mask=written)


def rope_kv_write(qkv: Tensor, turn: Turn, place: KvPlace, norms: HeadNorms | None, *, query: Tensor) -> Tensor:
    """Norm (where `norms`) and turn the queries and keys of `qkv`, write keys and values into `place`, queries into `query`; `query`.

    `qkv` [tokens, (heads + 2 * kv_heads) * head_dim], `query` [tokens, heads, head_dim], head_dim even; fp32, bf16 or fp16, contiguous, all
    of one dtype, but for a cache with scales: ValueError otherwise. Slots and positions are not checked: what they say is on the device.
    """
    _check(qkv, turn, place, norms, query)
    tokens, heads, head_dim = query.shape
    pool, kv_heads = place.kv.shape[1:3]
    total = heads + 2 * kv_heads
    group, half_block = _cut(total, head_dim)
    if tokens:
        _rope_kv_write_kernel[(tokens, -(-total // group))](
            qkv,
            turn.cos,
            turn.sin,
            turn.positions,
            place.kv,
            place.scales,
            place.slots,
            pool,
            qkv if norms is None else norms.query,
            qkv if norms is None else norms.key,
            0.0 if norms is None else norms.eps,
            query,
            HEADS=heads,
            KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            NORM=norms is not None,
            GROUP=group,
            HALF_BLOCK=half_block,
            BLOCK_SIZE=1 if place.scales is None else place.scales.shape[-1],
            LARGEST_OF=0 if place.scales is None else LARGEST[place.kv.dtype],
            num_warps=max(group * half_block // _PER_WARP, 1),
            enable_fp_fusion=False,  # a fused product is not rounded: other bits than torch's, by up to 4 ulp where products cancel
        )
    return query


@cache
def _cut(total: int, head_dim: int) -> tuple[int, int]:
    """Heads of a program, and the lanes of half a head."""
    half_block = triton.next_power_of_2(head_dim // 2)
    return min(max(_TILE // half_block, 1), triton.next_power_of_2(total)), half_block


def _check(qkv: Tensor, turn: Turn, place: KvPlace, norms: HeadNorms | None, query: Tensor) -> None:
    tokens, heads, head_dim = query.shape
    pool, kv_heads = place.kv.shape[1:3]
    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}, must be even")
    check_rows((qkv,), (tokens, (heads + 2 * kv_heads) * head_dim), qkv.dtype)
    check_rows((query,), (tokens, heads, head_dim), qkv.dtype)
    check_rows((turn.cos, turn.sin), (turn.cos.shape[0], head_dim), qkv.dtype)
    check_rows((place.kv,), (2, pool, kv_heads, head_dim), place.kv.dtype)
    check_kv(query, place.kv, place.scales, 0 if place.scales is None else place.scales.shape[-1])
    check_rows((turn.positions,), (tokens,), torch.int32)
    check_rows((place.slots,), (tokens,), torch.int64)
    if norms is not None:
        check_rows((norms.query, norms.key), (head_dim,), qkv.dtype)


def _export(heads: int, kv_heads: int, head_dim: int, *, norm: bool, kept: str = "bf16", archs: tuple[str, ...] = ARCHS) -> Export:
    group, half_block = _cut(heads + 2 * kv_heads, head_dim)
    tensors = dict.fromkeys(("qkv", "cos", "sin", "query_norm", "key_norm", "query"), "*bf16")
    sizes = {"HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "NORM": norm, "GROUP": group, "HALF_BLOCK": half_block}
    plain = kept == "bf16"
    scaled = {"BLOCK_SIZE": 1 if plain else 64, "LARGEST_OF": 0 if plain else 127 if kept == "i8" else 448}
    return Export(
        name=f"rope_kv_write_{heads}_{kv_heads}_{head_dim}{'_norm' if norm else ''}{'' if plain else f'_{kept}'}",
        kernel=_rope_kv_write_kernel,
        signature=tensors
        | {"kv": f"*{kept}", "positions": "*i32", "slots": "*i64", "pool": "i64", "eps": "fp32"}
        | ({} if plain else {"scales": "*fp32"}),
        constants=sizes | scaled | ({"scales": None} if plain else {}),
        options={"num_warps": max(group * half_block // _PER_WARP, 1), "enable_fp_fusion": False},
        bands=Bands(registers=128, wide_loads=0.7),
        archs=archs,
    )


EXPORTS = (
    _export(32, 8, 128, norm=False),
    _export(16, 8, 128, norm=True),
    _export(32, 8, 128, norm=False, kept="fp8e4nv", archs=ARCHS[1:4]),
    _export(16, 8, 128, norm=True, kept="i8"),
)
