"""How LoRA adapters lie on a GPU, and which tokens of a step have one. Host side; called by the daemon's runner.

All adapters lie in one tensor. A table says by slot where each one's matrices begin, so that a captured graph finds an adapter that was
loaded after the capture. Ranks are rounded up to RANKS with zeros, for each module alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RANKS: Final = 16
NARROW: Final = 16
WIDE: Final = 64
"""Rows of a tile: the least that a matrix instruction takes, and what suits prompts."""

MODULES: Final = 7
PARTS: Final = {"qkv": (0, 3), "output": (3, 4), "gate_up": (4, 6), "down": (6, 7)}
"""Modules of a layer, by the matrix that they are fused into."""

FIELDS: Final = 4
"""Of a module in the table: where A [rank, inputs] begins, where B [outputs, rank] begins, its rank, and the ranks of the modules fused
before it. The A of a fused matrix lie behind each other."""

Pair = tuple[Tensor, Tensor]
"""A [rank, inputs] and B [outputs, rank] of a module, the scale in B."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraPool:
    """`weights` [elements] hold all matrices, `places` int64 [slots, layers, MODULES, FIELDS] say where. `rank`: the largest one,
    rounded up."""

    weights: Tensor
    places: Tensor
    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class LoraRows:
    """A step's tokens that have an adapter: their indexes int32, sorted by adapter; `tiles` int32 [1 + 3 * n] as of `lora_tiles`, on the
    device, and the rows of one."""

    tokens: Tensor
    tiles: Tensor
    tile: int


class LoraPlace(NamedTuple):
    """A fused matrix: its layer, its first module, and the outputs of each."""

    layer: int
    first: int
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLora:
    """An adapter on the host: `weights` [elements], and `places` int64 [layers, MODULES, FIELDS] counted from its own first element."""

    weights: Tensor
    places: Tensor


def padded(rank: int) -> int:
    return -(-rank // RANKS) * RANKS


def lora_elements(rank: int, inputs: int, outputs: int) -> int:
    """Of one module in a pool."""
    return padded(rank) * (inputs + outputs)


def pack_lora(layers: Sequence[Sequence[Pair | None]], like: Tensor) -> PackedLora:
    """`layers[i]`: of each module, None where it is not changed. In the type of `like`."""
    pairs = [pair for modules in layers for pair in modules if pair is not None]
    size = sum(lora_elements(len(shrink), shrink.shape[1], len(expand)) for shrink, expand in pairs)
    weights = torch.zeros(size, dtype=like.dtype)
    places = torch.zeros(len(layers), MODULES, FIELDS, dtype=torch.int64)
    at = 0
    for layer, modules in enumerate(layers):
        for begin, end in PARTS.values():
            at = _pack_part(modules[begin:end], weights, places[layer, begin:end], at)
    return PackedLora(weights, places)


def _pack_part(modules: Sequence[Pair | None], weights: Tensor, places: Tensor, at: int) -> int:
    """Of one fused matrix, from element `at` on; where the next one begins."""
    before = 0
    places[:, 0] = at
    for index, pair in enumerate(modules):
        rank = 0 if pair is None else padded(len(pair[0]))
        places[index, 2], places[index, 3] = rank, before
        if pair is not None:
            weights[at : at + pair[0].numel()] = pair[0].flatten()
            at += rank * pair[0].shape[1]
        before += rank
    for index, pair in enumerate(modules):
        places[index, 1] = at
        if pair is not None:
            rank = padded(len(pair[0]))
            wide = pair[1].new_zeros(len(pair[1]), rank)
            wide[:, : pair[1].shape[1]] = pair[1]
            weights[at : at + wide.numel()] = wide.flatten()
            at += wide.numel()
    return at


def lora_tile(slots: NDArray[np.int32]) -> int:
    """Rows of a tile that suit tokens whose adapters are in `slots`, 0 for none."""
    chosen = slots[slots != 0]
    return WIDE if chosen.size > NARROW * np.unique(chosen).size else NARROW


def lora_tiles(slots: NDArray[np.int32], tile: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`slots[i]` is that of token i's adapter, 0 for none: the indexes of the tokens that have one, sorted by it, and the work list [tiles,
    then of each tile: slot, begin, end in those indexes]. All of a tile have one adapter."""
    chosen = np.flatnonzero(slots)
    order = chosen[np.argsort(slots[chosen], kind="stable")]
    found, begins, counts = np.unique(slots[order], return_index=True, return_counts=True)
    pieces = -(-counts // tile)
    adapter = np.repeat(np.arange(found.size), pieces)
    number = np.arange(adapter.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = begins[adapter] + number * tile
    listed = np.stack((found[adapter], first, np.minimum(first + tile, (begins + counts)[adapter])), axis=1)
    return order.astype(np.int32), np.concatenate(([adapter.size], listed.ravel())).astype(np.int32)
