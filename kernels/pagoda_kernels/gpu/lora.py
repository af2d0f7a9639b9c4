"""What LoRA adapters add to a linear map, for rows of many adapters at once. Called by the daemon's runner for a GPU, in every layer.

`lora_shrink` multiplies each tile of rows by its adapter's A, cut along the inputs, in fp32. `lora_expand` sums the cuts in their order,
multiplies by B and adds to the output in place. Both launch as many programs as the work list has room for: those without a tile end at
once, so that a captured graph serves any mixture of adapters. All modules of a fused matrix are computed in one launch. Roundings are those
of the daemon's torch ops: the product with A, the product with B, and the sum are each rounded to the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pagoda_kernels.exports import ARCHS, Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.lora_pool import FIELDS, MODULES, NARROW, RANKS, WIDE, LoraPlace, LoraPool, LoraRows
from pagoda_kernels.gpu.rows import check_rows

_MOST_RANKS = 64  # of a program of lora_shrink: those of a fused matrix together, so that its rows are read once
_ENOUGH = 1024  # programs of lora_expand that fill a device: 132 multiprocessors have 5 each; tiles of a captured step may be empty
_MOST_TURNS = 8


@dataclass(frozen=True, slots=True)
class Config:
    """How the kernels are compiled and launched: cuts of the inputs, inputs per turn of the loop, loads in flight and warps of lora_shrink,
    outputs of a turn, warps, loads in flight and turns of lora_expand (0: as many as leave enough programs).

    early: lora_expand is launched while lora_shrink computes, reads B, and waits then (programmatic dependent launch, from sm_90 on).
    """

    splits: int = 8
    block_k: int = 128
    stages: int = 4
    warps: int = 4
    block_n: int = 128
    expand_warps: int = 4
    expand_stages: int = 3
    turns: int = 0
    early: bool = False


def lora_config(tile: int, itemsize: int, *, amd: bool = torch.version.hip is not None) -> Config:
    """Return the configuration for the rows of a tile and the bytes of a number."""
    if tile == WIDE:
        return Config(splits=4, block_k=256 // itemsize, stages=2 if amd else 3, warps=8, expand_warps=8)
    return Config(block_k=256 // itemsize, stages=2 if amd else 4)


@triton.jit
def _tile(tiles, index):
    """Slot, begin and end of a tile; the slot is -1 behind the last one."""
    entry = tiles + 1 + 3 * index
    inside = index < tl.load(tiles)
    return tl.load(entry, mask=inside, other=-1), tl.load(entry + 1, mask=inside, other=0), tl.load(entry + 2, mask=inside, other=0)


@cached
@triton.jit(
    do_not_specialize=["count", "entry", "last", "stride"],
    do_not_specialize_on_alignment=["tokens", "tiles"],
)
def _shrink_kernel(
    hidden, weights, places, tokens, tiles, low, width, count, entry, last, stride, span, stack,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: a tile's rows by BLOCK_R of the ranks of a fused matrix, over `span` inputs. stride: of a slot in the table; entry: the
    matrix's first module there, `last` behind it its last one; stack: the most ranks of all its modules."""
    if EARLY:
        gdc_launch_dependents()
    slot, begin, end = _tile(tiles, tl.program_id(0))
    if slot < 0:
        return
    place = places + slot.to(tl.int64) * stride + entry * 4
    ranks = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = (tl.load(place + last * 4 + 2) + tl.load(place + last * 4 + 3)).to(tl.int32)
    if tl.program_id(2) * BLOCK_R >= total:
        return
    rows = begin + tl.arange(0, BLOCK_M)
    token = tl.load(tokens + rows, mask=rows < end, other=0).to(tl.int64)
    known = ranks < total
    matrix = weights + tl.multiple_of(tl.load(place), 16)
    first = tl.program_id(1) * span
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(first, tl.minimum(first + span, width), BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = (columns < width)[None, :]
        x = tl.load(hidden + token[:, None] * width + columns[None, :], mask=(rows < end)[:, None] & inside, other=0.0)
        a = tl.load(matrix + ranks.to(tl.int64)[:, None] * width + columns[None, :], mask=known[:, None] & inside, other=0.0)
        acc = tl.dot(x, tl.trans(a), acc, input_precision="ieee")
    kept = low + (tl.program_id(1).to(tl.int64) * count + rows)[:, None] * stack + ranks[None, :]
    tl.store(kept, acc, mask=(rows < end)[:, None] & known[None, :])


@triton.jit
def _summed(low, inside, cut, SPLITS: tl.constexpr):
    """The cuts of lora_shrink, in their order."""
    found = tl.load(low, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        found += tl.load(low + split * cut, mask=inside, other=0.0)
    return found


@cached
@triton.jit(
    do_not_specialize=["count", "entry", "stride", "turns"],
    do_not_specialize_on_alignment=["tokens", "tiles"],
)
def _expand_kernel(
    low, weights, places, tokens, tiles, out, width, count, entry, stride, size0, size1, stack, turns,
    SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program: a tile's rows by `turns` times BLOCK_N outputs of one module. size0, size1: outputs of the first two modules, where
    there are more; `width` of all. ONCE: no adapter has more than BLOCK_R ranks."""
    slot, begin, end = _tile(tiles, tl.program_id(0))
    if slot < 0:
        if EARLY:
            gdc_wait()
        return
    span = turns * BLOCK_N
    block0, block1 = tl.cdiv(size0, span), tl.cdiv(size1, span)
    block = tl.program_id(1)
    second, third = block >= block0, block >= block0 + block1
    module = second.to(tl.int32) + third.to(tl.int32)
    before = tl.where(second, size0, 0) + tl.where(third, size1, 0)
    size = tl.where(third, width - size0 - size1, tl.where(second, size1, size0))
    first = (block - tl.where(second, block0, 0) - tl.where(third, block1, 0)) * span

    place = places + slot.to(tl.int64) * stride + (entry + module) * 4
    rank = tl.multiple_of(tl.load(place + 2).to(tl.int32), 16)
    matrix = weights + tl.multiple_of(tl.load(place + 1), 16)
    ranks = tl.arange(0, BLOCK_R)
    rows = begin + tl.arange(0, BLOCK_M)
    inside = (rows < end)[:, None]
    token = tl.load(tokens + rows, mask=rows < end, other=0).to(tl.int64)
    ranked = low + rows.to(tl.int64)[:, None] * stack + (tl.load(place + 3) + ranks)[None, :]
    cut = tl.cast(count, tl.int64) * stack
    if EARLY:
        gdc_wait()  # all programs: a kernel behind this one must find that lora_shrink has ended
    if rank == 0:
        return
    shrunk = _summed(ranked, inside & (ranks < rank)[None, :], cut, SPLITS).to(weights.dtype.element_ty)  # read once for all turns
    for start in range(first, tl.minimum(first + span, size), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        known = (columns < size)[:, None]
        tile = matrix + columns[:, None] * rank + ranks[None, :]
        b = tl.load(tile, mask=known & (ranks < rank)[None, :], other=0.0)
        acc = tl.dot(shrunk, tl.trans(b), input_precision="ieee")
        if not ONCE:
            for done in range(BLOCK_R, rank, BLOCK_R):
                left = (done + ranks < rank)[None, :]
                more = _summed(ranked + done, inside & left, cut, SPLITS).to(b.dtype)
                b = tl.load(tile + done, mask=known & left, other=0.0)
                acc = tl.dot(more, tl.trans(b), acc, input_precision="ieee")
        changed = out + token[:, None] * width + (before + columns)[None, :]
        added = inside & (columns < size)[None, :]
        total = tl.load(changed, mask=added, other=0.0).to(tl.float32) + acc.to(b.dtype).to(tl.float32)
        tl.store(changed, total.to(b.dtype), mask=added)


def lora_shrink(hidden: Tensor, rows: LoraRows, pool: LoraPool, place: LoraPlace, *, config: Config | None = None) -> Tensor:
    """Return the products of `rows` of `hidden` [tokens, inputs] with their adapters' A at `place`, float32 [splits, rows, ranks], cut
    along the inputs. What an adapter has no ranks for is not written."""
    count, width = len(rows.tokens), hidden.shape[1]
    check_rows((hidden,), hidden.shape, pool.weights.dtype)
    _check(rows, pool, place)
    config = config or lora_config(rows.tile, hidden.element_size())
    members = len(place.outputs)
    stack = members * pool.rank
    block = _ranks_at_once(pool)
    low = hidden.new_empty(config.splits, count, stack, dtype=torch.float32)
    span = triton.cdiv(triton.cdiv(width, config.splits), config.block_k) * config.block_k
    if count:
        _shrink_kernel[((len(rows.tiles) - 1) // 3, config.splits, triton.cdiv(stack, block))](
            hidden, pool.weights, pool.places, rows.tokens, rows.tiles, low, width, count, _entry(place), members - 1,
            _stride(pool), span, stack, BLOCK_M=rows.tile, BLOCK_R=block, BLOCK_K=config.block_k, EARLY=config.early,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return low


def lora_expand(low: Tensor, rows: LoraRows, pool: LoraPool, place: LoraPlace, out: Tensor, *, config: Config | None = None) -> Tensor:
    """Add to `rows` of `out` [tokens, outputs] the products of `low` (of lora_shrink, in the same configuration) with B; return `out`."""
    count, width = len(rows.tokens), sum(place.outputs)
    check_rows((out,), (len(out), width), pool.weights.dtype)
    config = config or lora_config(rows.tile, out.element_size())
    size0, size1 = (*place.outputs, 0)[:2]
    block, tiles = _ranks_at_once(pool), (len(rows.tiles) - 1) // 3
    turns = config.turns or min(max(width // config.block_n * tiles // _ENOUGH, 1), _MOST_TURNS)
    if count:
        blocks = sum(triton.cdiv(size, config.block_n * turns) for size in place.outputs)
        _expand_kernel[(tiles, blocks)](
            low, pool.weights, pool.places, rows.tokens, rows.tiles, out, width, count, _entry(place), _stride(pool),
            size0, size1, low.shape[2], turns, SPLITS=config.splits, BLOCK_M=rows.tile, BLOCK_N=config.block_n, BLOCK_R=block,
            ONCE=pool.rank <= block, EARLY=config.early, num_warps=config.expand_warps, num_stages=config.expand_stages,
            **({"launch_pdl": True} if config.early else {}),
        )  # fmt: skip
    return out


def lora_add(
    out: Tensor, hidden: Tensor, rows: LoraRows, pool: LoraPool, place: LoraPlace, *, config: Config | None = None
) -> Tensor:  # fmt: skip
    """Add to `rows` of `out` [tokens, outputs] what their adapters make of `hidden` [tokens, inputs] at `place`; return `out`.

    fp32, bf16 or fp16, contiguous, all of the pool's dtype: ValueError otherwise. Slots and tokens are not checked: they are on the device.
    """
    return lora_expand(lora_shrink(hidden, rows, pool, place, config=config), rows, pool, place, out, config=config)


def _entry(place: LoraPlace) -> int:
    return place.layer * MODULES + place.first


def _ranks_at_once(pool: LoraPool) -> int:
    return min(_MOST_RANKS, int(triton.next_power_of_2(pool.rank)))


def _stride(pool: LoraPool) -> int:
    return pool.places.shape[1] * MODULES * FIELDS


def _check(rows: LoraRows, pool: LoraPool, place: LoraPlace) -> None:
    """Refuse what the kernels do not compute."""
    slots, layers = pool.places.shape[:2]
    check_rows((pool.places,), (slots, layers, MODULES, FIELDS), torch.int64)
    check_rows((rows.tokens,), (len(rows.tokens),), torch.int32)
    check_rows((rows.tiles,), (len(rows.tiles),), torch.int32)
    if not (0 <= place.layer < layers and 1 <= len(place.outputs) <= 3 and place.first + len(place.outputs) <= MODULES):
        raise ValueError(f"{place} is not in a pool of {layers} layers of {MODULES} modules")
    if pool.rank % RANKS or rows.tile not in (NARROW, WIDE):
        raise ValueError(f"rank {pool.rank} must be a multiple of {RANKS}, tiles have {NARROW} or {WIDE} rows, got {rows.tile}")


_MMA = {NARROW: {"sm_80": "HMMA", "sm_90": "HMMA", "gfx942": "MFMA"}, WIDE: {"sm_80": "HMMA", "sm_90": "HGMMA", "gfx942": "MFMA"}}
_POINTERS = {"weights": "*bf16", "places": "*i64", "tokens": "*i32", "tiles": "*i32", "low": "*fp32"}


def _exports(tile: int, archs: tuple[str, ...]) -> tuple[Export, Export]:
    """As they are launched for gate and up of an 8B model, with ranks up to 64."""
    config = lora_config(tile, 2, amd=archs == ARCHS[4:])
    name = f"{tile}{'_amd' if archs == ARCHS[4:] else ''}"
    integers = dict.fromkeys(("width", "count", "entry", "stride", "stack"), "i32")
    shrink = Export(
        name=f"lora_shrink_{name}",
        kernel=_shrink_kernel,
        signature=_POINTERS | integers | {"hidden": "*bf16", "last": "i32", "span": "i32"},
        constants={"BLOCK_M": tile, "BLOCK_R": 64, "BLOCK_K": config.block_k, "EARLY": False},
        options={"num_warps": config.warps, "num_stages": config.stages},
        bands=Bands(registers=168, mma=_MMA[tile], depth=2, wide_loads=0.6),
        aligned=("width", "span", "stack"),
        archs=archs,
    )
    expand = Export(
        name=f"lora_expand_{name}",
        kernel=_expand_kernel,
        signature=_POINTERS | integers | {"out": "*bf16", "size0": "i32", "size1": "i32", "turns": "i32"},
        constants={"SPLITS": config.splits, "BLOCK_M": tile, "BLOCK_N": config.block_n, "BLOCK_R": 64, "ONCE": True, "EARLY": False},
        options={"num_warps": config.expand_warps, "num_stages": config.expand_stages},
        bands=Bands(registers=168, mma=_MMA[tile], depth=1),
        aligned=("width", "size0", "size1", "stack"),
        archs=archs,
    )
    return shrink, expand


EXPORTS = tuple(export for tile in (NARROW, WIDE) for archs in (ARCHS[:4], ARCHS[4:]) for export in _exports(tile, archs))
