"""AdapterPool: LoRA adapters on the device, in slots whose addresses never change, so that a captured graph finds the ones loaded later.
Made by `gpu.load`, changed by the engine between two steps, read by `gpu.forward`.
"""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Final

import torch
from pagoda_kernels.gpu.lora import lora_add, lora_config
from pagoda_kernels.gpu.lora_pool import FIELDS, MODULES, NARROW, PARTS, WIDE, LoraPlace, LoraPool, LoraRows, padded
from torch import Tensor

from pagoda_daemon.lora.modules import Module, modules_of, parts_of, pooled_adapter_elements
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Part
from pagoda_daemon.model.packed_lowrank import PooledAdapter

SPARE: Final = 2
"""Places beside those of names, for old versions of adapters that requests still have."""

_REFUSED: Final = 64
"""Slots beside those that have a place, of loads that wait to be refused: 0.5 MB of a table at 32 layers."""

Parts = dict[Part, tuple[int, tuple[int, ...]]]
"""Inputs of each fused matrix, and the outputs of each of its modules."""


def pool_bytes(spec: ModelSpec, places: int, rank: int, tokens: int, item: int) -> int:
    """Of a pool of `places` and SPARE for adapters of `rank`, its table, and what steps of `tokens` leave between the two products."""
    places += SPARE
    table = (1 + places + _REFUSED) * spec.layers * MODULES * FIELDS * torch.int64.itemsize
    narrow = min(tokens, NARROW * places)  # beyond it, tiles are wide
    rows = max(lora_config(WIDE, item).splits * tokens, lora_config(NARROW, item).splits * narrow)
    between = rows * 3 * padded(rank) * torch.float32.itemsize
    return places * pooled_adapter_elements(spec, rank) * item + table + between


class AdapterPool(UserDict[int, int]):
    """The place of each slot, from 0; slots count from 1. No memory is taken after it is made."""

    def __init__(self, spec: ModelSpec, places: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self._each = pooled_adapter_elements(spec, rank)
        self._places = range(places + SPARE)
        slots = 1 + len(self._places) + _REFUSED
        table = torch.zeros(slots, spec.layers, MODULES, FIELDS, dtype=torch.int64, device=like.device)
        self.pool = LoraPool(like.new_empty(len(self._places) * self._each), table, padded(rank))
        self._parts: Parts = {part: (of[0].inputs, tuple(one.outputs for one in of)) for (_, part), of in _fused(spec).items()}

    @torch.inference_mode()
    def __setitem__(self, slot: int, adapter: PooledAdapter) -> None:  # type: ignore[override]
        """Copies it; the host's may be dropped then. MemoryError where no place is free: what is held stays as it is."""
        packed, pool = adapter.packed, self.pool
        self.pop(slot, None)
        place = min(set(self._places) - set(self.values()), default=None)
        if place is None:
            raise MemoryError(f"all {len(self._places)} places for adapters are taken, by names and by old versions whose requests run")
        begin = place * self._each
        row = packed.places.clone()
        row[..., :2] += begin
        pool.places[slot].copy_(row)
        pool.weights[begin:][: packed.weights.numel()].copy_(packed.weights)
        super().__setitem__(slot, place)

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
