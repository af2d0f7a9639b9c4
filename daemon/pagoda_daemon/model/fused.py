"""FusedDecoder: the forward pass out of the GPU's fused ops and cuBLAS. Called by `gpu`.

Computes what `model.decoder` computes, with the same roundings, in ten launches per layer instead of about forty: that one is its judge.
Experts are rounded less often there, and come closer to the exact result. Reads nothing of a tensor on the host, so that a whole pass can
be captured as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from pagoda_kernels.gpu.experts.moe_grouped import moe_grouped
from pagoda_kernels.gpu.experts.moe_route import MOST_EXPERTS, Routing
from pagoda_kernels.gpu.levels import ScaledRows
from pagoda_kernels.gpu.prefill_config import HEAD_DIMS
from pagoda_kernels.gpu.rms_norm import add_rms_norm, rms_norm, rms_norm_levels
from pagoda_kernels.gpu.rope_kv_write import HeadNorms, KvPlace, Turn, rope_kv_write
from pagoda_kernels.gpu.silu_mul import silu_mul, silu_mul_levels
from torch import Tensor

from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Part
from pagoda_daemon.model.ops import linear
from pagoda_daemon.model.quantised import Linear8
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.weights import Layer, Linear, Mlp, SparseMlp, Weights

Rows = Tensor | ScaledRows
"""What a matrix reads: numbers, or levels that the op before has made of them."""

_LARGEST_GROUP = 64  # query heads of one key head: the rows of a tile of the narrowest configuration


class Attention(Protocol):
    """Who sees whom in a step."""

    def attend(self, query: Tensor, place: KvPlace, window: int | None) -> Tensor:
        """`query` [tokens, heads, head_dim] over a layer's pages; of the same shape."""
        ...


class Changes(Protocol):
    """The tokens of a step that have a LoRA adapter."""

    def add(self, out: Tensor, hidden: Tensor, layer: int, part: Part) -> None:
        """To their rows of `out` [tokens, outputs] what their adapters make of `hidden` [tokens, inputs]."""
        ...


