"""Attention of one query per row over its paged context (flash decoding). Called by the daemon's model, once per layer and decode step.

A row's context is cut into items of `split` tokens, of twice as many in long rows. A persistent grid computes items x KV heads; the query
heads that share a KV head are the rows of one matrix. A row of one item is written at once; a second kernel merges the items of longer rows
in the order of the tokens. The cuts depend on nothing but the row's own length, so that a row gives the same bits in any batch.
"""

from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.attend_quantised import attend_quantised, block_ids
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.merge import MERGED_AT_ONCE, merge_kernel
from pagoda_kernels.gpu.pages import Pages
from pagoda_kernels.gpu.quantised import check_kv, words

ALIGN = 64  # the first item of a row begins at a multiple of this
LONG = 32  # a row of more items than this has items of twice the length: each leaves 4 KiB per KV head and 8 queries for the merge
NO_WINDOW = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Config:
    """How the kernel is compiled and launched: tokens per tile and per item, loads in flight, warps, programs per multiprocessor.

    early: the merge is launched while the items are still computed, and waits inside (programmatic dependent launch, from sm_90 on).
    """

    tile: int = 64
    stages: int = 3
    warps: int = 4
    programs: int = 3
    split: int = 256
    early: bool = False

    def __post_init__(self) -> None:
        """Refuse splits that the tiles or the start of a windowed row would cut."""
        if self.split % self.tile or self.split % ALIGN:
            raise ValueError(f"split must be a multiple of {ALIGN} and of the tile {self.tile}, got {self.split}")


@cache
def decode_config(head_dim: int, itemsize: int, *, amd: bool = torch.version.hip is not None) -> Config:
    """Return the configuration for a head dimension and the bytes of one element of the KV cache."""
    row = triton.next_power_of_2(head_dim) * itemsize
    if amd:
        return Config(tile=32, stages=2)  # larger tiles spill scalar registers on gfx942
    if itemsize == 1:  # 202 registers at heads of 128 leave room for two programs; items of as many tiles as with 16 bits
        return Config(tile=64 if row > 128 else 128, programs=2, split=512)
    if row > 512:
        return Config(tile=32, stages=2, programs=1)
    return Config(tile=32 if row > 256 else 64 if row > 128 else 128)


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """What the items of long rows leave for the merge, float32: outputs [items, heads, head_dim], log2 of exp2 sums [items, heads].

    processors: multiprocessors of the device, read once. One scratch serves all layers of a model, one after the other.
    """

    partial: Tensor
    sums: Tensor
    processors: int

    @classmethod
    def of(cls, max_items: int, heads: int, head_dim: int, device: torch.device | str) -> Self:
        """Allocate for at most max_items items (the first number of a work list) on a device."""
        place = torch.device(device)
        processors = torch.cuda.get_device_properties(place).multi_processor_count if place.type == "cuda" else 2
        partial = torch.empty(max_items, heads, head_dim, dtype=torch.float32, device=place)
        return cls(partial, torch.empty(max_items, heads, dtype=torch.float32, device=place), processors)


