"""Paged attention in torch: the KV pool, and one step's groups of rows that are attended together. Called by `model.decoder`.

Layout: per layer, keys and values are [slots, kv_heads, head_dim], a slot being block * block_size + offset. A step gathers each row's
slots; measured at 1 thread, gather plus `scaled_dot_product_attention` with the query heads of one KV head packed into its query
dimension is 5 times faster at 32 rows than matmul and softmax by hand, and in fp32 a fifth faster than `enable_gqa`.

A layer with a sliding window gathers only what its window holds: entries of a block table that lie wholly behind it are never looked
at, so their owner may take the blocks back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.model.config import ModelSpec

# Rows that decode are padded to the longest of their group, at most twofold above this length.
_SHORTEST_BUCKET = 6


class KvCache:
    """The bytes of every block: [layers, 2, slots, kv_heads, head_dim]. Zeros are not resident until written.

    Of 8 bits they have `scales` [layers, 2, blocks, kv_heads, block_size], which only the GPU's fused ops read."""

    def __init__(self, spec: ModelSpec, blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size
        self.data = torch.zeros(spec.layers, 2, blocks * block_size, spec.kv_heads, spec.head_dim, dtype=dtype)
        self.scales: Tensor | None = None
        if dtype.itemsize == 1:
            self.scales = torch.zeros(spec.layers, 2, blocks, spec.kv_heads, block_size)

    @property
    def nbytes(self) -> int:
        """Of all blocks, with their scales."""
        return self.data.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def copy_blocks(self, pairs: Ints) -> None:
        """Copy whole blocks (source, destination) in every layer; all sources are read before anything is written."""
        blocks = self.data.view(*self.data.shape[:2], -1, self.block_size, *self.data.shape[3:])
        source, destination = (_there(column.astype(np.int64), self) for column in pairs.T)
        blocks.index_copy_(2, destination, blocks.index_select(2, source))


@dataclass(frozen=True, slots=True)
class Group:
    """Rows attended in one call: `tokens` [rows * queries] index the flat batch, `slots` [rows * longest] the pool; `mask`
    [rows, 1, queries, longest] is added to the scores, None where every query sees every slot."""

    tokens: Tensor
    slots: Tensor
    mask: Tensor | None
    rows: int
    queries: int


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step: where each token's keys and values go, and, by the window of a layer, which tokens attend to which."""

    written: Tensor
    groups: Mapping[int | None, tuple[Group, ...]]


def attention_batch(plan: StepPlan, kv: KvCache, spec: ModelSpec, *, alone: bool = False) -> AttentionBatch:
    """Index tensors for `plan`, shared by all layers. `alone`: no row is padded to another's length, so its sums are its own."""
    row_index = np.repeat(np.arange(plan.rows.size), np.diff(plan.starts))
    written = _slots(plan.block_tables[row_index], plan.positions[:, None], kv.block_size)[:, 0]
    groups = {window: _groups(plan, kv, window, alone=alone) for window in set(spec.windows)}
    return AttentionBatch(_there(written, kv), groups)


def attend(qkv: tuple[Tensor, Tensor, Tensor], batch: AttentionBatch, layer: Tensor, window: int | None) -> Tensor:
    """Write the step's keys and values into `layer` [2, slots, kv_heads, head_dim], then attend; [tokens, heads, head_dim]."""
    query, key, value = qkv
    layer[0].index_copy_(0, batch.written, key)
    layer[1].index_copy_(0, batch.written, value)
    out = torch.empty_like(query)
    for group in batch.groups[window]:
        out.index_copy_(0, group.tokens, _attend_group(query.index_select(0, group.tokens), group, layer))
    return out


def _attend_group(query: Tensor, group: Group, layer: Tensor) -> Tensor:
    kv_heads, dim = layer.shape[-2:]
    keys, values = (part.index_select(0, group.slots).view(group.rows, -1, kv_heads, dim).transpose(1, 2) for part in layer)
    if group.queries > 1:
        # Packing would need the mask once per head of a group; with many queries to a head it is no faster either.
        asking = query.view(group.rows, group.queries, -1, dim).transpose(1, 2)
        out = functional.scaled_dot_product_attention(asking, keys, values, attn_mask=group.mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(query.shape)
    packed = query.view(group.rows, kv_heads, -1, dim)
    return functional.scaled_dot_product_attention(packed, keys, values, attn_mask=group.mask).view(query.shape)


def _groups(plan: StepPlan, kv: KvCache, window: int | None, *, alone: bool) -> tuple[Group, ...]:
    """Rows that decode by how much they look back on, each row that feeds more than one token by itself."""
    first = plan.positions[plan.starts[:-1]]
    begins = np.zeros_like(first) if window is None else np.maximum(first - window + 1, 0)
    counts = np.diff(plan.starts)
    singles = np.arange(counts.size) if alone else np.flatnonzero(counts > 1)
    members = ([] if alone else _decode_groups(counts, plan.lengths - begins)) + [np.asarray([i]) for i in singles]
    return tuple(_group(plan, rows, begins[rows], window, kv) for rows in members)


def _decode_groups(counts: Ints, spans: Ints) -> list[NDArray[np.intp]]:
    """Rows that feed one token, by the power of two of the slots they look back on."""
    buckets = np.maximum(np.frexp(spans)[1], _SHORTEST_BUCKET)
    decodes = counts == 1
    return [np.flatnonzero(decodes & (buckets == bucket)) for bucket in np.unique(buckets[decodes])]


def _group(plan: StepPlan, rows: NDArray[np.intp], begins: Ints, window: int | None, kv: KvCache) -> Group:
    """`begins` is the first position that any query of a row sees."""
    queries = int(plan.starts[rows[0] + 1] - plan.starts[rows[0]])
    tokens = (plan.starts[rows][:, None] + np.arange(queries)).reshape(-1)
    lengths = plan.lengths[rows]
    places = begins[:, None] + np.arange((lengths - begins).max())
    asking = plan.positions[tokens].reshape(rows.size, queries, 1)
    hidden = places[:, None] > asking
    if window is not None and queries > 1:
        hidden |= places[:, None] <= asking - window
    # Padding repeats the row's own last slot: masked, but a NaN there times weight 0 is NaN, and no row may spoil another.
    slots = _slots(plan.block_tables[rows], np.minimum(places, lengths[:, None] - 1), kv.block_size)
    return Group(
        _there(tokens, kv),
        _there(slots.reshape(-1), kv),
        _mask(_there(hidden, kv), kv.data.dtype) if hidden.any() else None,
        int(rows.size),
        queries,
    )


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]


def _there(array: NDArray[np.generic], kv: KvCache) -> Tensor:
    """`array` where the pool is."""
    return torch.from_numpy(array).to(kv.data.device)


def _slots(tables: Ints, positions: NDArray[np.integer], block_size: int) -> NDArray[np.int64]:
    """Slot of each of `positions` [rows, n] in the blocks of `tables` [rows, blocks]."""
    blocks = np.take_along_axis(tables, positions // block_size, axis=1).astype(np.int64)
    return blocks * block_size + positions % block_size
