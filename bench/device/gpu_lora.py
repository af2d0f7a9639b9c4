"""The trials of lora: what adapters add to all projections of an 8B layer, beside torch and beside the layer's own matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gpu_device import Machine
from gpu_numbers import Cost, buffer_sets
from gpu_trial import OURS, Errors, Side, Trial, against
from pagoda_kernels.gpu.lora_pool import PARTS, LoraPlace, LoraPool, LoraRows, lora_tile, lora_tiles, pack_lora
from torch import Tensor

_BF16 = 2  # bytes
_SIZES = {"qkv": (4096, (4096, 1024, 1024)), "output": (4096, (4096,)), "gate_up": (4096, (14336, 14336)), "down": (14336, (4096,))}
_TINY = {"qkv": (64, (64, 32, 32)), "output": (64, (64,)), "gate_up": (64, (96, 96)), "down": (96, (64,))}
_CHOSEN = "own choice"  # of the kernels, beside another config of them
_GEMMS = "the layer's GEMMs"  # no rival: what adapters are to be small beside


@dataclass(frozen=True, slots=True)
class Step:
    """`tokens` whose adapters take turns, each of `rank`; `most`: the largest rank of the pool."""

    tokens: int
    adapters: int
    rank: int = 16
    most: int = 64

    @property
    def name(self) -> str:
        return f"layer-{self.tokens}x{self.adapters}-r{self.rank}" + (f"-of-{self.most}" if self.most != 64 else "")


STEPS = {
    "large": (Step(64, 32), Step(64, 32, most=16), Step(2048, 1)),
    "knee": (Step(64, 8), Step(256, 32), Step(64, 32, rank=64), Step(2048, 8)),
    "small": (Step(1, 1), Step(64, 1), Step(200, 1)),
}


def trial(op: ModuleType, step: Step, machine: Machine, limit: float, config: Any = None) -> Trial:
    """Bytes: of the adapters, of what is multiplied, and twice of what is added to."""
    layer = _Layer.of(step, machine)
    sides: dict[str, Callable[[], Side]] = {OURS: lambda: layer.side(partial(layer.ours, op, config))}
    if config is not None:
        sides[_CHOSEN] = lambda: layer.side(partial(layer.ours, op, None))
    sides |= {
        "torch": lambda: layer.side(layer.by_adapter),
        "grouped_mm": lambda: layer.side(layer.grouped),
        _GEMMS: lambda: replace(layer.side(layer.gemms), judge=lambda _: Errors(0.0, 0.0)),
    }
    return Trial(layer.cost(), layer.resident, sides, layer.restore, against(layer.reference), limit)


Matrices = dict[str, tuple[Tensor, list[Tensor]]]
"""By part, of all adapters: A [adapters, ranks, inputs], and of each module B [adapters, outputs, rank]."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Inputs and outputs by part. The pool has as many layers as there are sets of buffers. `base`: the layer's own matrices."""

    step: Step
    sizes: dict[str, tuple[int, tuple[int, ...]]]
    hidden: dict[str, Tensor]
    out: dict[str, Tensor]
    before: dict[str, Tensor]
    base: list[dict[str, Tensor]]
    pool: LoraPool
    rows: LoraRows
    ends: Tensor
    matrices: list[Matrices]
    resident: bool

    @classmethod
    def of(cls, step: Step, machine: Machine) -> _Layer:
        sizes = _TINY if machine.dry else _SIZES
        step = Step(min(step.tokens, 5), min(step.adapters, 2), most=16) if machine.dry else step
        each = sum(step.rank * (inputs * len(outputs) + sum(outputs)) for inputs, outputs in sizes.values())
        sets = buffer_sets(each * step.adapters * _BF16, machine.l2, machine.room)
        shapes = [(torch.zeros(step.rank, inputs), torch.zeros(size, step.rank)) for inputs, outputs in sizes.values() for size in outputs]
        places = pack_lora([shapes] * sets.number, torch.empty(0)).places
        table = places.repeat(step.adapters + 1, 1, 1, 1)  # slot 0 is none
        table[..., :2] += (torch.arange(-1, step.adapters) * each * sets.number).view(-1, 1, 1, 1)
        pool = LoraPool(machine.randn(each * sets.number * step.adapters).mul_(0.05), table.to(machine.device), step.most)
        slots = (np.arange(step.tokens) % step.adapters + 1).astype(np.int32)
        tile = lora_tile(slots)
        order, tiles = lora_tiles(slots, tile)
        ends = np.cumsum(np.bincount(slots)[1:]).astype(np.int32)
        order, tiles, ends = (torch.from_numpy(one).to(machine.device) for one in (order, tiles, ends))
        out = {part: machine.randn(step.tokens, sum(outputs)) for part, (_, outputs) in sizes.items()}
        layers = buffer_sets(sum(inputs * sum(outputs) for inputs, outputs in sizes.values()) * _BF16, machine.l2, machine.room).number
        return cls(
            step=step,
            sizes=sizes,
            hidden={part: machine.randn(step.tokens, inputs) for part, (inputs, _) in sizes.items()},
            out=out,
            before={part: one.clone() for part, one in out.items()},
            base=[{part: machine.randn(sum(outputs), inputs) for part, (inputs, outputs) in sizes.items()} for _ in range(layers)],
            pool=pool,
            rows=LoraRows(order, tiles, tile),
            ends=ends,
            matrices=[_matrices(pool.weights, step, sizes, of_set) for of_set in places.tolist()],
            resident=sets.resident,
        )

    def cost(self) -> Cost:
        numbers, products = 0, 0
        for inputs, outputs in self.sizes.values():
            of_one = self.step.rank * (inputs * len(outputs) + sum(outputs))
            numbers += self.step.adapters * of_one + self.step.tokens * (inputs + 2 * sum(outputs))
            products += self.step.tokens * of_one
        return Cost(numbers * _BF16, 2 * products, launches=2 * len(self.sizes))

    def side(self, call: Callable[[int], Any]) -> Side:
        return Side([partial(call, index) for index in range(len(self.matrices))], lambda _: torch.cat(list(self.out.values()), dim=1))

    def restore(self) -> None:
        for part, one in self.out.items():
            one.copy_(self.before[part])

    def ours(self, op: ModuleType, config: Any, index: int) -> None:
        for part, (_, outputs) in self.sizes.items():
            place = LoraPlace(index, PARTS[part][0], outputs)
            op.lora_add(self.out[part], self.hidden[part], self.rows, self.pool, place, config=config)

    def by_adapter(self, index: int) -> None:
        """As the daemon's torch decoder: one adapter after another."""
        for part, (shrink, expand) in self.matrices[index].items():
            for slot in range(self.step.adapters):
                mine = slice(slot, None, self.step.adapters)
                self.out[part][mine] += _made(self.hidden[part][mine], shrink[slot], [one[slot] for one in expand])

    def grouped(self, index: int) -> None:
        """Grouped products of rows sorted by adapter: one for A, one for each module's B."""
        tokens = self.rows.tokens.long()
        for part, (shrink, expand) in self.matrices[index].items():
            low = torch._grouped_mm(self.hidden[part][tokens], shrink.transpose(1, 2), offs=self.ends)  # noqa: SLF001 - its only name in 2.11
            pieces = zip(low.split(self.step.rank, dim=1), expand, strict=True)
            made = [torch._grouped_mm(one.contiguous(), matrix.transpose(1, 2), offs=self.ends) for one, matrix in pieces]  # noqa: SLF001
            self.out[part].index_add_(0, tokens, torch.cat(made, dim=1))

    def gemms(self, index: int) -> None:
        for part, matrix in self.base[index % len(self.base)].items():
            torch.mm(self.hidden[part], matrix.T)

    def reference(self) -> Tensor:
        """Of the first set."""
        found = []
        for part, (shrink, expand) in self.matrices[0].items():
            total = self.before[part].double()
            for slot in range(self.step.adapters):
                mine = slice(slot, None, self.step.adapters)
                total[mine] += _made(self.hidden[part][mine].double(), shrink[slot].double(), [one[slot].double() for one in expand])
            found.append(total)
        return torch.cat(found, dim=1)


def _made(hidden: Tensor, shrink: Tensor, expand: list[Tensor]) -> Tensor:
    """By one adapter."""
    low = (hidden @ shrink.T).split(len(shrink) // len(expand), dim=1)
    return torch.cat([one @ matrix.T for one, matrix in zip(low, expand, strict=True)], dim=1)


def _matrices(weights: Tensor, step: Step, sizes: dict[str, tuple[int, tuple[int, ...]]], places: list[list[int]]) -> Matrices:
    """`places`: of the first adapter's modules in a set."""
    apart, count, found = weights.numel() // step.adapters, step.adapters, {}
    for part, (inputs, outputs) in sizes.items():
        mine = places[slice(*PARTS[part])]
        shrink = weights.as_strided((count, step.rank * len(outputs), inputs), (apart, inputs, 1), mine[0][0])
        expand = [
            weights.as_strided((count, size, step.rank), (apart, step.rank, 1), place[1]) for place, size in zip(mine, outputs, strict=True)
        ]
        found[part] = shrink, expand
    return found
