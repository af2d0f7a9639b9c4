"""The trials of linear_w4a16 at the matrices of an 8B model, beside torch's products in bf16 and with 4 bits. Called by gpu_kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from gpu_device import Machine
from gpu_numbers import Cost, buffer_sets
from gpu_trial import OURS, Side, Trial, against, spoil
from torch import Tensor
from torch.nn import functional

_BF16 = 2  # bytes
_INNER = 8  # _weight_int4pack_mm: tiles of 16 inputs that lie together


@dataclass(frozen=True, slots=True)
class Product:
    """`rows` times [outputs, inputs]."""

    rows: int
    outputs: int
    inputs: int

    @property
    def label(self) -> str:
        return f"rows-{self.rows}-{self.inputs}x{self.outputs}"


def sizes() -> list[tuple[str, Product]]:
    """Queries, keys and values; gate and up; down."""
    names = {16: "large", 1: "knee", 64: "knee", 256: "small"}
    shapes = (28672, 4096), (4096, 14336), (6144, 4096)
    return [(name, Product(rows, *shape)) for rows, name in names.items() for shape in shapes]


def linear(op: ModuleType, product: Product, machine: Machine, limit: float, config: Any) -> Trial:
    """4 bits and scales read once, rows read and written."""
    from pagoda_kernels.gpu.matrices.dequantise_w4 import dequantise_w4
    from pagoda_kernels.gpu.matrices.w4_weights import quantised_w4

    product = Product(min(product.rows, 3), 128, 256) if machine.dry else product
    x = machine.randn(product.rows, product.inputs)
    first = machine.randn(product.outputs, product.inputs)
    packed = quantised_w4(first)
    size = packed.nbytes + product.rows * (product.inputs + product.outputs) * _BF16
    sets = buffer_sets(size, machine.l2, machine.room)
    weights = [packed, *(quantised_w4(machine.randn(*first.shape)) for _ in range(sets.number - 1))]
    out = [x.new_empty(product.rows, product.outputs) for _ in weights]
    dense = dequantise_w4(packed, x.dtype)
    scratch = op.W4Scratch.of(product.outputs, machine.device, () if config is None else (config,))

    def in_bf16() -> Side:
        dense_sets = buffer_sets(dense.nbytes, machine.l2, machine.room)
        return Side([partial(functional.linear, x, dense if index == 0 else dense.clone()) for index in range(dense_sets.number)])

    def in_int4() -> Side:
        return Side([partial(torch._weight_int4pack_mm, x, *theirs, 128) for theirs in map(_tinygemm, weights)])  # noqa: SLF001

    ours = [partial(op.linear_w4a16, x, one, scratch, out=y, config=config) for one, y in zip(weights, out, strict=True)]
    sides: dict[str, Callable[[], Side]] = {OURS: lambda: Side(ours), "torch bf16": in_bf16, "torch int4": in_int4}
    flops = 2 * product.rows * product.outputs * product.inputs
    return Trial(Cost(size, flops), sets.resident, sides, partial(spoil, out[0]), against(lambda: x.double() @ dense.double().T), limit)


def _tinygemm(weights: Any) -> tuple[Tensor, Tensor]:
    """The same numbers as _weight_int4pack_mm reads them: levels two in a byte, scales and zeros [groups, outputs, 2]."""
    levels = _levels(weights)
    bytes_of_two = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack(bytes_of_two, _INNER)  # noqa: SLF001
    scales = weights.scales.transpose(1, 2).flatten(0, 1)[: weights.outputs].T
    return packed, torch.stack((scales, torch.zeros_like(scales)), dim=-1).contiguous()


def _levels(weights: Any) -> Tensor:
    """[outputs, inputs] uint8, as w4_weights describes its words."""
    place = torch.arange(8, device=weights.packed.device)
    nibbles = weights.packed.unsqueeze(-1) >> (16 * (place // 4) + 4 * (place % 4)) & 15
    slabs, groups = weights.packed.shape[:2]
    spread = nibbles.to(torch.uint8).view(slabs, groups, 2, 4, 8, 4, 4, 2, 2, 2)
    return spread.permute(0, 3, 9, 4, 1, 2, 6, 8, 5, 7).reshape(slabs * 64, groups * 128)[: weights.outputs, : weights.inputs]
