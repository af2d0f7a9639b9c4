"""LoRA adapters in the order in which the CPU's native ops read them (src/low_rank.h). Called by the daemon's loader of adapters.

Of each module of a layer: A [rank, inputs] as [rank / 16][inputs / 2][16][2], and B [outputs, rank] with the scale in it as
[outputs / 16][rank / 2][16][2], the rank rounded up to 16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagoda_kernels.cpu import abi
from pagoda_kernels.cpu.pack import Arena

RANKS = 16
MODULES = ("q", "k", "v", "o", "gate", "up", "down")
"""Of a layer, in the order of `PackedAdapter.modules`."""

_ITEM = 2  # bytes of a bf16

Pair = tuple[Tensor, Tensor]
"""A [rank, inputs] and B [outputs, rank] of a module."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedAdapter:
    """`modules` is what the library reads, layer by layer; `kept` owns the memory behind it."""

    modules: ctypes.Array[abi.LowRank]
    kept: Sequence[Tensor]


def low_rank_bytes(rank: int, inputs: int, outputs: int) -> int:
    """Arena bytes of one module."""
    return _padded(rank) * (inputs + outputs) * _ITEM


def pack_low_rank(pairs: Sequence[Pair | None]) -> PackedAdapter:
    """`pairs` of every module of every layer, None where it is not changed. ValueError where its sizes do not fill vectors."""
    arena = Arena(sum(low_rank_bytes(len(shrink), shrink.shape[1], len(expand)) for shrink, expand in filter(None, pairs)))
    kept: list[Tensor] = []
    packed = (abi.LowRank * len(pairs))()
    for first in range(0, len(pairs), len(MODULES)):
        for begin, end in ((0, 3), (3, 4), (4, 6), (6, 7)):  # what is read together lies together: all A of a fused matrix, then all B
            members = [(at, pair) for at in range(first + begin, first + end) if (pair := pairs[at]) is not None]
            shrinks = [_place(arena, _rows_padded(shrink)) for _, (shrink, _) in members]
            expands = [_place(arena, _columns_padded(expand)) for _, (_, expand) in members]
            before = 0
            for (at, _), shrink, expand in zip(members, shrinks, expands, strict=True):
                packed[at] = abi.LowRank(shrink.data_ptr(), expand.data_ptr(), rank := shrink.shape[0] * RANKS, before)
                before += rank
            kept += shrinks + expands
    return PackedAdapter(packed, kept)


def _place(arena: Arena, matrix: Tensor) -> Tensor:
    """[rows / 16][columns / 2][16][2]"""
    rows, columns = matrix.shape
    if rows % RANKS or columns % RANKS:
        raise ValueError(f"inputs and outputs of a module must be multiples of {RANKS}, got {rows} and {columns}")
    place = arena.take((rows // RANKS, columns // 2, RANKS, 2), torch.bfloat16)
    place.copy_(matrix.reshape(rows // RANKS, RANKS, columns // 2, 2).transpose(1, 2))
    return place


def _padded(rank: int) -> int:
    return -(-rank // RANKS) * RANKS


def _rows_padded(matrix: Tensor) -> Tensor:
    wide = matrix.new_zeros(_padded(matrix.shape[0]), matrix.shape[1])
    wide[: matrix.shape[0]] = matrix
    return wide


def _columns_padded(matrix: Tensor) -> Tensor:
    wide = matrix.new_zeros(matrix.shape[0], _padded(matrix.shape[1]))
    wide[:, : matrix.shape[1]] = matrix
    return wide
