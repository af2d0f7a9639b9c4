"""A plan as flat arrays for the device: pure, numpy only. Called by `gpu.forward`.

All arrays of a step travel as one buffer in one copy. Each begins at a multiple of 16 bytes: a kernel is compiled anew for pointers that
are not aligned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pagoda_kernels.gpu.lora_pool import NARROW, lora_tile, lora_tiles
from pagoda_kernels.gpu.paged_attention_decode import decode_work
from pagoda_kernels.gpu.paged_attention_prefill import prefill_work

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import StepPlan

Arrays = dict[str, NDArray[np.int32] | NDArray[np.int64]]

ALIGNED: Final = 4
"""int32 words: 16 bytes."""


class Shape(NamedTuple):
    """What the arrays of any step of a model depend on. `windows`: the different ones, None among them where a layer sees everything.
    `split` and `tile` are those of the attention kernels."""

    block_size: int
    windows: tuple[int | None, ...]
    split: int
    tile: int
    spare_row: int


def places(arrays: Mapping[str, NDArray[np.generic]], room: Mapping[str, int] | None = None) -> dict[str, slice]:
    """Where each array lies in a buffer of int32 words; `room`: elements that an array may have, where not as many as it has."""
    found, at = {}, 0
    for name, array in arrays.items():
        words = (room or {}).get(name, array.size) * array.itemsize // 4
        found[name] = slice(at, at + words)
        at += -(-words // ALIGNED) * ALIGNED
    return found


def fill(buffer: Ints, arrays: Mapping[str, NDArray[np.generic]], where: Mapping[str, slice]) -> int:
    """Write `arrays` into `buffer`; how many words of it are in use."""
    used = 0
    for name, array in arrays.items():
        begin = where[name].start
        words = np.ascontiguousarray(array).view(np.int32).reshape(-1)
        buffer[begin : begin + words.size] = words
        used = begin + words.size
    return used


def work_name(window: int | None) -> str:
    """The name of a window's list of work."""
    return f"work {window}"


ADAPTED: Final = "adapted"
"""The tokens that have an adapter, and behind `tiles_name` their work list; likewise ADAPTED_WANTED, among the wanted ones."""
ADAPTED_WANTED: Final = "adapted wanted"


def tiles_name(adapted: str) -> str:
    return f"{adapted} tiles"


def decode_arrays(plan: StepPlan, shape: Shape, rows: int) -> Arrays:
    """Of a plan whose rows feed one token each, padded to `rows`: padding has no context, no slot, and samples into a row of nobody."""
    count, width = plan.rows.size, plan.block_tables.shape[1]
    lengths = _padded(plan.positions + 1, rows, 0)
    return {
        "slots": _padded(_slots(plan.block_tables, np.arange(count), plan.positions, shape.block_size), rows, -1),
        "rows": _padded(plan.rows.astype(np.int64), rows, shape.spare_row),
        "token_ids": _padded(plan.token_ids, rows, 0),
        "positions": _padded(plan.positions, rows, 0),
        "lengths": lengths,
        "table_starts": _padded(np.arange(count, dtype=np.int32) * width, rows, 0),
        **({} if plan.adapters is None else _adapted_rows(plan.adapters, rows)),
        **{work_name(window): decode_work(lengths, window, shape.split) for window in shape.windows},
        "tables": np.ascontiguousarray(plan.block_tables, np.int32).reshape(-1),
    }


def mixed_arrays(plan: StepPlan, shape: Shape, wanted: NDArray[np.int64]) -> Arrays:
    """Of any plan. The first `leading(plan)` rows decode, the others go through the kernel for prompts."""
    counts, decodes = np.diff(plan.starts), leading(plan)
    row_of = np.repeat(np.arange(plan.rows.size), counts)
    lengths = plan.lengths.astype(np.int32)
    starts = (plan.starts[decodes:] - plan.starts[decodes]).astype(np.int32)
    return {
        "slots": _slots(plan.block_tables, row_of, plan.positions, shape.block_size),
        "rows": plan.rows[row_of].astype(np.int64),
        "wanted": wanted,
        "token_ids": np.ascontiguousarray(plan.token_ids, np.int32),
        "positions": np.ascontiguousarray(plan.positions, np.int32),
        "lengths": lengths,
        "table_starts": np.arange(plan.rows.size, dtype=np.int32) * plan.block_tables.shape[1],
        # These begin anew at the first prompt, as the kernel's own arrays do: a view into `lengths` would not be aligned.
        "prompt_lengths": lengths[decodes:],
        "prompt_table_starts": np.arange(decodes, plan.rows.size, dtype=np.int32) * plan.block_tables.shape[1],
        "starts": starts,
        "tiles": prefill_work(starts, shape.tile, lengths[decodes:]),
        **({} if plan.adapters is None else _adapted_tokens(plan.adapters[row_of], wanted)),
        **{work_name(window): decode_work(lengths[:decodes], window, shape.split) for window in shape.windows},
        "tables": np.ascontiguousarray(plan.block_tables, np.int32).reshape(-1),
    }


def _adapted_rows(slots: Ints, rows: int) -> Arrays:
    """At worst, each row has an adapter of its own."""
    order, tiles = lora_tiles(slots, NARROW)
    return {ADAPTED: _padded(order, rows, 0), tiles_name(ADAPTED): _padded(tiles, 1 + 3 * rows, 0)}


def _adapted_tokens(slots: Ints, wanted: NDArray[np.int64]) -> Arrays:
    found: Arrays = {}
    for name, some in ((ADAPTED, slots), (ADAPTED_WANTED, slots[wanted])):
        found[name], found[tiles_name(name)] = lora_tiles(some, lora_tile(some))
    return found


def leading(plan: StepPlan) -> int:
    """How many rows at the beginning feed one token."""
    many = np.flatnonzero(np.diff(plan.starts) != 1)
    return int(many[0]) if many.size else plan.rows.size


def bucket_of(rows: int, buckets: Sequence[int]) -> int | None:
    """The smallest of the ascending `buckets` that holds `rows`."""
    at = int(np.searchsorted(buckets, rows))
    return buckets[at] if at < len(buckets) else None


def buckets(most: int) -> tuple[int, ...]:
    """Numbers of rows that graphs are captured for: above 32 a step pays for at most half more rows than it has."""
    wanted = {1, 2, 4, *range(8, 33, 8), *range(48, 129, 16), *range(160, 257, 32), *range(320, 2049, 64)}
    return tuple(sorted({min(rows, most) for rows in wanted}))


def _padded(values: NDArray[Any], size: int, value: int) -> NDArray[Any]:
    found = np.full(size, value, values.dtype)
    found[: values.size] = values
    return found


def _slots(tables: Ints, rows: NDArray[np.intp], positions: Ints, block_size: int) -> NDArray[np.int64]:
    """Slot of each token's position in the blocks of its row's line of `tables`."""
    blocks = tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size
