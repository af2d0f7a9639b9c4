"""AdapterPool: LoRA adapters on the device, in slots whose addresses never change, so that a captured graph finds the ones loaded later.
Made by `gpu.load`, changed by the engine between two steps, read by `gpu.forward`.
"""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Final

import torch
from pagoda_kernels.gpu.lora import lora_add
from pagoda_kernels.gpu.lora_pool import FIELDS, MODULES, NARROW, PARTS, WIDE, LoraPlace, LoraPool, LoraRows, padded
from torch import Tensor

from pagoda_daemon.lora.modules import Module, modules_of, parts_of, pooled_adapter_elements
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Part
from pagoda_daemon.model.packed_lowrank import PooledAdapter

_VERSIONS: Final = 1024
"""Old versions of adapters that requests may still have, beside those that fill all places: 7 MB of a table at 32 layers."""

Parts = dict[Part, tuple[int, tuple[int, ...]]]
"""Inputs of each fused matrix, and the outputs of each of its modules."""


def pool_bytes(spec: ModelSpec, places: int, rank: int, tokens: int, item: int) -> int:
    """Of a pool of `places` for adapters of `rank`, its table, and what steps of `tokens` leave between the two products."""
    table = (1 + places + _VERSIONS) * spec.layers * MODULES * FIELDS * torch.int64.itemsize
    between = 4 * tokens * 3 * padded(rank) * torch.float32.itemsize
    return places * pooled_adapter_elements(spec, rank) * item + table + between


class AdapterPool(UserDict[int, Tensor | None]):
    """By slot, from 1. An adapter beyond the first `places` (an old version, whose requests are still running) has memory of its own."""

    def __init__(self, spec: ModelSpec, places: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self._each = pooled_adapter_elements(spec, rank)
        self._places = places
        table = torch.zeros(1 + places + _VERSIONS, spec.layers, MODULES, FIELDS, dtype=torch.int64, device=like.device)
        self.pool = LoraPool(like.new_empty(places * self._each), table, padded(rank))
        self._parts: Parts = {part: (of[0].inputs, tuple(one.outputs for one in of)) for (_, part), of in _fused(spec).items()}

    @torch.inference_mode()
    def __setitem__(self, slot: int, adapter: PooledAdapter) -> None:  # type: ignore[override]
        """Behind the steps launched so far, without waiting for them."""
        packed, pool = adapter.packed, self.pool
        own = None if slot <= self._places else pool.weights.new_empty(packed.weights.numel())
        begin = (slot - 1) * self._each
        if own is not None:
            begin = (own.data_ptr() - pool.weights.data_ptr()) // own.element_size()
        (pool.weights[begin:] if own is None else own)[: packed.weights.numel()].copy_(packed.weights, non_blocking=True)
        row = torch.empty(packed.places.shape, dtype=torch.int64, pin_memory=pool.places.device.type == "cuda").copy_(packed.places)
        row[..., :2] += begin
        pool.places[slot].copy_(row, non_blocking=True)
        super().__setitem__(slot, own)

    def changes(self, tokens: Tensor, tiles: Tensor, tile: int) -> StepChanges:
        """Of the tokens of a step that have an adapter."""
        return StepChanges(self.pool, LoraRows(tokens, tiles, tile), self._parts)

    def warm(self) -> None:
        """Compile what steps launch, for rows that decode and for prompts."""
        none, like = torch.zeros(4, dtype=torch.int32, device=self.pool.places.device), self.pool.weights
        for tile in (NARROW, WIDE):
            for part, (inputs, outputs) in self._parts.items():
                self.changes(none[:1], none, tile).add(like.new_zeros(1, sum(outputs)), like.new_zeros(1, inputs), 0, part)


@dataclass(frozen=True, slots=True)
class StepChanges:
    """As `model.fused.Changes`."""

    pool: LoraPool
    rows: LoraRows
    parts: Parts

    def add(self, out: Tensor, hidden: Tensor, layer: int, part: Part) -> None:
        lora_add(out, hidden, self.rows, self.pool, LoraPlace(layer, PARTS[part][0], self.parts[part][1]))


def _fused(spec: ModelSpec) -> dict[tuple[int, Part], list[Module]]:
    return parts_of(modules_of(spec).values())