@dataclass(frozen=True, slots=True)
class FusedStep:
    """A step's tokens, all on the device: ids and positions int32 [tokens], the slots of their keys and values int64 [tokens] (-1: none),
    and the flat indexes int64 of those whose states are wanted; None: all, in order. `adapted` None: no token has an adapter; likewise
    `adapted_wanted`, among the wanted ones."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor | None
    attention: Attention
    adapted: Changes | None = None
    adapted_wanted: Changes | None = None


def not_fused(spec: ModelSpec) -> str | None:
    """Why a model is not for the fused ops; None when it is."""
    if spec.head_dim not in HEAD_DIMS:
        return f"heads of {spec.head_dim}: the fused ops know {', '.join(map(str, HEAD_DIMS))}"
    if spec.heads // spec.kv_heads > _LARGEST_GROUP:
        return f"{spec.heads // spec.kv_heads} query heads per key head: the fused ops know at most {_LARGEST_GROUP}"
    if spec.experts is not None and spec.experts.count > MOST_EXPERTS:
        return f"{spec.experts.count} experts: the fused ops know at most {MOST_EXPERTS}"
    return None


class FusedDecoder:
    """Weights, rotary tables and the launches between them."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_len: int) -> None:
        self.spec = spec
        self.weights = weights
        self._tables = rope_table(spec, max_len, weights.norm.dtype)
        self._norms = tuple(_head_norms(spec, layer) for layer in weights.layers)

    def head(self, states: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits of states, [rows, vocab]."""
        return torch.mm(states, self.weights.head.T) if out is None else torch.mm(states, self.weights.head.T, out=out)

    def states(self, step: FusedStep, kv: KvCache) -> Tensor:
        """Write the tokens' keys and values into `kv`; [wanted, hidden], the last layer's output after the norm."""
        turn = Turn(*self._tables, step.positions)
        hidden = self.weights.embedding.index_select(0, step.token_ids)
        first, adapted = self.weights.layers[0], step.adapted
        live = step.slots if step.wanted is None else None  # a graph's padding must not have experts read
        normed = self._normed(hidden, None, first.attention_norm, _levels(first.qkv, adapted))
        for index, layer in enumerate(self.weights.layers):
            mixed = self._mixed(index, normed, (turn, _place(kv, index, step.slots)), step)
            if layer is self.weights.layers[-1] and step.wanted is not None:
                mixed, hidden = mixed.index_select(0, step.wanted), hidden.index_select(0, step.wanted)
                adapted = step.adapted_wanted
            output = _applied(layer.output, mixed, (adapted, index, "output"))
            reader = layer.mlp.gate_up if isinstance(layer.mlp, Mlp) else None
            normed = self._normed(output, hidden, layer.mlp_norm, _levels(reader, adapted))
            normed = self._normed(_mlp(layer, normed, adapted, index, live), hidden, *self._behind(index, adapted))
        return _numbers(normed)

    def _normed(self, x: Tensor, residual: Tensor | None, weight: Tensor, levels: torch.dtype | None) -> Rows:
        """The norm of `x`, or of `residual`, to which `x` is added; then it is written over `x`, which nobody reads again."""
        if levels is not None:
            return rms_norm_levels(x, residual, weight, self.spec.norm_eps, levels)
        eps = self.spec.norm_eps
        return rms_norm(x, weight, eps) if residual is None else add_rms_norm(x, residual, weight, eps, out=x)

    def _mixed(self, index: int, normed: Rows, where: tuple[Turn, KvPlace], step: FusedStep) -> Tensor:
        spec, layer = self.spec, self.weights.layers[index]
        fused = _applied(layer.qkv, normed, (step.adapted, index, "qkv"))
        query = fused.new_empty(fused.shape[0], spec.heads, spec.head_dim)
        rope_kv_write(fused, *where, self._norms[index], query=query)
        return step.attention.attend(query, where[1], spec.windows[index]).flatten(1)

    def _behind(self, index: int, adapted: Changes | None) -> tuple[Tensor, torch.dtype | None]:
        """The norm that reads what layer `index` leaves, and the levels that are made of it."""
        following = index + 1
        if following == len(self.weights.layers):
            return self.weights.norm, None
        layer = self.weights.layers[following]
        return layer.attention_norm, _levels(layer.qkv, adapted)


def _place(kv: KvCache, layer: int, slots: Tensor) -> KvPlace:
    return KvPlace(kv.data[layer], slots, None if kv.scales is None else kv.scales[layer])


def _mlp(layer: Layer, normed: Rows, adapted: Changes | None, index: int, live: Tensor | None) -> Tensor:
    if not isinstance(layer.mlp, Mlp):
        return _mixed_experts(layer.mlp, _numbers(normed), live)
    gate_up = _applied(layer.mlp.gate_up, normed, (adapted, index, "gate_up"))
    levels = _levels(layer.mlp.down, adapted)
    inner = silu_mul(gate_up) if levels is None else silu_mul_levels(gate_up, levels)
    return _applied(layer.mlp.down, inner, (adapted, index, "down"))


def _mixed_experts(mlp: SparseMlp, normed: Tensor, live: Tensor | None) -> Tensor:
    routing = Routing(mlp.experts.per_token, mlp.experts.normalised)
    return moe_grouped(normed, linear(normed, mlp.router), mlp.gate_up, mlp.down, routing, live=live)


def _applied(linear: Linear, rows: Rows, change: tuple[Changes | None, int, Part]) -> Tensor:
    """A linear map, with what the tokens' adapters change in it. Rows are levels only where none has one."""
    if isinstance(rows, Tensor):
        return _added(linear.apply(rows), rows, *change)
    if not isinstance(linear, Linear8):
        raise TypeError("rows were quantised for a matrix that takes none")
    return linear.apply_levels(rows)


def _levels(reader: Linear | None, adapted: Changes | None) -> torch.dtype | None:
    """What rows are quantised to where they are made: nothing where an adapter reads them, too."""
    return reader.weight.dtype if isinstance(reader, Linear8) and adapted is None else None


def _numbers(rows: Rows) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    raise TypeError("rows were quantised that are read as numbers")


def _added(out: Tensor, hidden: Tensor, adapted: Changes | None, layer: int, part: Part) -> Tensor:
    if adapted is not None:
        adapted.add(out, hidden, layer, part)
    return out


def _head_norms(spec: ModelSpec, layer: Layer) -> HeadNorms | None:
    if layer.query_norm is None or layer.key_norm is None:
        return None
    return HeadNorms(layer.query_norm, layer.key_norm, spec.norm_eps)
