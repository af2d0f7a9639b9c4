"""The trials of 8-bit linear maps and of what makes rows 8-bit, at the matrices of an 8B model. Called by gpu_kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from gpu_device import Machine
from gpu_numbers import Cost, buffer_sets
from gpu_trial import OURS, Side, Trial, against
from torch import Tensor
from torch.nn import functional

KINDS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_LARGEST = {"fp8": 448.0, "int8": 127.0}
_LEVELS_LIMIT = 0.06  # of levels beside what they were: fp8 has 3 bits
_MATRICES = ((6144, 4096), (28672, 4096), (4096, 14336))  # outputs, inputs: qkv, gate and up, down
_ROWS = {2048: "large", 1: "large", 16: "large", 64: "knee", 256: "knee", 8: "small"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` times a matrix; `kind`: of its levels."""

    rows: int
    outputs: int
    inputs: int
    kind: str = "fp8"

    @property
    def label(self) -> str:
        return f"rows-{self.rows}-{self.inputs}x{self.outputs}"

    def own_config(self, op: ModuleType) -> Any:
        """What the op chooses on an H200; above 64 rows of fp8 it calls torch instead, and this is the kernel that it has."""
        return op.choose_config(self.rows, self.outputs, self.inputs, KINDS[self.kind])


def sizes() -> list[tuple[str, Matrix]]:
    return [(size, Matrix(rows, *matrix)) for rows, size in _ROWS.items() for matrix in _MATRICES]


def quantised_sizes() -> list[tuple[str, Matrix]]:
    return [(size, Matrix(rows, 0, width)) for rows, size in ((2048, "large"), (64, "small")) for width in (4096, 14336)]


def linear(op: ModuleType, shape: Matrix, machine: Machine, limit: float, config: Any = None) -> Trial:
    """Weights read, rows read, the product written. `bf16` is cuBLAS on the matrix that is not quantised: twice the bytes."""
    if machine.dry:
        shape = Matrix(min(shape.rows, 3), 48, 256, shape.kind)
    bytes_ = shape.outputs * shape.inputs + shape.rows * (shape.inputs + 2 * shape.outputs) + 4 * (shape.rows + shape.outputs)
    sets = buffer_sets(bytes_, machine.l2, machine.room // 4)  # the baseline in bf16 has twice as much, beside this
    rows = [_scaled(op, shape.rows, shape.inputs, shape.kind, machine) for _ in range(sets.number)]
    weights = [_scaled(op, shape.outputs, shape.inputs, shape.kind, machine) for _ in range(sets.number)]
    pairs = list(zip(rows, weights, strict=True))

    def ours() -> Side:
        return Side([partial(op.linear_w8a8, x, weight, config=config) for x, weight in pairs])

    def bf16() -> Side:
        wide = [tuple(_wide(one).to(torch.bfloat16) for one in pair) for pair in pairs]
        return Side([partial(functional.linear, *pair) for pair in wide])

    sides: dict[str, Callable[[], Side]] = {OURS: ours}
    if shape.kind == "fp8":
        for name, fast in (("torch", False), ("torch fast_accum", True)):
            sides[name] = lambda fast=fast: Side([partial(_scaled_mm, *pair, fast) for pair in pairs])
    else:
        sides["torch"] = lambda: Side([partial(_int_mm, *pair) for pair in pairs])
        sides["torch _int_mm alone"] = lambda: Side(
            [partial(torch._int_mm, x.levels, weight.levels.t()) for x, weight in pairs],  # noqa: SLF001
            lambda found: found.double() * rows[0].scales[:, None] * weights[0].scales,
        )
    if config is not None:
        sides["own choice"] = lambda: Side([partial(op.linear_w8a8, *pair) for pair in pairs])
    sides["bf16"] = bf16
    flops = 2 * shape.rows * shape.outputs * shape.inputs
    judge = against(lambda: _wide(rows[0]) @ _wide(weights[0]).T)
    return Trial(Cost(bytes_, flops, narrow=2), sets.resident, sides, lambda: None, judge, limit)


def quantise(op: ModuleType, shape: Matrix, machine: Machine, _limit: float, _config: Any = None) -> Trial:
    """bf16 rows read, a byte of each number written. `torch` is as many kernels as its ops."""
    if machine.dry:
        shape = Matrix(3, 0, 96)
    bytes_ = 3 * shape.rows * shape.inputs
    sets = buffer_sets(bytes_, machine.l2, machine.room)
    inputs = [machine.randn(shape.rows, shape.inputs) for _ in range(sets.number)]

    def torch_call(x: Tensor) -> tuple[Tensor, Tensor]:
        scales = x.abs().amax(-1, keepdim=True).float() / 448
        return (x / scales).to(torch.float8_e4m3fn), scales[:, 0]

    sides: dict[str, Callable[[], Side]] = {
        OURS: lambda: Side([partial(op.quantise_rows, x, torch.float8_e4m3fn) for x in inputs], _wide),
        "torch": lambda: Side([partial(torch_call, x) for x in inputs], lambda found: found[0].double() * found[1].double()[:, None]),
    }
    return Trial(Cost(bytes_), sets.resident, sides, lambda: None, against(inputs[0].double), _LEVELS_LIMIT)


def _scaled(op: ModuleType, rows: int, width: int, kind: str, machine: Machine) -> Any:
    """Random levels as those of normal numbers lie: the largest of a row is about four times their deviation."""
    levels = (machine.randn(rows, width) * (_LARGEST[kind] / 4)).clamp(-_LARGEST[kind], _LARGEST[kind])
    scales = 0.01 + torch.rand(rows, device=machine.device) / 100
    return op.ScaledRows((levels.round() if kind == "int8" else levels).to(KINDS[kind]), scales)


def _wide(rows: Any) -> Tensor:
    wide: Tensor = rows.levels.double() * rows.scales.double()[:, None]
    return wide


def _scaled_mm(x: Any, weight: Any, fast: bool) -> Tensor:
    return torch._scaled_mm(  # noqa: SLF001
        x.levels,
        weight.levels.t(),
        scale_a=x.scales[:, None],
        scale_b=weight.scales[None, :],
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def _int_mm(x: Any, weight: Any) -> Tensor:
    """With what it leaves to other kernels: the scales."""
    return (torch._int_mm(x.levels, weight.levels.t()) * x.scales[:, None] * weight.scales).to(torch.bfloat16)  # noqa: SLF001
