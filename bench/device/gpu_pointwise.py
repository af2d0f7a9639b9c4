"""The trials of rms_norm, add_rms_norm, silu_mul and rope_kv_write, at the widths of an 8B model. Called by gpu_kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import gpu_peers
import torch
from gpu_device import Machine
from gpu_numbers import Cost, buffer_sets
from gpu_trial import OURS, Side, Trial, against, spoil
from torch import Tensor
from torch.nn import functional

_EPS = 1e-6
_BF16 = 2  # bytes
_TOKENS = {"large": 16384, "knee": 2048, "small": 64}
_WIDTH, _MLP = 4096, 14336
_PAGE = 64
_NARROW_LIMIT = 3e-2
_NARROW = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_HEADS, _KV_HEADS, _HEAD_DIM, _POSITIONS = 32, 8, 128, 16384


@dataclass(frozen=True, slots=True)
class Rows:
    """`norms`: of the heads of queries and keys; `kept`: how the cache holds them, where not in bf16. Asked by rope_kv_write alone."""

    tokens: int
    width: int
    norms: bool = False
    kept: str = ""


def sizes(width: int = _WIDTH) -> list[tuple[str, Rows]]:
    return [(name, Rows(tokens, width)) for name, tokens in _TOKENS.items()]


def mlp_sizes() -> list[tuple[str, Rows]]:
    """An 8B model's gate and up are 3.5 times as wide as its hidden state."""
    return [(name, Rows(min(tokens, 8192), _MLP)) for name, tokens in _TOKENS.items()]


def rope_sizes() -> list[tuple[str, Rows]]:
    narrow = [(name, Rows(tokens, _WIDTH, kept="fp8")) for name, tokens in _TOKENS.items()]
    return [*sizes(), ("knee", Rows(_TOKENS["knee"], _WIDTH, norms=True)), *narrow, ("knee", Rows(_TOKENS["knee"], _WIDTH, kept="int8"))]


def _shape(rows: Rows, machine: Machine) -> Rows:
    return replace(rows, tokens=min(rows.tokens, 5), width=min(rows.width, 96)) if machine.dry else rows


def rms_norm(op: ModuleType, rows: Rows, machine: Machine, limit: float) -> Trial:
    """Each row read and written."""
    shape = _shape(rows, machine)
    size = shape.tokens * shape.width * _BF16
    sets = buffer_sets(2 * size, machine.l2, machine.room)
    hidden = [machine.randn(shape.tokens, shape.width) for _ in range(sets.number)]
    out, weight = [torch.empty_like(one) for one in hidden], machine.randn(shape.width)
    sides: dict[str, Callable[[], Side]] = {
        OURS: lambda: Side([partial(op.rms_norm, x, weight, _EPS, out=y) for x, y in zip(hidden, out, strict=True)]),
        "torch": lambda: Side([partial(functional.rms_norm, x, (shape.width,), weight, _EPS) for x in hidden]),
        **gpu_peers.rms_norm(machine.peers, hidden, weight, _EPS),
    }
    reference = partial(_normed, hidden[0], weight)
    return Trial(Cost(2 * size), sets.resident, sides, partial(spoil, out[0]), against(reference), limit)


def add_rms_norm(op: ModuleType, rows: Rows, machine: Machine, limit: float) -> Trial:
    """Two inputs read, the sum and its norm written."""
    shape = _shape(rows, machine)
    size = shape.tokens * shape.width * _BF16
    sets = buffer_sets(4 * size, machine.l2, machine.room)
    hidden, residual = ([machine.randn(shape.tokens, shape.width) for _ in range(sets.number)] for _ in range(2))
    out, weight, before = [torch.empty_like(one) for one in hidden], machine.randn(shape.width), residual[0].clone()

    def torch_call(x: Tensor, kept: Tensor) -> Tensor:
        return functional.rms_norm(kept.add_(x), (shape.width,), weight, _EPS)

    def seen(found: Tensor) -> Tensor:
        return torch.cat((found, residual[0]), dim=1)

    def reference() -> Tensor:
        total = hidden[0].double() + before.double()
        return torch.cat((_normed(total, weight), total), dim=1)

    def poison() -> None:
        spoil(out[0])
        residual[0].copy_(before)

    ours = [partial(op.add_rms_norm, x, kept, weight, _EPS, out=y) for x, kept, y in zip(hidden, residual, out, strict=True)]
    theirs = [partial(torch_call, x, kept) for x, kept in zip(hidden, residual, strict=True)]
    sides: dict[str, Callable[[], Side]] = {OURS: lambda: Side(ours, seen), "torch": lambda: Side(theirs, seen)}
    return Trial(Cost(4 * size), sets.resident, sides, poison, against(reference), limit)


