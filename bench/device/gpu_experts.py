"""The trials of moe_grouped: experts of Qwen3-30B-A3B, beside torch's grouped products and the daemon's ops. Called by gpu_kernels."""

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
_CHOSEN = "own choice"  # of the kernel, beside another config of it


@dataclass(frozen=True, slots=True)
class Experts:
    """`tokens` of them, each for `top_k` experts."""

    tokens: int
    experts: int = 128
    top_k: int = 8
    hidden: int = 2048
    width: int = 768

    def tiny(self) -> Experts:
        return Experts(min(self.tokens, 5), 6, 2, 64, 32)

    @property
    def matrix(self) -> int:
        """Numbers of one expert."""
        return 3 * self.hidden * self.width

    def own_config(self, op: ModuleType) -> Any:
        return op.choose_config(self.tokens * self.top_k / self.experts)


def sizes() -> dict[str, tuple[str, Experts]]:
    kinds = {1: "large", 64: "large", 8192: "large", 16: "knee", 256: "knee", 1024: "knee", 4: "small"}
    return {f"{tokens}-tokens": (size, Experts(tokens)) for tokens, size in kinds.items()}


class _Set:
    """Tokens, and the router's logits of them: other tokens touch other experts of the same weights."""

    def __init__(self, shape: Experts, machine: Machine) -> None:
        self.hidden, self.logits = machine.randn(shape.tokens, shape.hidden), machine.randn(shape.tokens, shape.experts)
        self.out = torch.empty_like(self.hidden)


def trial(op: ModuleType, experts: Experts, machine: Machine, limit: float, config: Any) -> Trial:
    """From the router's logits to the sum. Of the weights, those of the experts that the first set's tokens touch are counted."""
    shape = experts.tiny() if machine.dry else experts
    gate_up, down = (
        machine.randn(shape.experts, lines, columns).mul_(columns**-0.5)
        for lines, columns in ((2 * shape.width, shape.hidden), (shape.hidden, shape.width))
    )
    first = _Set(shape, machine)
    touched = int(first.logits.topk(shape.top_k).indices.unique().numel())
    cost = _cost(shape, touched)
    found = buffer_sets(cost.bytes, machine.l2, machine.room)
    sets = [first, *(_Set(shape, machine) for _ in range(found.number - 1))]

    def ours(chosen: Any) -> Side:
        routing = op.Routing(shape.top_k, True)
        return Side([partial(op.moe_grouped, one.hidden, one.logits, gate_up, down, routing, out=one.out, config=chosen) for one in sets])

    def torch_side(compute: Callable[..., Tensor], **named: bool) -> Side:
        return Side([partial(compute, one.hidden, one.logits, gate_up, down, shape.top_k) for one in sets], **named)

    sides: dict[str, Callable[[], Side]] = {OURS: partial(ours, config)}
    if config is not None:
        sides[_CHOSEN] = partial(ours, None)
    else:
        sides["torch grouped_mm"] = partial(torch_side, grouped)
        sides["torch by expert"] = partial(torch_side, by_expert, captured=False)
    judge = against(lambda: reference(first, gate_up, down, shape))
    return Trial(cost, found.resident, sides, partial(spoil, first.out), judge, limit)


def _cost(shape: Experts, touched: int) -> Cost:
    """Weights that are touched, tokens, logits and results, once."""
    moved = touched * shape.matrix + shape.tokens * (2 * shape.hidden + shape.experts)
    return Cost(moved * _BF16, 2 * shape.tokens * shape.top_k * shape.matrix, launches=4)


def reference(one: _Set, gate_up: Tensor, down: Tensor, shape: Experts) -> Tensor:
    """Float64, expert after expert. Of equal logits the lower expert comes first."""
    logits = one.logits.double()
    experts = logits.argsort(dim=-1, descending=True, stable=True)[:, : shape.top_k]
    weights = logits.softmax(dim=-1).gather(1, experts)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    out = torch.zeros(one.hidden.shape, dtype=torch.float64, device=one.hidden.device)
    for expert in experts.unique().tolist():
        token, rank = (experts == expert).nonzero(as_tuple=True)
        gate, up = (one.hidden[token].double() @ gate_up[expert].double().T).chunk(2, dim=-1)
        parts = functional.silu(gate) * up @ down[expert].double().T
        out.index_add_(0, token, parts * weights[token, rank, None])
    return out


def _routed(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """By a sort that is stable, as the reference does it: topk says nothing about equal ones."""
    shares, experts = logits.float().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    weights = shares[:, :top_k]
    return weights / weights.sum(dim=-1, keepdim=True), experts[:, :top_k]


def grouped(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
    """With torch's grouped products (CUTLASS on sm_90), without a wait."""
    weights, experts = _routed(logits, top_k)
    by_expert, order = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(by_expert, torch.arange(len(down), device=hidden.device), right=True, out_int32=True)
    rows = hidden.index_select(0, order // top_k)
    gate, up = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)  # noqa: SLF001 - as torch 2.11 calls it
    parts = torch._grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)  # noqa: SLF001
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return _summed(parts.index_select(0, back), weights)


def by_expert(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, top_k: int) -> Tensor:
    """As the daemon's torch ops, which read on the host how many tokens an expert has."""
    weights, experts = _routed(logits, top_k)
    order = experts.flatten().argsort(stable=True)
    rows, start = hidden.index_select(0, order // top_k), 0
    outputs = torch.empty_like(rows)
    for expert, count in enumerate(experts.flatten().bincount(minlength=len(down)).tolist()):
        if count:
            part = slice(start, start + count)
            gate, up = functional.linear(rows[part], gate_up[expert]).chunk(2, dim=-1)
            outputs[part] = functional.linear(functional.silu(gate) * up, down[expert])
            start += count
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return _summed(outputs.index_select(0, back), weights)


def _summed(parts: Tensor, weights: Tensor) -> Tensor:
    by_token = parts.view(*weights.shape, parts.shape[-1])
    return (by_token.float() * weights.unsqueeze(-1)).sum(dim=1).to(parts.dtype)