def decode_work(lengths: NDArray[np.int32], window: int | None, split: int) -> NDArray[np.int32]:
    """Return the work list of one batch, int32 [items, first_item[rows + 1]..., row_of_item[items]...].

    An item is `split` tokens of a row, counted from the last multiple of ALIGN before the first token that the window shows; in rows that
    would have more than LONG such items, it is 2 * split tokens.
    """
    if split <= 0 or split % ALIGN:
        raise ValueError(f"split must be a positive multiple of {ALIGN}, got {split}")
    low = np.maximum(lengths.astype(np.int64) - (NO_WINDOW if window is None else window), 0)
    spans = lengths - low // ALIGN * ALIGN
    counts = -(-spans // np.where(spans > LONG * split, 2 * split, split))
    first = np.concatenate([[0], np.cumsum(counts)])
    return np.concatenate([first[-1:], first, np.repeat(np.arange(len(lengths)), counts)]).astype(np.int32)


@triton.jit
def _attend(
    query, keys, values, table, start, stop, low,
    STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Online softmax of the queries [M, D] over the tokens start .. stop that are not below `low`: (sums [M, D], log2 scale, sum)."""
    scale: tl.constexpr = 1.4426950408889634 / HEAD_DIM**0.5
    dims = tl.arange(0, D)
    tile = tl.arange(0, TILE)
    acc = tl.zeros([M, D], tl.float32)
    total = tl.zeros([M, TILE], tl.float32)  # summed over its tokens at the end: a sum across warps costs three barriers per tile
    top = tl.full([M], -1e30, tl.float32)  # finite: a tile that is all below `low` must not give inf - inf
    ids = block_ids(table, start, stop, BLOCK_SIZE, TILE)
    for first in range(start, stop, TILE):
        # The id for the next tile is loaded now. If a tile loaded its own, the loads of K and V would not run ahead of the loop.
        next_ids = block_ids(table, first + TILE, stop, BLOCK_SIZE, TILE)
        tokens = first + tile
        seen = (tokens >= low) & (tokens < stop)
        offsets = (ids.to(tl.int64) * BLOCK_SIZE + tokens % BLOCK_SIZE) * STRIDE
        loaded = seen[:, None]
        if HEAD_DIM != D:
            loaded = loaded & (dims < HEAD_DIM)[None, :]
        k = tl.load(keys + offsets[:, None] + dims[None, :], mask=loaded, other=0.0)
        v = tl.load(values + offsets[:, None] + dims[None, :], mask=loaded, other=0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink[:, None] + weights
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = higher
        ids = next_ids
    return acc, top, tl.sum(total, 1)


@cached
@triton.jit(do_not_specialize=["rows", "listed", "window"], do_not_specialize_on_alignment=["tables", "table_starts", "lengths", "work"])
def _decode_kernel(
    query, keys, values, key_scales, value_scales, out, partial, sums,
    tables, table_starts, lengths, work, rows, listed, window,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, ALIGNED: tl.constexpr,
    SPLIT: tl.constexpr, LONG_SPAN: tl.constexpr, TILE: tl.constexpr, M: tl.constexpr, D: tl.constexpr, EARLY: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """One program computes every num_programs-th pair of item and KV head. listed: rows of items for which the work list has room."""
    if EARLY:
        gdc_launch_dependents()
    members = tl.arange(0, M)
    dims = tl.arange(0, D)
    valid = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    row_of_item = work + 2 + rows
    step = tl.num_programs(0)
    # The row is loaded one unit ahead, at first before it is known whether there is such an item: one latency less before K and V.
    next_row = tl.load(row_of_item + tl.program_id(0) // KV_HEADS, mask=tl.program_id(0) // KV_HEADS < listed, other=0)
    for unit in range(tl.program_id(0), tl.load(work) * KV_HEADS, step):
        item = unit // KV_HEADS
        kv_head = unit % KV_HEADS
        row = next_row
        next_row = tl.load(row_of_item + (unit + step) // KV_HEADS, mask=(unit + step) // KV_HEADS < listed, other=0)
        first_item = tl.load(work + 1 + row)
        pieces = tl.load(work + 2 + row) - first_item
        length = tl.load(lengths + row)
        low = tl.maximum(length - window, 0)
        begin = low // ALIGNED * ALIGNED
        split = tl.where(length - begin > LONG_SPAN, 2 * SPLIT, SPLIT)
        start = begin + (item - first_item) * split
        heads = row.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + members
        places = heads[:, None] * HEAD_DIM + dims[None, :]
        asked = tl.load(query + places, mask=valid, other=0.0)
        ids = tables + tl.load(table_starts + row)
        stop = tl.minimum(start + split, length)
        if SCALED:
            acc, top, total = attend_quantised(
                asked.to(tl.float16), keys + kv_head * HEAD_DIM, values + kv_head * (HEAD_DIM // 4),
                key_scales + kv_head * BLOCK_SIZE, value_scales + kv_head * BLOCK_SIZE, ids, start, stop, low,
                KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, M, D,
            )  # fmt: skip
        else:
            acc, top, total = _attend(
                asked, keys + kv_head * HEAD_DIM, values + kv_head * HEAD_DIM, ids, start, stop, low,
                KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_SIZE, TILE, M, D,
            )  # fmt: skip
        result = acc / total[:, None]
        if pieces == 1:
            tl.store(out + places, result.to(out.dtype.element_ty), mask=valid)
        else:
            heads = item.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + members
            tl.store(partial + heads[:, None] * HEAD_DIM + dims[None, :], result, mask=valid)
            tl.store(sums + heads, top + tl.log2(total), mask=members < GROUP)


def paged_attention_decode(
    query: Tensor, kv: Tensor, pages: Pages, work: Tensor, scratch: DecodeScratch,
    *, scales: Tensor | None = None, window: int | None = None, out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Return the attention of each row's last token over its context, [rows, heads, head_dim] in the query's dtype.

    query [rows, heads, head_dim], kv [2, slots, kv_heads, head_dim] of one dtype (bfloat16, float16, float32), both contiguous; or kv of 8
    bits with `scales` (quantised.py) and a query of 16 bits, computed in float16. work: the device copy of
    decode_work(lengths, window, split) with the split of `config` (default: decode_config), longer buffers are allowed. With `window` a
    token sees the last `window` tokens, itself included. Rows of length 0 give zeros. The scale is 1 / sqrt(head_dim).
    """
    _check(query, kv, pages, scratch)
    check_kv(query, kv, scales, pages.block_size)
    out = torch.empty_like(query) if out is None else out
    (rows, heads, head_dim), kv_heads = query.shape, kv.shape[2]
    config = config or decode_config(head_dim, kv.element_size())
    width, group, (keys, values) = 1 << (head_dim - 1).bit_length(), heads // kv_heads, kv.unbind(0)
    grid = min(scratch.processors * config.programs, len(scratch.partial) * kv_heads)
    _decode_kernel[(grid,)](
        query, keys, values if scales is None else words(values), *((None, None) if scales is None else scales.unbind(0)), out,
        scratch.partial, scratch.sums, pages.tables, pages.table_starts, pages.lengths, work,
        rows, len(work) - 2 - rows, NO_WINDOW if window is None else window,
        GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=pages.block_size, ALIGNED=ALIGN, SPLIT=config.split,
        LONG_SPAN=LONG * config.split, TILE=config.tile, M=max(16, 1 << (group - 1).bit_length()), D=width, EARLY=config.early,
        SCALED=scales is not None, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    merge_kernel[(rows, heads)](
        scratch.partial, scratch.sums, out, work, HEADS=heads, HEAD_DIM=head_dim, CHUNK=MERGED_AT_ONCE, D=width, EARLY=config.early,
        num_warps=4, **({"launch_pdl": True} if config.early else {}),
    )  # fmt: skip
    return out


def _check(query: Tensor, kv: Tensor, pages: Pages, scratch: DecodeScratch) -> None:
    """Refuse shapes and types that the kernels do not compute."""
    heads, head_dim = query.shape[1:]
    if kv.ndim != 4 or kv.shape[0] != 2 or kv.shape[3] != head_dim or heads % kv.shape[2]:
        raise ValueError(f"kv must be [2, slots, a divisor of {heads}, {head_dim}], got {list(kv.shape)}")
    if not (kv.is_contiguous() and query.is_contiguous()):
        raise ValueError(f"query and kv must be contiguous, got strides {query.stride()} and {kv.stride()}")
    if pages.rows != len(query) or scratch.partial.shape[1:] != query.shape[1:]:
        raise ValueError(f"query has shape {list(query.shape)}, the pages {pages.rows} rows, the scratch {list(scratch.partial.shape)}")


_MMA = {"sm_80": "HMMA", "sm_90": "HMMA", "gfx942": "MFMA"}
_BITS = {"bf16": 16, "fp8e4nv": 8, "i8": 8}


def _decode_export(name: str, head_dim: int, block_size: int, archs: tuple[str, ...] = ARCHS[:4], kept: str = "bf16") -> Export:
    """The kernel as it is launched for 8 KV heads of 4 query heads each. 168 registers let three programs run on a multiprocessor."""
    config = decode_config(head_dim, _BITS[kept] // 8, amd=archs[0].startswith("gfx"))
    pointers = dict.fromkeys(("query", "out"), "*bf16") | {"keys": f"*{kept}", "values": "*bf16" if kept == "bf16" else "*i32"}
    pointers |= dict.fromkeys(("partial", "sums"), "*fp32")
    lists = dict.fromkeys(("tables", "table_starts", "lengths", "work"), "*i32") | dict.fromkeys(("rows", "listed", "window"), "i32")
    constants: dict[str, int | None] = {
        "GROUP": 4,
        "KV_HEADS": 8,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": block_size,
        "ALIGNED": ALIGN,
        "SPLIT": config.split,
    }
    constants |= {"LONG_SPAN": LONG * config.split, "TILE": config.tile, "M": 16, "D": triton.next_power_of_2(head_dim), "EARLY": False}
    scales = ("key_scales", "value_scales")
    if kept == "bf16":
        constants |= dict.fromkeys(scales) | {"SCALED": False}
    else:
        pointers, constants = pointers | dict.fromkeys(scales, "*fp32"), constants | {"SCALED": True}
    return Export(
        name=f"paged_attention_decode_{name}",
        kernel=_decode_kernel,
        signature=pointers | lists,
        constants=constants,
        options={"num_warps": config.warps, "num_stages": config.stages},
        bands=Bands(
            registers=168 if kept == "bf16" else 224, mma={arch: _MMA[arch] for arch in archs if arch in _MMA}, depth=2, wide_loads=0.5
        ),
        archs=archs,
    )


EXPORTS = (
    *(_decode_export(f"{dim}_block_{block}", dim, block) for dim, block in ((128, 16), (128, 64), (64, 32), (256, 16))),
    _decode_export("128_block_16_amd", 128, 16, ARCHS[4:]),
    *(_decode_export(f"128_block_{block}_int8", 128, block, ARCHS[:4], "i8") for block in (16, 64)),
    *(_decode_export(f"128_block_{block}_fp8", 128, block, ARCHS[1:4], "fp8e4nv") for block in (16, 64)),
)