def silu_mul(op: ModuleType, rows: Rows, machine: Machine, limit: float) -> Trial:
    """Two halves read, one written."""
    shape = _shape(rows, machine)
    size = 3 * shape.tokens * shape.width * _BF16
    sets = buffer_sets(size, machine.l2, machine.room)
    inputs = [machine.randn(shape.tokens, 2 * shape.width) for _ in range(sets.number)]
    out = [one.new_empty(shape.tokens, shape.width) for one in inputs]

    def torch_call(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    sides: dict[str, Callable[[], Side]] = {
        OURS: lambda: Side([partial(op.silu_mul, x, out=y) for x, y in zip(inputs, out, strict=True)]),
        "torch": lambda: Side([partial(torch_call, x) for x in inputs]),
        **gpu_peers.silu_mul(machine.peers, inputs),
    }
    return Trial(Cost(size), sets.resident, sides, partial(spoil, out[0]), against(lambda: torch_call(inputs[0].double())), limit)


@dataclass(frozen=True, slots=True)
class _Turning:
    """One set of buffers of rope_kv_write, and what it reads beside them."""

    qkv: Tensor
    query: Tensor
    kv: Tensor
    slots: Tensor
    positions: Tensor
    tables: tuple[Tensor, Tensor]
    norms: tuple[Tensor, Tensor] | None
    scales: Tensor | None = None

    def ours(self, op: ModuleType) -> Any:
        norms = None if self.norms is None else op.HeadNorms(*self.norms, _EPS)
        turn, place = op.Turn(*self.tables, self.positions), op.KvPlace(self.kv, self.slots, self.scales)
        return partial(op.rope_kv_write, self.qkv, turn, place, norms, query=self.query)

    def torch_call(self) -> Tensor:
        """What the daemon's decoder computes without this kernel."""
        query, key, value = self.computed(self.qkv)
        self.kv[0, self.slots], self.kv[1, self.slots] = key, value
        return query

    def computed(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the dtype of `qkv`."""
        heads, kv_heads = self.query.shape[1], self.kv.shape[2]
        query, key, value = qkv.view(len(qkv), -1, self.query.shape[2]).split((heads, kv_heads, kv_heads), dim=1)
        if self.norms is not None:
            query, key = (_normed_as(one, weight.to(one.dtype)) for one, weight in zip((query, key), self.norms, strict=True))
        cos, sin = (table[self.positions].to(qkv.dtype)[:, None] for table in self.tables)
        query, key = (one * cos + torch.cat((-one.chunk(2, -1)[1], one.chunk(2, -1)[0]), -1) * sin for one in (query, key))
        return query, key, value

    def seen(self, query: Tensor) -> Tensor:
        """Of 8 bits what they stand for."""
        if self.scales is None:
            return torch.cat((query, self.kv[0, self.slots], self.kv[1, self.slots]), dim=1)
        kept = (self.kv.float() * self.scales.transpose(2, 3).flatten(1, 2)[..., None])[:, self.slots]
        return torch.cat((query.float(), kept[0], kept[1]), dim=1)

    def reference(self) -> Tensor:
        return torch.cat(self.computed(self.qkv.double()), dim=1)


def rope_kv_write(op: ModuleType, rows: Rows, machine: Machine, limit: float) -> Trial:
    """All heads read and written, once: queries beside them, keys and values into the cache, in 8 bits half the bytes."""
    tokens = _shape(rows, machine).tokens
    heads, kv_heads, head_dim, positions = (4, 2, 32, 64) if machine.dry else (_HEADS, _KV_HEADS, _HEAD_DIM, _POSITIONS)
    size = tokens * (heads + 2 * kv_heads) * head_dim * _BF16
    saved = tokens * kv_heads * 2 * (head_dim - torch.float32.itemsize) if rows.kept else 0
    sets = buffer_sets(2 * size - saved, machine.l2, machine.room)
    angles = torch.rand(positions, head_dim // 2, device=machine.device).mul(6.28).repeat(1, 2)
    tables = angles.cos().bfloat16(), angles.sin().bfloat16()
    norms = (machine.randn(head_dim), machine.randn(head_dim)) if rows.norms else None

    def turning() -> _Turning:
        slots = torch.randperm(tokens, device=machine.device)
        at = torch.randint(0, positions, (tokens,), device=machine.device, dtype=torch.int32)
        qkv = machine.randn(tokens, (heads + 2 * kv_heads) * head_dim)
        place = _cache(rows.kept, -(-tokens // _PAGE), (kv_heads, head_dim), machine)
        return _Turning(qkv, qkv.new_empty(tokens, heads, head_dim), place[0], slots, at, tables, norms, place[1])

    all_sets = [turning() for _ in range(sets.number)]
    first = all_sets[0]
    sides: dict[str, Callable[[], Side]] = {OURS: lambda: Side([one.ours(op) for one in all_sets], first.seen)}
    if not rows.kept:
        sides["torch"] = lambda: Side([one.torch_call for one in all_sets], first.seen)
    spoiled = [first.query, first.kv if first.scales is None else first.scales]
    # Of 8 bits the error is the form's own: 2.4 % of keys and values in e4m3, which are a third of what is compared.
    bound = limit if not rows.kept else _NARROW_LIMIT
    return Trial(Cost(2 * size - saved), sets.resident, sides, partial(spoil, *spoiled), against(first.reference), bound)


def _cache(kept: str, blocks: int, heads: tuple[int, int], machine: Machine) -> tuple[Tensor, Tensor | None]:
    kv = machine.randn(2, blocks * _PAGE, *heads)
    if not kept:
        return kv, None
    return kv.to(_NARROW[kept]), torch.zeros(2, blocks, heads[0], _PAGE, device=machine.device)


def _normed(hidden: Tensor, weight: Tensor) -> Tensor:
    """Float64."""
    return _normed_as(hidden.double(), weight.double())


def _normed_as(hidden: Tensor, weight: Tensor) -> Tensor:
    wide = hidden if hidden.dtype == torch.float64 else hidden.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)).to(hidden.dtype) * weight
